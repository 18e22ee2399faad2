"""From hidden states to drafts: layouts, candidates, vocabularies, training's view."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from test_draft_config import make_config

from vllm_dspark.checkpoints.build import new_drafter
from vllm_dspark.drafter.config import LayerView
from vllm_dspark.drafter.drafter import Drafter
from vllm_dspark.drafter.markov import MarkovHead
from vllm_dspark.nn.linear import Embedding, Linear

HEADS: list[dict[str, Any]] = [
    {"markov_kind": "vanilla"},
    {"markov_kind": "gated"},
    {"markov_kind": "rnn"},
    {"markov_kind": "none", "markov_rank": 0, "confidence_kind": "hidden"},
]


def tiny_drafter(**changes: Any) -> Drafter:
    """A drafter with large random weights, so that its heads matter."""
    drafter = new_drafter(make_config(**changes), seed=1)
    drafter.apply(lambda array: mx.random.normal(array.shape) * 0.5)
    return drafter


def worked_example(**changes: Any) -> tuple[Drafter, mx.array]:
    """The head and base logits of the specification's example: V 4, rank 1, two slots."""
    config = make_config(
        vocab_size=4, draft_vocab_size=4, num_slots=2, markov_rank=1,
        confidence_kind="none", **changes,
    )  # fmt: skip
    drafter = tiny_drafter()
    head = MarkovHead(
        Embedding(mx.array([[1.0], [2.0], [0.0], [-1.0]])),
        Linear(mx.array([[0.5], [-1.0], [0.0], [2.0]])),
        rank=1,
    )
    base = mx.array([[[3, 2.5, 0, -0.5], [1, 0, 1.2, 0]]])
    return Drafter(config, drafter.backbone, markov_head=head), base


def test_the_dense_walk_of_the_worked_example() -> None:
    drafter, base = worked_example()
    draft = drafter.walk(base, mx.zeros((1, 2, 8)), mx.array([1]), keep_logits=True)
    assert draft.tokens.tolist() == [[0, 3]]
    expected = mx.array([[[4, 0.5, 0, 3.5], [1.5, -1, 1.2, 2]]])
    assert mx.allclose(draft.corrected_logits, expected)
    assert draft.confidence_logits is None


def test_the_top_two_walk_of_the_worked_example_loses_the_promoted_token() -> None:
    drafter, base = worked_example()
    draft = drafter.walk(base, mx.zeros((1, 2, 8)), mx.array([1]), top_k=2, keep_logits=True)
    assert draft.tokens.tolist() == [[0, 0]]
    low = -mx.inf
    expected = mx.array([[[4, 0.5, low, low], [1.5, low, 1.2, low]]])
    assert mx.allclose(draft.corrected_logits, expected)


def test_logits_are_only_kept_when_asked_for() -> None:
    drafter, base = worked_example()
    draft = drafter.walk(base, mx.zeros((1, 2, 8)), mx.array([1]), top_k=2)
    assert draft.base_logits is None
    assert draft.corrected_logits is None


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("top_k", [1, 3, 10, 11])
def test_a_top_k_walk_is_the_dense_walk_over_masked_base_logits(
    heads: dict[str, Any], top_k: int
) -> None:
    drafter = tiny_drafter(**heads)
    base, rows = mx.round(mx.random.normal((3, 4, 11)) * 2), mx.random.normal((3, 4, 8))
    order = mx.argsort(-base + mx.arange(11) * 1e-4, axis=-1)
    outside = mx.put_along_axis(
        mx.zeros(base.shape), order[..., top_k:], mx.array(-mx.inf), axis=-1
    )
    anchors = mx.array([0, 5, 10])
    top = drafter.walk(base, rows, anchors, top_k=top_k)
    dense = drafter.walk(base + outside, rows, anchors)
    assert top.tokens.tolist() == dense.tokens.tolist()
    assert mx.allclose(top.confidence_logits, dense.confidence_logits)


def test_equal_corrected_logits_give_the_lowest_id_in_both_walks() -> None:
    drafter, _ = worked_example()
    drafter.markov_head.markov_w2.weight = mx.zeros((4, 1))
    base = mx.array([[[1.0, 2, 2, 2], [0, 0, 0, 0]]])
    for top_k in (None, 1, 2, 3):
        draft = drafter.walk(base, mx.zeros((1, 2, 8)), mx.array([1]), top_k=top_k)
        assert draft.tokens.tolist() == [[1, 0]]


