"""In-process engines on the tiny target, and an independent greedy reference."""

import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx

TARGET = Path(__file__).parents[1] / "conformance" / "target"
BYTES_PER_TOKEN = 6 * 2 * 2 * 16 * 4
"""Keys and values of the tiny target: layers, both, heads, head size, float32."""

PROMPTS = (
    "Finn puts the small stones in a",
    "Question: what is 8 plus 17? Answer: ",
    "Ben puts the small maps in a box. Gia opens the box and finds the small maps. Gia thanks",
    "def add_books(cleo, gia):\n    total = gia + gia\n    return",
    "Question: what is 7 plus 3? Answer: 7 plus 3 is 10. Cleo is right and Gia is",
    "Ada",
    "Eva puts the red books in a box. Finn opens the box and finds the red books.",
    "def add_maps(ada, ben):\n    total = ada",
)


def pool_bytes(num_blocks: int, block_size: int = 16) -> int:
    """What --kv-cache-memory-bytes must be for a pool of num_blocks blocks."""
    return num_blocks * block_size * BYTES_PER_TOKEN


@contextmanager
def engine(model: Path = TARGET, **options: Any) -> Iterator[Any]:
    """Run an LLM whose scheduler lives in this process, and close it."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM

    given = {
        "max_model_len": 512,
        "kv_cache_memory_bytes": pool_bytes(512),
        "async_scheduling": False,
        "max_num_seqs": 16,
        **options,
    }
    llm = LLM(str(model), **given)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


def scheduler_of(llm: Any) -> Any:
    """The scheduler inside an in-process engine."""
    return llm.llm_engine.engine_core.engine_core.scheduler


def free_blocks(llm: Any) -> int:
    """Blocks that no request holds."""
    return scheduler_of(llm).kv_cache_manager.block_pool.get_num_free_blocks()


@contextmanager
def counted_preemptions(llm: Any) -> Iterator[list[str]]:
    """Collect the ids of the requests that the scheduler preempts meanwhile."""
    scheduler = scheduler_of(llm)
    original, seen = scheduler._preempt_request, []

    def preempt(request: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(request.request_id)
        return original(request, *args, **kwargs)

    scheduler._preempt_request = preempt
    try:
        yield seen
    finally:
        scheduler._preempt_request = original


def greedy(max_tokens: int = 48, **options: Any) -> Any:
    """Greedy sampling parameters that run to the full length."""
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **options)


def token_ids(outputs: Sequence[Any]) -> list[list[int]]:
    """Tokens of each request's first output."""
    return [list(output.outputs[0].token_ids) for output in outputs]


@functools.cache
def reference_model(folder: Path = TARGET) -> Any:
    """mlx_lm's own network for a folder."""
    import mlx_lm

    return mlx_lm.load(str(folder))


@functools.cache
def reference_tokens(prompt: str, max_tokens: int, folder: Path = TARGET) -> tuple[int, ...]:
    """Greedy tokens by mlx_lm's cache and network, in a loop of our own."""
    from mlx_lm.models.cache import make_prompt_cache

    model, tokenizer = reference_model(folder)
    cache = make_prompt_cache(model)
    inputs = mx.array([tokenizer.encode(prompt)])
    tokens: list[int] = []
    for _ in range(max_tokens):
        token = mx.argmax(model(inputs, cache=cache)[0, -1]).item()
        tokens.append(token)
        inputs = mx.array([[token]])
    return tuple(tokens)


def expected_tokens(prompts: Sequence[str] = PROMPTS, max_tokens: int = 48) -> list[list[int]]:
    """Reference tokens of several prompts."""
    return [list(reference_tokens(prompt, max_tokens)) for prompt in prompts]
