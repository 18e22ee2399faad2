"""Two hundred mixed requests, fifty aborted at random, on a pool that is too small."""

import gc
import json
import random
import re
from typing import Any

import psutil
import pytest
from engines import PROMPTS, counted_preemptions, engine, free_blocks, pool_bytes, scheduler_of

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

NUM_REQUESTS = 200
NUM_ABORTS = 50
ROUNDS = 4
MAX_GROWTH_BYTES = 16 << 20
"""Resident memory may move by this much after the first round: caches fill, arrays are pooled."""

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "age": {"type": "integer", "maximum": 99}},
    "required": ["ok", "age"],
    "additionalProperties": False,
}


def options_of(index: int, rng: random.Random) -> Any:
    """Greedy, sampled, structured and scored requests in turn."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    length = rng.randrange(4, 48)
    kinds = [
        {"temperature": 0.0},
        {"temperature": 1.2, "top_p": 0.9, "top_k": 40, "frequency_penalty": 0.3},
        {"structured_outputs": StructuredOutputsParams(json=SCHEMA), "temperature": 0.7},
        {"structured_outputs": StructuredOutputsParams(regex="[a-d]{3}")},
        {"logprobs": 3, "prompt_logprobs": 1, "temperature": 0.5, "seed": index},
        {
            "n": 2,
            "temperature": 1.0,
            "min_p": 0.05,
            "min_tokens": 2,
            "output_kind": RequestOutputKind.FINAL_ONLY,
        },
    ]
    chosen = kinds[index % len(kinds)]
    is_structured = "structured_outputs" in chosen
    return SamplingParams(**chosen, max_tokens=64 if is_structured else length)


def check(index: int, output: Any) -> None:
    """A request that was left alone has finished, and its text has the promised form."""
    assert output.finished
    for one in output.outputs:
        assert one.finish_reason in ("stop", "length")
        assert one.token_ids
    text = output.outputs[0].text
    kind = index % 6
    if kind == 2 and output.outputs[0].finish_reason == "stop":
        assert set(json.loads(text)) == {"ok", "age"}
    if kind == 3:
        assert re.fullmatch("[a-d]{3}", text)
    if kind == 4:
        assert len(output.outputs[0].logprobs) == len(output.outputs[0].token_ids)
        assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    if kind == 5:
        assert len(output.outputs) == 2


def run_round(llm: Any, indices: range, aborted: set[int], rng: random.Random) -> dict[int, Any]:
    """Feed one round of requests while stepping; abort some after a few of their outputs."""
    core = llm.llm_engine
    waiting, finished = list(indices), {}
    patience = {index: rng.randrange(4) for index in indices if index in aborted}
    while waiting or core.has_unfinished_requests():
        for _ in range(min(len(waiting), rng.randrange(4))):
            index = waiting.pop(0)
            prompt = PROMPTS[index % len(PROMPTS)]
            core.add_request(str(index), prompt, options_of(index, rng))
            if patience.get(index) == 0:
                core.abort_request([str(index)])
        for output in core.step():
            index = int(output.request_id)
            if output.finished:
                finished[index] = output
            elif index in patience:
                patience[index] -= 1
                if patience[index] == 0:
                    core.abort_request([output.request_id])
    return finished


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_nothing_is_lost_leaked_or_broken(is_async: bool) -> None:
    rng = random.Random(11)
    aborted = set(rng.sample(range(NUM_REQUESTS), NUM_ABORTS))
    size = NUM_REQUESTS // ROUNDS
    resident: list[int] = []
    with engine(
        async_scheduling=is_async,
        kv_cache_memory_bytes=pool_bytes(20),
        max_model_len=160,
        max_num_seqs=12,
        max_num_batched_tokens=64,
        structured_outputs_config={"backend": "xgrammar", "disable_any_whitespace": True},
    ) as llm:
        before = free_blocks(llm)
        with counted_preemptions(llm) as preempted:
            for start in range(0, NUM_REQUESTS, size):
                finished = run_round(llm, range(start, start + size), aborted, rng)
                left_alone = set(range(start, start + size)) - aborted
                assert left_alone <= set(finished)
                for index in left_alone:
                    check(index, finished[index])
                gc.collect()
                resident.append(psutil.Process().memory_info().rss)
        llm.generate([PROMPTS[5]], options_of(0, rng), use_tqdm=False)
        worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
        assert len(preempted) > 10
        assert free_blocks(llm) == before
        assert not scheduler_of(llm).requests
        assert len(worker._runner.table) <= 1
    assert resident[-1] - resident[1] < MAX_GROWTH_BYTES, resident
