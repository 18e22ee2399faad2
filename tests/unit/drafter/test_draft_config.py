"""What a DraftConfig accepts, derives and refuses."""

from typing import Any

import numpy as np
import pytest

from vllm_dspark.drafter.config import (
    DraftConfig,
    LayerView,
    Quantization,
    resolve_top_k,
)
from vllm_dspark.errors import CheckpointError, SettingsError


def make_config(**changes: Any) -> DraftConfig:
    """A small valid config with some fields changed."""
    fields: dict[str, Any] = {
        "format": "deepspec",
        "hidden_size": 8,
        "target_hidden_size": 8,
        "intermediate_size": 16,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 4,
        "vocab_size": 11,
        "draft_vocab_size": 11,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "num_slots": 4,
        "predicts_from_anchor": True,
        "mask_token_id": 3,
        "tap_states": (1, 3),
        "markov_kind": "vanilla",
        "markov_rank": 2,
        "confidence_kind": "hidden+markov",
        "layers": (LayerView(), LayerView()),
        "max_position_embeddings": 64,
        "num_target_layers": 4,
    }
    return DraftConfig(**{**fields, **changes})


def test_k_slot_drafts_as_many_as_it_has_slots_and_fill_in_one_less() -> None:
    anchor, fill_in = make_config(), make_config(predicts_from_anchor=False)
    assert (anchor.num_drafts, anchor.first_draft_slot) == (4, 0)
    assert (fill_in.num_drafts, fill_in.first_draft_slot) == (3, 1)


def test_a_bidirectional_head_always_runs_its_trained_width() -> None:
    assert [make_config().slots_for(num) for num in (1, 2, 4)] == [4, 4, 4]


def test_a_causal_head_runs_only_the_slots_it_needs() -> None:
    causal = (LayerView(is_causal=True),) * 2
    assert make_config(layers=causal).slots_for(2) == 2
    assert make_config(layers=causal, predicts_from_anchor=False).slots_for(2) == 3


@pytest.mark.parametrize("num_drafts", [0, 5])
def test_drafts_outside_the_trained_width_are_refused(num_drafts: int) -> None:
    with pytest.raises(SettingsError, match="num_speculative_tokens"):
        make_config().slots_for(num_drafts)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"num_slots": 0}, "num_slots is 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"num_heads": 3}, "3 heads cannot share 2"),
        ({"head_dim": 5}, "head_dim is 5"),
        ({"layers": (LayerView(),)}, "1 layer types are given for 2"),
        ({"mask_token_id": 11}, "mask_token_id is 11"),
        ({"mask_token_id": -1}, "mask_token_id is -1"),
        ({"tap_states": ()}, "tapped states"),
        ({"tap_states": (3, 1)}, "strictly increasing"),
        ({"tap_states": (1, 1)}, "strictly increasing"),
        ({"tap_states": (-1, 1)}, "strictly increasing"),
        ({"tap_states": (1, 6)}, "tapped state 6"),
        ({"predicts_from_anchor": False, "num_slots": 1}, "fill-in"),
        ({"format": "gguf"}, "format is 'gguf'"),
        ({"markov_kind": "lstm"}, "markov_head_type is 'lstm'"),
        ({"markov_rank": 0}, "markov_rank is 0"),
        ({"markov_kind": "none"}, "markov_rank is 2"),
        ({"confidence_kind": "maybe"}, "confidence head is 'maybe'"),
        ({"markov_kind": "none", "markov_rank": 0}, "reads a Markov embedding"),
        ({"top_k": 0}, "dspark_draft_topk is 0"),
        ({"top_k": 12}, "dspark_draft_topk is 12"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "spiral"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "incomplete"),
    ],
)
def test_a_broken_config_is_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        make_config(**changes)


def test_all_problems_are_listed_at_once() -> None:
    with pytest.raises(CheckpointError, match="mask_token_id.*tapped states"):
        make_config(mask_token_id=99, tap_states=())


def test_a_window_and_a_packing_must_make_sense() -> None:
    with pytest.raises(CheckpointError, match="sliding window is 0"):
        LayerView(window=0)
    with pytest.raises(CheckpointError, match="7 bits"):
        Quantization(group_size=64, bits=7)


def test_rows_that_pad_the_vocabulary_are_not_logits() -> None:
    padded = make_config(draft_vocab_size=16)
    assert (padded.num_draft_logits, padded.is_reduced_vocab) == (11, False)


@pytest.mark.parametrize("value", [8, np.int64(8), np.uint8(8)])
def test_top_k_takes_every_integral_type(value: Any) -> None:
    result = resolve_top_k(value, None, 100)
    assert result == 8
    assert type(result) is int


@pytest.mark.parametrize("value", [True, False, np.bool_(True), 8.0, "8", 0, -1, 101, np.int64(0)])
def test_top_k_refuses_everything_else(value: Any) -> None:
    with pytest.raises(SettingsError, match="dspark_draft_topk"):
        resolve_top_k(value, None, 100)


def test_an_explicit_top_k_wins_and_the_whole_vocabulary_is_the_dense_head() -> None:
    assert resolve_top_k(None, None, 100) is None
    assert resolve_top_k(None, 8, 100) == 8
    assert resolve_top_k(4, 8, 100) == 4
    assert resolve_top_k(100, 8, 100) is None
