#!/usr/bin/env python3
"""Compare greedy tokens of forty prompts with mlx_lm and transformers, in every way to cut steps.

    .venv/bin/python scripts/check_forty.py [--model DIR] [--limit N] [--references F] [--json F]

Prints a table with exact counts, and every difference with the margin between the two most likely
tokens at its position: a margin near 1e-4 is a tie that float32 sums in another order may flip.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vllm_dspark.blas import load_blas

load_blas()
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import mlx.core as mx  # noqa: E402

ROOT = Path(__file__).parent.parent
CORPUS = ROOT / "src" / "vllm_dspark" / "data" / "prompts.jsonl"
NUM_TOKENS = 64
BATCH = 8
TINY_BLOCKS = 28
LENGTHS = ("short", "long")
MODES = ("sync", "async")
Tokens = list[list[int]]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first position where a request leaves the reference.

    Attributes:
        margin: logit of the most likely token less that of the second, by mlx_lm.
    """

    prompt: str
    position: int
    ours: int
    expected: int
    margin: float


@dataclass(slots=True)
class Row:
    """One way to run the forty prompts, and how it went."""

    name: str
    seconds: float
    equal_mlx_lm: int = 0
    equal_transformers: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    differences: list[Difference] = field(default_factory=list)


def read_prompts(path: Path, length: str, limit: int) -> list[dict[str, str]]:
    """Prompts of one length: a pool that is tiny for the long ones is roomy for the short."""
    prompts = [json.loads(line) for line in path.read_text().splitlines()]
    return [one for one in prompts if (one["kind"] == "long") == (length == "long")][:limit]


def mlx_lm_tokens(model: Any, prompts: Tokens) -> Tokens:
    """Greedy tokens by mlx_lm's network and cache."""
    from mlx_lm.models.cache import make_prompt_cache

    answers = []
    for ids in prompts:
        cache, inputs, tokens = make_prompt_cache(model), mx.array([ids]), []
        for _ in range(NUM_TOKENS):
            tokens.append(mx.argmax(model(inputs, cache=cache)[0, -1]).item())
            inputs = mx.array([tokens[-1:]])
        answers.append(tokens)
    return answers


