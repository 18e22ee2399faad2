"""Compare the acceptance of sampled requests with what the formula predicts, in process.

    python scripts/sampled_acceptance.py TARGET DRAFT [--temperature 0.7] [--method greedy]

A greedy draft d is accepted with probability p(d), one drawn from q with min(1, p(d) / q(d)), p
being what the request draws from. Both are read from the rows of every round, accepted or not,
so a round's expected tokens are 1 + sum over i of the product of the first i. Status 1 when the
mean over all rounds is more than 5 % from the measured one.
"""

import argparse
import json
import sys
from pathlib import Path

from acceptance import BLOCK_SIZE, NUM_BLOCKS, run_prompt

from vllm_dspark.runner import choose
from vllm_dspark.runner.build import DraftSettings, build_runner, load
from vllm_dspark.sampling.params import Sampling
from vllm_dspark.training.chat import read_chat_format

import mlx.core as mx  # isort: skip
import numpy as np  # isort: skip

BOUND = 0.05


class Predictions:
    """Expected tokens of every round, read where the step chooses its tokens."""

    def __init__(self) -> None:
        self.expected: list[float] = []
        self._shape = choose.shape_logits
        choose.shape_logits = self._watch_shape
        choose._choose_drawn = self._watch_rows(choose._choose_drawn)
        self._shaped: mx.array | None = None

    def _watch_shape(self, logits, options):
        self._shaped = self._shape(logits, options)
        return self._shaped

    def _watch_rows(self, original):
        def watched(rows, shaped, tokens, rejection):
            drafts = list(rows[0].span.drafts)
            if drafts:
                self.expected.append(expected_tokens(shaped, drafts, rows[0].span.request))
            return original(rows, shaped, tokens, rejection)

        return watched


def expected_tokens(shaped: mx.array, drafts: list[int], request) -> float:
    """1 + sum of products of acceptance chances along one round's drafts."""
    places = mx.array(drafts)[:, None]
    p = mx.softmax(shaped[: len(drafts)], axis=-1, precise=True)
    chance = mx.take_along_axis(p, places, axis=1)[:, 0]
    if request.draft_logits is not None:
        q = mx.softmax(request.draft_logits[: len(drafts)].astype(mx.float32), axis=-1)
        chance = mx.minimum(1.0, chance / mx.take_along_axis(q, places, axis=1)[:, 0])
    return 1.0 + float(np.cumprod(np.array(chance)).sum())


def main() -> int:
    """Measure and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--prompts", type=Path, default=Path("tests/data/held_out.jsonl"))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--method", choices=("greedy", "probabilistic"), default="greedy")
    args = parser.parse_args()
    chat = read_chat_format(args.target)
    draws = args.method == "probabilistic"
    loaded = load(args.target, args.dtype, DraftSettings(folder=args.draft, draws=draws))
    runner = build_runner(loaded, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
    found, measured = Predictions(), []
    lines = [line for line in args.prompts.read_text().splitlines() if line.strip()]
    for index, line in enumerate(lines):
        sampling = Sampling(temperature=args.temperature, top_p=args.top_p, seed=index)
        prompt = chat.encode_prompt(json.loads(line))
        answer = run_prompt(runner, prompt, args.new_tokens, chat.end_id, sampling)
        measured += [count + 1 for count in answer.accepted]
    assert len(measured) == len(found.expected)
    got, said = float(np.mean(measured)), float(np.mean(found.expected))
    error = float(np.std(np.array(measured) - np.array(found.expected)) / np.sqrt(len(measured)))
    print(
        f"{args.method} drafts, temperature {args.temperature}, top-p {args.top_p}, {len(lines)} "
        f"prompts, {len(measured)} rounds: measured {got:.3f} tokens a round, predicted {said:.3f} "
        f"({got / said - 1:+.1%}, standard error {error / said:.1%})"
    )
    return int(abs(got / said - 1) > BOUND)


if __name__ == "__main__":
    sys.exit(main())
