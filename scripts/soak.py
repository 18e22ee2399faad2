"""Mixed traffic with aborts for a number of minutes, both schedulers, drafting and planning on.

Fails, with exit status 1 and one sentence, when a greedy answer differs from the target's own, a
request is lost, blocks leak, memory grows, or no step ends for five seconds. Uses the tiny pair of
the tests unless another is named; prints one JSON object a scheduler.
"""

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SETS = ROOT / "tests" / "conformance"
STALL_S = 5.0
MAX_GROWTH_BYTES = 64 << 20


def main() -> int:
    """Soak both schedulers; 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15.0, help="of each scheduler")
    parser.add_argument("--target", type=Path, default=SETS / "target")
    parser.add_argument("--draft", type=Path, default=SETS / "deepspec-vanilla-k7" / "draft")
    args = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    broken = False
    for is_async in (False, True):
        result = soak(args, is_async)
        print(json.dumps(result), flush=True)
        broken |= bool(result["problems"])
    return 1 if broken else 0


def make_engine(args: argparse.Namespace, *, drafting: bool, is_async: bool) -> Any:
    """An engine in this process, with a pool small enough to preempt."""
    from vllm import LLM

    speculative = {
        "method": "dspark", "model": str(args.draft), "enable_adaptive_verification": True
    }
    return LLM(
        str(args.target),
        max_model_len=256,
        max_num_seqs=12,
        kv_cache_memory_bytes=2 << 20 if args.target.parent == SETS else 64 << 20,
        async_scheduling=is_async,
        speculative_config=speculative if drafting else None,
        disable_log_stats=True,
    )


def prompts_of(args: argparse.Namespace) -> list[list[int]]:
    """Prompts of a few lengths, some sharing a beginning."""
    golden = json.loads((SETS / "deepspec-vanilla-k7" / "golden.json").read_text())
    heads = [case["prompt_ids"] for case in golden["cases"]]
    return [*heads, *[[*heads[0], *head] for head in heads]]


def options_of(index: int, rng: random.Random) -> Any:
    """Greedy, sampled, structured and scored requests; two of three are greedy."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    kind = index % 6
    if kind == 4:
        return SamplingParams(temperature=0.9, top_p=0.9, frequency_penalty=0.2, max_tokens=40)
    if kind == 5:
        regex = StructuredOutputsParams(regex="[a-d]{3,9}")
        return SamplingParams(temperature=0.7, structured_outputs=regex, max_tokens=16, logprobs=2)
    return SamplingParams(temperature=0.0, max_tokens=rng.choice((1, 7, 24, 48)), ignore_eos=True)


def soak(args: argparse.Namespace, is_async: bool) -> dict[str, Any]:
    """Run one scheduler for args.minutes and say what was seen."""
    import psutil
    from vllm import SamplingParams

    prompts = prompts_of(args)
    alone = make_engine(args, drafting=False, is_async=False)
    greedy = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
    answers = [
        list(alone.generate({"prompt_token_ids": prompt}, greedy, use_tqdm=False)[0]
             .outputs[0].token_ids)
        for prompt in prompts
    ]
    del alone
    llm = make_engine(args, drafting=True, is_async=is_async)
    core = llm.llm_engine
    pool = core.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    rng = random.Random(5)
    counts = {"finished": 0, "aborted": 0, "differing": 0, "lost": 0}
    slowest, resident = 0.0, []
    end = time.monotonic() + 60 * args.minutes
    while time.monotonic() < end:
        slowest = max(slowest, run_wave(core, prompts, answers, rng, counts))
        resident.append(psutil.Process().memory_info().rss)
    problems = [
        text
        for is_wrong, text in (
            (counts["differing"], "a greedy answer differs from the target's own"),
            (counts["lost"], "a request was lost"),
            (pool.get_num_free_blocks() != free, "blocks leaked"),
            (max(resident[len(resident) // 2 :]) - resident[len(resident) // 4]
             > MAX_GROWTH_BYTES, "memory grew"),
            (slowest > STALL_S, f"a step took {slowest:.1f} s"),
        )
        if is_wrong
    ]
    return {
        "scheduler": "async" if is_async else "sync", "minutes": args.minutes, **counts,
        "slowest_step_s": round(slowest, 3),
        "resident_mib": [resident[0] >> 20, resident[-1] >> 20],
        "free_blocks": [free, pool.get_num_free_blocks()], "problems": problems,
    }  # fmt: skip


def run_wave(
    core: Any, prompts: list[list[int]], answers: list[list[int]], rng: random.Random,
    counts: dict[str, int],
) -> float:  # fmt: skip
    """Feed sixty requests with fifteen aborts; return the slowest step in seconds."""
    waiting = list(range(60))
    chosen = {index: rng.randrange(len(prompts)) for index in waiting}
    options = {index: options_of(index, rng) for index in waiting}
    doomed = {index: rng.randrange(5) for index in rng.sample(waiting, 15)}
    left = set(waiting) - set(doomed)
    slowest = 0.0
    while waiting or core.has_unfinished_requests():
        for _ in range(min(len(waiting), rng.randrange(4))):
            index = waiting.pop(0)
            prompt = {"prompt_token_ids": prompts[chosen[index]]}
            core.add_request(str(index), prompt, options[index])
        started = time.monotonic()
        outputs = core.step()
        slowest = max(slowest, time.monotonic() - started)
        for output in outputs:
            index = int(output.request_id)
            if output.finished:
                left.discard(index)
                counts["finished"] += 1
                if options[index].temperature == 0.0:
                    got = list(output.outputs[0].token_ids)
                    counts["differing"] += got != answers[chosen[index]][: len(got)]
        for index in [one for one in doomed if one not in waiting and rng.random() < 0.2]:
            core.abort_request([str(index)])
            del doomed[index]
            counts["aborted"] += 1
    counts["lost"] += len(left)
    return slowest


if __name__ == "__main__":
    sys.exit(main())