@pytest.mark.parametrize("top_k", [None, 2, 4])
def test_a_reduced_vocabulary_emits_and_feeds_back_target_ids(top_k: int | None) -> None:
    # Kept tokens {2, 3, 7, 9}: offsets 2, 2, 5, 6.
    config = make_config(
        draft_vocab_size=4, num_slots=2, markov_rank=1, confidence_kind="hidden+markov"
    )
    drafter = tiny_drafter()
    w1 = mx.zeros((11, 1))
    w1[7] = 1.0
    head = MarkovHead(Embedding(w1), Linear(mx.array([[9.0], [0], [0], [0]])), rank=1)
    drafter = Drafter(
        config,
        drafter.backbone,
        markov_head=head,
        confidence_head=drafter.confidence_head,
        draft_to_target=mx.array([2, 2, 5, 6], dtype=mx.int32),
    )
    drafter.confidence_head.proj = Linear(mx.array([[0.0] * 8 + [1.0]]), mx.array([0.0]))
    base = mx.array([[[0.1, 0.2, 0.6, 0.1], [3.0, 5, 0, 0]]])
    draft = drafter.walk(base, mx.zeros((1, 2, 8)), mx.array([0]), top_k=top_k)
    assert draft.tokens.tolist() == [[7, 2]]  # row 7 of W1 promotes draft id 0
    assert draft.confidence_logits.tolist() == [[0, 1]]


def test_fill_in_reads_the_rows_after_the_anchor() -> None:
    hidden = mx.arange(4)[None, :, None] * mx.ones((1, 4, 8))
    anchor, fill_in = tiny_drafter(), tiny_drafter(predicts_from_anchor=False)
    assert anchor.draft_rows(hidden, 2)[0, :, 0].tolist() == [0, 1]
    assert anchor.draft_rows(hidden)[0, :, 0].tolist() == [0, 1, 2, 3]
    assert fill_in.draft_rows(hidden, 2)[0, :, 0].tolist() == [1, 2]
    assert fill_in.draft_rows(hidden)[0, :, 0].tolist() == [1, 2, 3]


