"""Drafts that are drawn: the emitted distribution is the target's, greedy text is untouched."""

from collections import Counter
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
import torch
from driver import NUM_BLOCKS, Engine, cases, pair, run_alone

from vllm_dspark.cache.attend import CausalAttend
from vllm_dspark.cache.layout import PageSpan, make_layout
from vllm_dspark.cache.pool import KVPool
from vllm_dspark.ops.reference import mix
from vllm_dspark.runner import choose_drawn, propose
from vllm_dspark.runner.build import Loaded, build_runner
from vllm_dspark.runner.step import Runner
from vllm_dspark.sampling.draw import DRAFT_STREAM, TARGET_STREAM, draw_key
from vllm_dspark.sampling.params import Sampling

NUM_REQUESTS, BATCH = 400, 50
ERROR_RATE = 1e-4
"""Chance that a right sampler fails one of these tests."""
PROMPT = cases()[0][0]


def drawing_runner(rejection: str) -> Runner:
    loaded = pair()
    draft = replace(loaded.draft, draws=True)
    return build_runner(
        replace(loaded, draft=draft), num_blocks=NUM_BLOCKS, block_size=16, rejection=rejection
    )


def options(seed: int) -> Sampling:
    return Sampling(
        temperature=1.0, seed=seed, max_tokens=4, allowed_ids=(377, 375, 378), top_p=0.98
    )


def target_distribution(loaded: Loaded, prefix: list[int]) -> np.ndarray:
    """Chances of the three allowed tokens after a prefix, by a plain forward."""
    pool = KVPool(loaded.config.attention, num_blocks=8, block_size=16, dtype=mx.float32)
    layout = make_layout([PageSpan(np.arange(1, 8, dtype=np.int32), 0, len(prefix))], 16)
    seen = loaded.target.forward(
        mx.array(prefix), mx.arange(len(prefix)), CausalAttend(pool, layout, mix)
    )
    logits = np.array(loaded.target.unembed(seen.hidden[-1]))[[377, 375, 378]].astype(np.float64)
    chances = np.exp(logits - logits.max())
    chances /= chances.sum()
    order = np.argsort(-chances)
    kept = np.cumsum(chances[order]) - chances[order] < 0.98
    chances[order[~kept]] = 0.0
    return chances / chances.sum()


def expected_pairs(loaded: Loaded) -> dict[tuple[int, int], float]:
    """Chances of tokens 2 and 3, which are decided by verification, summed over token 1."""
    ids, chances = (377, 375, 378), {}
    for first, p_first in zip(ids, target_distribution(loaded, PROMPT), strict=True):
        after = target_distribution(loaded, [*PROMPT, first])
        for second, p_second in zip(ids, after, strict=True):
            third_row = target_distribution(loaded, [*PROMPT, first, second])
            for third, p_third in zip(ids, third_row, strict=True):
                key = (second, third)
                chances[key] = chances.get(key, 0.0) + p_first * p_second * p_third
    return chances


def sampled_pairs(runner: Runner) -> tuple[Counter, int]:
    """Tokens 2 and 3 of many requests with different seeds, and how many drafts were kept."""
    pairs, kept = Counter(), 0
    for start in range(0, NUM_REQUESTS, BATCH):
        engine = Engine(runner)
        for seed in range(start, start + BATCH):
            engine.add(f"r{seed}", PROMPT, options(seed))
        for one in engine.run().done.values():
            pairs[tuple(one.tokens[1:3])] += 1
            kept += sum(accepted for accepted, _ in one.accepted)
    return pairs, kept


def p_value(pairs: Counter, expected: dict[tuple[int, int], float], bias: float = 0.0) -> float:
    keys = [key for key, chance in expected.items() if chance > 1e-9]
    chances = np.array([expected[key] for key in keys])
    chances[0] += bias
    seen = np.array([pairs[key] for key in keys])
    assert seen.sum() == NUM_REQUESTS
    wanted = chances / chances.sum() * NUM_REQUESTS
    statistic = float(((seen - wanted) ** 2 / wanted).sum())
    half_df = torch.tensor((len(keys) - 1) / 2)
    return float(torch.special.gammaincc(half_df, torch.tensor(statistic / 2)))


@pytest.mark.parametrize("rejection", ["standard", "block"])
def test_drawn_drafts_emit_the_target_distribution(rejection: str) -> None:
    pairs, kept = sampled_pairs(drawing_runner(rejection))
    assert kept > 0
    assert p_value(pairs, expected_pairs(pair())) > ERROR_RATE


def test_picked_drafts_emit_what_the_target_alone_draws() -> None:
    for seed in range(40):
        alone = run_alone(PROMPT, options(seed))
        assert run_alone(PROMPT, options(seed), drafting=True).tokens == alone.tokens


@pytest.mark.parametrize("rejection", ["standard", "block"])
def test_greedy_requests_beside_drawn_ones_are_untouched(rejection: str) -> None:
    engine = Engine(drawing_runner(rejection))
    for index, (prompt, _) in enumerate(cases()):
        sampled = Sampling(temperature=0.7, seed=index, max_tokens=24)
        greedy = Sampling(temperature=0.0, max_tokens=48)
        engine.add(f"s{index}", prompt, sampled)
        engine.add(f"g{index}", prompt, greedy)
    done = engine.run().done
    for index, (_, output) in enumerate(cases()):
        assert done[f"g{index}"].tokens == output


@pytest.mark.parametrize("rejection", ["standard", "block"])
def test_no_draft_or_accept_decision_uses_a_random_key_twice(
    rejection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that comes again would tie a round to what an earlier one rejected."""
    used: list[tuple[int, int, int]] = []

    def recording(seed: int, position: int, stream: int = TARGET_STREAM) -> tuple[int, int]:
        if stream != TARGET_STREAM:
            used.append((seed, position, stream))
        return draw_key(seed, position, stream)

    for module in (propose, choose_drawn):
        monkeypatch.setattr(module, "draw_key", recording)
    engine = Engine(drawing_runner(rejection))
    engine.add("a", PROMPT, Sampling(temperature=1.3, seed=3, max_tokens=48))
    lengths = iter([7, 6, 5, 0, 7, 1, 6, 2, 7, 3] * 10)
    while engine.live:
        engine.step()
        if "a" in engine.live:  # a planner or the scheduler may cut the drafts to any length
            engine.injected["a"] = engine.live["a"].drafts[: next(lengths)]
    assert {stream for *_, stream in used} == {DRAFT_STREAM, choose_drawn.ACCEPT_STREAM}
    assert len(used) == len(set(used))
