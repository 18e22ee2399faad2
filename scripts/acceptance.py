"""Measure a draft's acceptance length on prompts, greedily, in process, per kind of prompt.

    python scripts/acceptance.py TARGET DRAFT [DRAFT ...] [--prompts FILE] [--window N]

Acceptance length is accepted drafts + 1 per round; a prompt ends at the end-of-turn token or after
the given number of new tokens. Also printed: how honest the survival of the confidences is.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from vllm_dspark.blas import load_blas
from vllm_dspark.settings import EXACT_FLOAT32, set_environment_defaults

load_blas()
set_environment_defaults(EXACT_FLOAT32)

import numpy as np  # noqa: E402

from vllm_dspark.runner.build import DraftSettings, build_runner, load  # noqa: E402
from vllm_dspark.runner.schedule import Admission, Grammar, Schedule, Turn  # noqa: E402
from vllm_dspark.runner.step import Runner  # noqa: E402
from vllm_dspark.sampling.params import Sampling  # noqa: E402
from vllm_dspark.training.calibrate import auroc, expected_calibration_error, sigmoid  # noqa: E402
from vllm_dspark.training.chat import read_chat_format  # noqa: E402

BLOCK_SIZE, NUM_BLOCKS = 16, 512


@dataclass(frozen=True, slots=True)
class Answer:
    """What a runner made of one prompt.

    Attributes:
        output: token ids; a last round may go past the end.
        accepted: drafts kept per round.
        logits: of the confidences, [rounds, K].
        first_seconds: until the first token; more_seconds: from there to the last.
    """

    output: list[int]
    accepted: list[int]
    logits: np.ndarray
    first_seconds: float
    more_seconds: float


def run_prompt(
    runner: Runner,
    prompt: list[int],
    num_new: int,
    end_id: int,
    sampling: Sampling = Sampling(temperature=0.0),  # noqa: B008 - frozen
) -> Answer:
    """Answer one prompt, greedily by default; without a draft a token at a time."""
    blocks = (list(range(1, NUM_BLOCKS)),)
    admission = Admission(
        request_id="a", token_ids=prompt, num_prompt=len(prompt), num_computed=0, blocks=blocks,
        sampling=sampling,
    )  # fmt: skip
    started = time.perf_counter()
    runner.begin(Schedule(admissions=(admission,), turns=(Turn("a", len(prompt)),)))
    outcome = runner.finish(Grammar()).outcomes["a"]
    first = time.perf_counter()
    output, accepted, logits = list(outcome.token_ids), [], []
    while len(output) < num_new and end_id not in output:
        drafts = outcome.drafts
        scores = runner.table["a"].confidence_logits
        runner.begin(Schedule(turns=(Turn("a", 1 + len(drafts), len(drafts), drafts),)))
        outcome = runner.finish(Grammar()).outcomes["a"]
        output += outcome.token_ids
        accepted.append(len(outcome.token_ids) - 1)
        logits.append(np.full(len(drafts), np.nan) if scores is None else np.array(scores))
    ended = time.perf_counter()
    runner.begin(Schedule(forgotten=frozenset(["a"])))
    runner.finish(Grammar())
    return Answer(output, accepted, np.array(logits), first - started, ended - first)


def report(name: str, lengths: dict[str, list[int]], seconds: float, num_tokens: int) -> None:
    """Print a line per kind, and the plain mean over kinds."""
    means = {kind: float(np.mean(counts)) + 1 for kind, counts in lengths.items()}
    print(f"\n{name}: {num_tokens / seconds:.1f} tokens/s in process")
    for kind, mean in means.items():
        print(f"  {kind:<14} {mean:.3f} over {len(lengths[kind])} rounds")
    print(f"  {'macro':<14} {np.mean(list(means.values())):.3f}")


def report_confidence(accepted: np.ndarray, logits: np.ndarray, heat: np.ndarray) -> None:
    """Print ECE and AUROC of each slot's survival, raw and calibrated."""
    raw = np.cumprod(sigmoid(logits), axis=1)
    said = np.cumprod(sigmoid(logits / heat), axis=1)
    slots = range(logits.shape[1])
    kept = [accepted > k for k in slots]
    for title, values in (
        ("P(n > k)", [k.mean() for k in kept]),
        ("ECE raw", [expected_calibration_error(raw[:, k], kept[k]) for k in slots]),
        ("ECE", [expected_calibration_error(said[:, k], kept[k]) for k in slots]),
        ("AUROC", [auroc(said[:, k], kept[k]) for k in slots]),
    ):
        line = " ".join(f"{v:.3f}" for v in values)
        print(f"  {title:<9} {line}  mean {np.mean(values):.4f}")


def main() -> int:
    """Measure every draft."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("drafts", type=Path, nargs="+")
    parser.add_argument("--prompts", type=Path, default=Path("tests/data/held_out.jsonl"))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--window", type=int, help="context positions that the draft sees")
    args = parser.parse_args()
    chat = read_chat_format(args.target)
    entries = [json.loads(line) for line in args.prompts.read_text().splitlines() if line.strip()]
    for draft in args.drafts:
        loaded = load(args.target, args.dtype, DraftSettings(folder=draft, window=args.window))
        runner = build_runner(loaded, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
        lengths: dict[str, list[int]] = defaultdict(list)
        logits, num_tokens, started = [], 0, time.perf_counter()
        for entry in entries:
            answer = run_prompt(runner, chat.encode_prompt(entry), args.new_tokens, chat.end_id)
            lengths[entry.get("kind", "all")] += answer.accepted
            logits.append(answer.logits.reshape(len(answer.accepted), -1))
            num_tokens += len(answer.output)
        report(str(draft), lengths, time.perf_counter() - started, num_tokens)
        counts = np.concatenate([np.array(counts) for counts in lengths.values()])
        # rounds are grouped by kind above, so put the logits in the same order
        order = sorted(range(len(entries)), key=lambda i: list(lengths).index(entries[i]["kind"]))
        ordered = np.concatenate([logits[i] for i in order if logits[i].size])
        heat = json.loads((draft / "config.json").read_text()).get("confidence_temperatures")
        heats = np.array(heat if heat else [1.0] * ordered.shape[1])
        report_confidence(counts, ordered, heats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
