"""Rejection sampling emits exactly the target's distribution, by enumeration."""

import itertools

import mlx.core as mx
import numpy as np
import pytest

from vllm_dspark.verify.sampled import block_chances, residual_weights, verify_standard

VOCAB, DRAFTS = 3, 2


def tables(seed: int) -> tuple[dict, dict]:
    """Random target and draft distributions after every prefix of up to DRAFTS tokens."""
    rng = np.random.default_rng(seed)
    p, q = {}, {}
    for length in range(DRAFTS + 1):
        for prefix in itertools.product(range(VOCAB), repeat=length):
            p[prefix] = rng.dirichlet(np.full(VOCAB, 0.7))
            q[prefix] = rng.dirichlet(np.full(VOCAB, 0.7))
    return p, q


def target_chance(p: dict, sequence: tuple[int, ...]) -> float:
    return float(np.prod([p[sequence[:i]][token] for i, token in enumerate(sequence)]))


def normalised(weights: mx.array) -> np.ndarray:
    values = np.array(weights, dtype=np.float64)
    return values / values.sum()


def emitted_by_block(p: dict, q: dict) -> dict[tuple[int, ...], float]:
    """Chance of every output of DRAFTS + 1 tokens, the target continuing after a short round."""
    chances: dict[tuple[int, ...], float] = {}
    for drafts in itertools.product(range(VOCAB), repeat=DRAFTS):
        drawn = float(np.prod([q[drafts[:i]][token] for i, token in enumerate(drafts)]))
        p_rows = mx.array(np.stack([p[drafts[:i]] for i in range(DRAFTS + 1)]).astype(np.float32))
        q_rows = mx.array(np.stack([q[drafts[:i]] for i in range(DRAFTS)]).astype(np.float32))
        accept, weights = block_chances(p_rows, q_rows, mx.array(drafts))
        accept = [1.0, *np.array(accept, dtype=np.float64)]
        for kept in range(DRAFTS + 1):
            chance = accept[kept] * np.prod([1 - accept[i] for i in range(kept + 1, DRAFTS + 1)])
            if kept == DRAFTS:
                next_chances = p[drafts]
            else:
                next_chances = normalised(
                    residual_weights(p_rows[kept], q_rows[kept], weights[kept])
                )
            for token in range(VOCAB):
                head = (*drafts[:kept], token)
                for tail in itertools.product(range(VOCAB), repeat=DRAFTS - kept):
                    sequence = (*head, *tail)
                    rest = np.prod([
                        p[sequence[:i]][sequence[i]] for i in range(kept + 1, DRAFTS + 1)
                    ])
                    chances[sequence] = chances.get(sequence, 0.0) + (
                        drawn * chance * next_chances[token] * rest
                    )
    return chances


@pytest.mark.parametrize("seed", range(6))
def test_block_verification_emits_the_target_distribution(seed: int) -> None:
    p, q = tables(seed)
    for sequence, chance in emitted_by_block(p, q).items():
        assert chance == pytest.approx(target_chance(p, sequence), abs=2e-6)


@pytest.mark.parametrize("seed", range(3))
def test_a_planted_bias_of_two_percent_is_seen(seed: int) -> None:
    p, q = tables(seed)
    biased = {prefix: row * np.array([1.02, 1.0, 1.0]) for prefix, row in p.items()}
    biased = {prefix: row / row.sum() for prefix, row in biased.items()}
    errors = [
        abs(chance - target_chance(p, sequence))
        for sequence, chance in emitted_by_block(biased, q).items()
    ]
    assert max(errors) > 1e-4  # the exact rule stays below 2e-6


@pytest.mark.parametrize(
    ("target", "drafter"),
    [([0.5, 0.3, 0.2], [0.2, 0.6, 0.2]), ([0.7, 0.3, 0.0], [0.0, 0.5, 0.5])],
)
def test_the_standard_rule_emits_the_target_distribution(
    target: list[float], drafter: list[float]
) -> None:
    p, q = np.array(target), np.array(drafter)
    num = 400
    grid = (np.arange(num) + 0.5) / num
    emitted = np.zeros(VOCAB)
    for token in range(VOCAB):
        if q[token] == 0:
            continue
        rows = {"p": mx.array(np.tile(p, (num, 1)), mx.float32),
                "q": mx.array(np.tile(q, (num, 1)), mx.float32)}
        drafts = mx.full((num,), token, mx.int32)
        # Noise that makes a certain replacement win shows where rejections go.
        kept = np.array(verify_standard(**rows, drafts=drafts, uniforms=mx.array(grid, mx.float32),
                                        noise=mx.zeros((num, VOCAB))))
        share = float((kept == token).mean())
        emitted[token] += q[token] * share
        residual = normalised(residual_weights(rows["p"][0], rows["q"][0]))
        emitted += q[token] * (1 - share) * residual
    assert emitted == pytest.approx(p, abs=0.01)
