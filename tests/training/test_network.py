"""The draft over rows: the two-part attention, and rounds as serving would have run them."""

import mlx.core as mx
import numpy as np
import pytest

from vllm_dspark.checkpoints.draft import load_drafter, read_draft_config
from vllm_dspark.training.attention import BlocksAttend
from vllm_dspark.training.evaluate import greedy_rounds
from vllm_dspark.training.frozen import FrozenTarget
from vllm_dspark.training.settings import DraftShape
from vllm_dspark.training.shape import draft_config, spread_taps
from vllm_dspark.training.shards import Rows

from .conftest import TARGET


def test_the_two_parts_equal_one_masked_softmax() -> None:
    rng = np.random.default_rng(0)
    num_rows, length, slots, kv_heads, groups, size = 2, 9, 3, 2, 2, 4

    def normal(*shape: int) -> mx.array:
        return mx.array(rng.normal(size=shape).astype(np.float32))

    anchors = mx.array([[2, 6], [4, 8]], dtype=mx.int32)
    context = (normal(num_rows * length, kv_heads, size), normal(num_rows * length, kv_heads, size))
    q = normal(4, slots, kv_heads * groups, size)
    k, v = normal(4, slots, kv_heads, size), normal(4, slots, kv_heads, size)
    found = BlocksAttend([context], anchors)(0, q, k, v)
    for block in range(4):
        row, anchor = block // 2, anchors.reshape(-1)[block].item()
        seen = slice(row * length, row * length + anchor)
        keys = mx.concatenate([context[0][seen], k[block]]).swapaxes(0, 1)[None]
        values = mx.concatenate([context[1][seen], v[block]]).swapaxes(0, 1)[None]
        expected = mx.fast.scaled_dot_product_attention(
            q[block].swapaxes(0, 1)[None], keys, values, scale=size**-0.5
        )
        assert mx.allclose(found[block], expected[0].swapaxes(0, 1), atol=1e-5).item()


def test_teacher_forced_rounds_equal_the_recorded_ones(target: FrozenTarget) -> None:
    import json

    folder = TARGET.parent / "deepspec-vanilla-k7"
    cases = json.loads((folder / "golden.json").read_text())["cases"]
    drafter = load_drafter(folder / "draft", read_draft_config(folder / "draft"), mx.float32)
    for case in cases[:4]:
        tokens = case["prompt_ids"] + case["output_ids"]
        mask = np.zeros((1, len(tokens)), np.uint8)
        mask[0, len(case["prompt_ids"]) :] = 1
        rows = Rows(np.array([tokens], np.int32), mask, np.ones(1, bool))
        rounds = greedy_rounds(drafter, target, rows)
        whole = int((rounds.proposed == 7).sum())
        recorded = case["rounds"][:whole]
        assert rounds.accepted[:whole].tolist() == [one["accepted"] for one in recorded]
        logits = np.array([one["confidence_logits"] for one in recorded])
        np.testing.assert_allclose(rounds.confidence_logits[:whole], logits, atol=1e-3)


@pytest.mark.parametrize(
    ("depth", "taps"), [(36, (1, 9, 17, 25, 33)), (40, (1, 10, 19, 28, 37)), (6, (1, 2, 3))]
)
def test_the_default_taps_are_those_of_the_released_drafts(
    depth: int, taps: tuple[int, ...]
) -> None:
    assert spread_taps(depth) == taps


def test_the_defaults_are_the_papers(target: FrozenTarget) -> None:
    config = draft_config(target.config, DraftShape(mask_token_id=3))
    assert (config.num_layers, config.num_slots, config.markov_rank) == (5, 7, 256)
    assert (config.markov_kind, config.confidence_kind) == ("vanilla", "hidden+markov")