def transformers_tokens(folder: Path, prompts: Tokens) -> Tokens:
    """Greedy tokens by transformers in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)  # two threads that share busy cores wait for each other
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    answers = []
    for ids in prompts:
        with torch.no_grad():
            given = torch.tensor([ids])
            out = model.generate(
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=NUM_TOKENS,
                do_sample=False,
                pad_token_id=0,
            )
        answers.append(out[0, len(ids) :].tolist())
    return answers


@contextmanager
def engine(folder: Path, **options: Any) -> Iterator[Any]:
    """An LLM with its scheduler in this process."""
    from vllm import LLM

    given = {"max_model_len": 256, "max_num_seqs": BATCH, "kv_cache_memory_bytes": 1 << 28}
    llm = LLM(str(folder), dtype="float32", **{**given, **options})
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


def run(llm: Any, prompts: Tokens, size: int) -> tuple[Tokens, int, int]:
    """Generate in batches; return tokens, preemptions and cached prompt tokens."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    original, seen = scheduler._preempt_request, []

    def preempt(request: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(request.request_id)
        return original(request, *args, **kwargs)

    scheduler._preempt_request = preempt
    tokens, cached = [], 0
    for start in range(0, len(prompts), size):
        batch = [{"prompt_token_ids": ids} for ids in prompts[start : start + size]]
        for output in llm.generate(batch, params, use_tqdm=False):
            tokens.append(list(output.outputs[0].token_ids))
            cached += output.num_cached_tokens or 0
    scheduler._preempt_request = original
    return tokens, len(seen), cached


def ways(
    folder: Path, block_bytes: int, longest: int, modes: list[str]
) -> Iterator[tuple[str, Any, int]]:
    """Every way to run: its name, the engine, and the batch size.

    Args:
        longest: tokens of the longest prompt; a tiny pool holds its whole context, and little more.
    """
    context = max(256, longest + NUM_TOKENS)
    tiny_blocks = max(TINY_BLOCKS, -(-context // 16) + 12)
    for mode in modes:
        common = {"async_scheduling": mode == "async", "max_model_len": context}
        with engine(folder, **common) as llm:
            yield f"{mode}, alone, cache cold", llm, 1
            llm.reset_prefix_cache()
            yield f"{mode}, batches of {BATCH}, cache cold", llm, BATCH
            yield f"{mode}, batches of {BATCH}, cache warm", llm, BATCH
        with engine(folder, **common, max_num_batched_tokens=16) as llm:
            yield f"{mode}, batches of {BATCH}, chunks of 16", llm, BATCH
        tiny = {"kv_cache_memory_bytes": tiny_blocks * block_bytes}
        with engine(folder, **common, **tiny) as llm:
            yield f"{mode}, batches of {BATCH}, tiny pool", llm, BATCH


def references(model: Any, folder: Path, prompts: Tokens, kept: Path | None) -> tuple[Any, Any]:
    """Tokens and seconds of mlx_lm and of transformers, read from ``kept`` when it has them."""
    if kept and kept.is_file():
        found = json.loads(kept.read_text())
        if found["prompts"] == prompts:
            return found["mlx_lm"], found["transformers"]
    answers: dict[str, Any] = {"prompts": prompts}
    for name, compute in (
        ("mlx_lm", lambda: mlx_lm_tokens(model, prompts)),
        ("transformers", lambda: transformers_tokens(folder, prompts)),
    ):
        started = time.perf_counter()
        tokens = compute()
        answers[name] = (tokens, time.perf_counter() - started)
        print(f"{name}: {answers[name][1]:.1f} s", flush=True)
    if kept:
        kept.write_text(json.dumps(answers))
    return answers["mlx_lm"], answers["transformers"]


def find_differences(
    model: Any, names: list[str], prompts: Tokens, ours: Tokens, expected: Tokens
) -> list[Difference]:
    """First difference of every request, with mlx_lm's margin there."""
    found = []
    for name, ids, left, right in zip(names, prompts, ours, expected, strict=True):
        if left == right:
            continue
        at = next(i for i, pair in enumerate(zip(left, right, strict=True)) if len(set(pair)) > 1)
        logits = mx.sort(model(mx.array([[*ids, *right[:at]]]))[0, -1])
        margin = (logits[-1] - logits[-2]).item()
        found.append(Difference(name, at, left[at], right[at], margin))
    return found


def count_equal(left: Tokens, right: Tokens) -> int:
    return sum(one == other for one, other in zip(left, right, strict=True))


def print_table(rows: list[Row], total: int) -> None:
    print(f"{'way':40} {'= mlx_lm':>9} {'= transf.':>9} {'preempt':>8} {'cached':>7} {'s':>6}")
    for row in rows:
        print(
            f"{row.name:40} {row.equal_mlx_lm:>6}/{total:<2} {row.equal_transformers:>6}/{total:<2}"
            f" {row.preemptions:>8} {row.cached_tokens:>7} {row.seconds:>6.1f}"
        )
    for row in rows:
        for one in row.differences:
            print(
                f"  {row.name}: {one.prompt} at token {one.position}: {one.ours} instead of "
                f"{one.expected}, margin {one.margin:.2e}"
            )


def check(
    folder: Path, prompts: list[dict[str, str]], kept: Path | None, modes: list[str]
) -> list[Row]:
    """Run everything; the first row is transformers against mlx_lm."""
    import mlx_lm

    model, tokenizer = mlx_lm.load(str(folder))
    names = [one["id"] for one in prompts]
    ids = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": one["prompt"]}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
        for one in prompts
    ]
    (expected, seconds), (other, other_seconds) = references(model, folder, ids, kept)
    rows = [Row("mlx_lm", seconds, len(ids), count_equal(expected, other))]
    rows.append(Row("transformers", other_seconds, 0, len(ids)))
    rows[1].equal_mlx_lm = rows[0].equal_transformers
    rows[1].differences = find_differences(model, names, ids, other, expected)
    config = json.loads((folder / "config.json").read_text())
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    kv_heads = config.get("num_key_value_heads") or heads
    block_bytes = 16 * 2 * config["num_hidden_layers"] * kv_heads * size * 4
    for name, llm, batch in ways(folder, block_bytes, max(map(len, ids)), modes):
        started = time.perf_counter()
        tokens, preemptions, cached = run(llm, ids, batch)
        row = Row(name, time.perf_counter() - started, count_equal(tokens, expected))
        row.equal_transformers = count_equal(tokens, other)
        row.preemptions, row.cached_tokens = preemptions, cached
        row.differences = find_differences(model, names, ids, tokens, expected)
        rows.append(row)
        print(f"{name}: {row.equal_mlx_lm}/{len(ids)} in {row.seconds:.1f} s", flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "SmolLM2-135M-Instruct")
    parser.add_argument("--prompts", type=Path, default=CORPUS)
    parser.add_argument("--lengths", nargs="+", choices=LENGTHS, default=LENGTHS)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--limit", type=int, default=40, help="at most so many of each length")
    parser.add_argument("--references", type=Path, help="keep the references' tokens here")
    parser.add_argument("--json", type=Path, help="write the table here too")
    options = parser.parse_args()
    report, is_equal = {}, True
    for length in options.lengths:
        prompts = read_prompts(options.prompts, length, options.limit)
        kept = options.references and options.references.with_suffix(f".{length}.json")
        rows = check(options.model, prompts, kept, options.modes)
        print(f"\n{len(prompts)} {length} prompts, {NUM_TOKENS} tokens each")
        print_table(rows, len(prompts))
        report[length] = {"prompts": len(prompts), "rows": [asdict(row) for row in rows]}
        is_equal &= all(row.equal_mlx_lm == len(prompts) for row in rows[2:])
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if is_equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
