"""Each Markov head against numbers worked out by hand, and the candidates' tie order."""

import math

import mlx.core as mx
import pytest

from vllm_dspark.drafter.confidence import ConfidenceHead
from vllm_dspark.drafter.markov import (
    GatedMarkovHead,
    MarkovHead,
    RnnMarkovHead,
    top_candidates,
)
from vllm_dspark.nn.linear import Embedding, Linear

W1 = mx.array([[1.0], [2.0], [0.0], [-1.0]])
W2 = mx.array([[0.5], [-1.0], [0.0], [2.0]])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_vanilla_bias_is_the_worked_example() -> None:
    head = MarkovHead(Embedding(W1), Linear(W2), rank=1)
    e = head.embed(mx.array([1, 0]))
    low_rank, _ = head.step(e, mx.zeros((2, 3)), head.start(e))
    assert head.bias(low_rank).tolist() == [[1, -2, 0, 4], [0.5, -1, 0, 2]]


def test_gated_bias_scales_the_embedding_by_a_gate_that_reads_hidden_first() -> None:
    gate = Linear(mx.array([[10.0, 0.0, 1.0]]), mx.array([0.5]))  # 10 h0 + 1 e + 0.5
    head = GatedMarkovHead(Embedding(W1), Linear(W2), 1, gate)
    e = head.embed(mx.array([1]))
    low_rank, _ = head.step(e, mx.array([[-0.25, 7.0]]), head.start(e))
    assert low_rank.item() == pytest.approx(2 * sigmoid(-2.5 + 2 + 0.5))


def test_rnn_output_uses_the_old_state_and_the_state_is_gated() -> None:
    # rows: keep, fresh, out; columns: state, e, hidden
    joint = Linear(mx.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.5, 0.0]]), mx.zeros((3,)))
    head = RnnMarkovHead(Embedding(W1), Linear(W2), 1, joint)
    state = head.start(head.embed(mx.array([1])))
    low_rank, state = head.step(mx.array([[2.0]]), mx.array([[0.3]]), state)
    after_first = (1 - sigmoid(2)) * math.tanh(0.3)
    assert low_rank.item() == pytest.approx(math.tanh(1.0), abs=1e-6)
    assert state.item() == pytest.approx(after_first, abs=1e-6)
    low_rank, state = head.step(mx.array([[-1.0]]), mx.array([[0.7]]), state)
    assert low_rank.item() == pytest.approx(math.tanh(after_first - 0.5), abs=1e-6)
    keep = sigmoid(-1)
    assert state.item() == pytest.approx(keep * after_first + (1 - keep) * math.tanh(0.7), abs=1e-6)


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_all_slots_at_once_equal_the_slots_one_by_one(kind: str) -> None:
    rank, hidden_size = 3, 5
    w1, w2 = Embedding(mx.random.normal((7, rank))), Linear(mx.random.normal((7, rank)))
    gate = Linear(mx.random.normal((rank, hidden_size + rank)), mx.random.normal((rank,)))
    joint = Linear(
        mx.random.normal((3 * rank, 2 * rank + hidden_size)), mx.random.normal((3 * rank,))
    )
    head = {
        "vanilla": lambda: MarkovHead(w1, w2, rank),
        "gated": lambda: GatedMarkovHead(w1, w2, rank, gate),
        "rnn": lambda: RnnMarkovHead(w1, w2, rank, joint),
    }[kind]()
    e = head.embed(mx.array([[1, 5, 0, 2], [6, 6, 3, 1]]))
    hidden = mx.random.normal((2, 4, hidden_size))
    state, slots = head.start(e[:, 0]), []
    for slot in range(4):
        low_rank, state = head.step(e[:, slot], hidden[:, slot], state)
        slots.append(low_rank)
    assert mx.allclose(head.all_slots(e, hidden), mx.stack(slots, axis=1), atol=1e-6)


def test_rows_of_a_quantised_w2_are_those_of_the_unpacked_one() -> None:
    w2 = Linear(mx.random.normal((9, 64))).quantized(group_size=64, bits=8)
    head = MarkovHead(Embedding(mx.random.normal((9, 64))), w2, rank=64)
    unpacked = mx.dequantize(w2.weight, w2.scales, w2.biases, group_size=64, bits=8)
    assert mx.array_equal(head.candidate_rows(mx.array([[8, 2]])), unpacked[mx.array([[8, 2]])])


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_candidates_are_the_largest_and_of_equal_ones_the_lowest_ids(dtype: mx.Dtype) -> None:
    logits = mx.array([[1.0, 5.0, -2.0, 5.0, 1.0, 5.0], [-1.0, -3.0, -1.0, -1.0, -9.0, 0.0]])
    values, ids = top_candidates(logits.astype(dtype), 2)
    assert ids.tolist() == [[1, 3], [0, 5]]
    assert values.tolist() == [[5, 5], [-1, 0]]
    _, ids = top_candidates(logits.astype(dtype), 4)
    assert ids.tolist() == [[0, 1, 3, 5], [0, 2, 3, 5]]


def test_candidates_treat_negative_zero_as_zero_and_take_infinities() -> None:
    _, ids = top_candidates(mx.array([[-0.0, 0.0, -mx.inf, mx.inf]]), 2)
    assert ids.tolist() == [[0, 3]]


@pytest.mark.parametrize(("size", "count"), [(200, 8), (200, 200), (5000, 8), (4096, 1), (2500, 9)])
def test_candidates_equal_a_stable_sort_on_many_ties(size: int, count: int) -> None:
    logits = mx.round(mx.random.normal((4, 3, size)) * 3)
    values, ids = top_candidates(logits, count)
    expected = [
        sorted(sorted(range(size), key=lambda i, row=row: (-row[i], i))[:count])
        for row in logits.reshape(-1, size).tolist()
    ]
    assert ids.reshape(-1, count).tolist() == expected
    assert mx.array_equal(values, mx.take_along_axis(logits, ids, axis=-1))


def test_candidates_of_a_long_row_of_minus_infinity_are_the_first_ids() -> None:
    _, ids = top_candidates(mx.full((1, 1001), -mx.inf), 3)
    assert ids.tolist() == [[0, 1, 2]]


def test_confidence_reads_hidden_then_embedding_in_float32() -> None:
    proj = Linear(mx.array([[1.0, 10.0, 100.0]]), mx.array([0.5]))
    head = ConfidenceHead(proj, reads_markov=True)
    hidden, e = mx.array([[1.0, 2.0]], dtype=mx.bfloat16), mx.array([[3.0]], dtype=mx.bfloat16)
    logits = head(hidden, e)
    assert logits.dtype == mx.float32
    assert logits.tolist() == [321.5]


def test_confidence_without_markov_reads_only_hidden() -> None:
    head = ConfidenceHead(Linear(mx.array([[1.0, 10.0]]), mx.array([0.0])), reads_markov=False)
    assert head(mx.array([[1.0, 2.0]]), None).tolist() == [21]