def own_block_attend(is_causal: bool) -> Any:
    """Attention of block slots to their own block only."""

    def attend(_: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        out = mx.fast.scaled_dot_product_attention(
            *(x.swapaxes(1, 2) for x in (q, k, v)), scale=0.5, mask="causal" if is_causal else None
        )
        return out.swapaxes(1, 2)

    return attend


def test_a_causal_block_run_narrower_gives_the_same_slots() -> None:
    drafter = tiny_drafter(layers=(LayerView(is_causal=True),) * 2)
    table = Embedding(mx.random.normal((11, 8)))
    at = (mx.array([5, 2]), mx.array([9, 3]), own_block_attend(is_causal=True))
    full = drafter.block(table.lookup, *at)
    narrow = drafter.block(table.lookup, *at, num_slots=drafter.config.slots_for(2))
    assert narrow.shape == (2, 2, 8)
    assert mx.allclose(narrow, full[:, :2], atol=1e-5)


def test_a_block_embeds_the_anchor_then_masks_at_consecutive_positions() -> None:
    drafter = tiny_drafter()
    seen = []

    def embed(ids: mx.array) -> mx.array:
        seen.append(ids.tolist())
        return mx.zeros((*ids.shape, 8))

    drafter.block(embed, mx.array([5]), mx.array([9]), own_block_attend(is_causal=False))
    assert seen == [[[5, 3, 3, 3]]]


def test_context_keys_depend_on_the_absolute_position_and_values_do_not() -> None:
    drafter = tiny_drafter()
    fused = mx.random.normal((2, 8))
    (keys, values), _ = drafter.context_kv(fused, mx.array([4, 5]))
    (later_keys, later_values), _ = drafter.context_kv(fused, mx.array([6, 7]))
    assert keys.shape == values.shape == (2, 2, 4)
    assert mx.array_equal(values, later_values)
    assert not mx.allclose(keys, later_keys)


def test_the_target_tables_are_used_unless_the_draft_has_its_own() -> None:
    drafter = tiny_drafter()
    shared = drafter.base_logits(mx.ones((1, 8)), lambda rows: rows * 0 + 7)
    assert shared.tolist() == [[7] * 8]
    drafter.lm_head = Linear(mx.eye(8))
    assert drafter.base_logits(mx.ones((1, 8)), lambda rows: rows * 0).tolist() == [[1] * 8]


@pytest.mark.parametrize("heads", HEADS)
def test_teacher_forcing_with_the_drafted_tokens_gives_the_walk(heads: dict[str, Any]) -> None:
    drafter = tiny_drafter(**heads)
    base, rows = mx.random.normal((2, 4, 11)), mx.random.normal((2, 4, 8))
    anchors = mx.array([3, 8])
    draft = drafter.walk(base, rows, anchors, keep_logits=True)
    previous = mx.concatenate([anchors[:, None], draft.tokens[:, :-1]], axis=1)
    bias, confidence_logits = drafter.teacher_forced(rows, previous)
    corrected = base if bias is None else base + bias
    assert mx.allclose(corrected, draft.corrected_logits, atol=1e-5)
    assert mx.allclose(confidence_logits, draft.confidence_logits, atol=1e-5)


@pytest.mark.parametrize("heads", HEADS)
def test_every_trainable_weight_gets_a_gradient(heads: dict[str, Any]) -> None:
    drafter = tiny_drafter(**heads)
    table = Embedding(mx.random.normal((11, 8)))
    taps = [mx.random.normal((5, 8)) for _ in range(2)]
    anchors, positions = mx.array([3, 8]), mx.array([5, 5])

    def loss(model: Drafter) -> mx.array:
        context = model.context_kv(model.fuse(taps), mx.arange(5))

        def attend(layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
            past = [mx.broadcast_to(part, (2, *part.shape)) for part in context[layer]]
            keys = mx.concatenate([past[0], k], axis=1).swapaxes(1, 2)
            values = mx.concatenate([past[1], v], axis=1).swapaxes(1, 2)
            q = q.swapaxes(1, 2)
            return mx.fast.scaled_dot_product_attention(q, keys, values, scale=0.5).swapaxes(1, 2)

        hidden = model.block(table.lookup, anchors, positions, attend)
        rows = model.draft_rows(hidden)
        bias, confidence_logits = model.teacher_forced(rows, mx.array([[3, 1, 2, 4]] * 2))
        logits = model.base_logits(rows, table)
        logits = logits if bias is None else logits + bias
        return (logits.square().sum(axis=-1) + confidence_logits).sum()

    _, gradients = nn.value_and_grad(drafter, loss)(drafter)
    for name, gradient in tree_flatten(gradients):
        assert mx.abs(gradient).max().item() > 0, name


@pytest.mark.parametrize("has_bias", [False, True])
def test_joining_the_layers_context_changes_no_number(has_bias: bool) -> None:
    drafter = tiny_drafter(attention_bias=has_bias)
    backbone = drafter.backbone
    for layer in backbone.layers:
        weight = layer.self_attn.k_norm.weight
        layer.self_attn.k_norm.weight = mx.random.normal(weight.shape)
    taps = [mx.random.normal((5, size)) for size in [drafter.config.target_hidden_size] * 2]
    fused, positions = drafter.fuse(taps), mx.arange(3, 8)
    apart = drafter.context_kv(fused, positions)
    assert not backbone.joined_arrays
    backbone.join_context()
    made = [array for _, array in tree_flatten(backbone.joined_arrays)]
    assert len(made) == 2 + has_bias  # all must be evaluated by the thread that made them
    together = drafter.context_kv(drafter.fuse(taps), positions)
    assert len(together) == len(apart) == len(backbone.layers) > 1
    for one, other in zip(apart, together, strict=True):
        for left, right in zip(one, other, strict=True):
            assert left.shape == right.shape
            assert mx.allclose(left, right, atol=1e-5)
    backbone.layers[0].self_attn.qkv_proj.weight *= 2
    assert mx.allclose(drafter.context_kv(fused, positions)[0][1], apart[0][1], atol=1e-5)
