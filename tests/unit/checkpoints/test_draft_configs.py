"""config.json of each format -> DraftConfig, and everything that is refused on the way."""

import json
from pathlib import Path
from typing import Any

import pytest
from draft_folders import (
    LAYERS,
    deepspec_config,
    proposals,
    speculators_config,
    zlab_config,
)

from vllm_dspark.checkpoints.draft import (
    TargetFacts,
    check_fits_target,
    parse_draft_config,
    read_draft_config,
    target_facts,
)
from vllm_dspark.drafter.config import LayerView
from vllm_dspark.errors import CheckpointError, DSparkError, UnsupportedError
from vllm_dspark.models.config import TargetConfig

FULL = LayerView()


def test_deepspec_predicts_from_the_anchor_and_taps_layer_outputs() -> None:
    config = parse_draft_config(deepspec_config())
    assert config.format == "deepspec"
    assert config.predicts_from_anchor
    assert config.num_drafts == 4
    assert config.tap_states == (2, 4)
    assert config.layers == (FULL, FULL)
    assert (config.markov_kind, config.markov_rank) == ("vanilla", 8)
    assert config.confidence_kind == "hidden+markov"


def test_deepspec_taps_of_the_embedding_and_of_the_last_layer() -> None:
    config = parse_draft_config(deepspec_config(target_layer_ids=[-1, 4, 5]))
    assert config.tap_states == (0, 5, 7)  # 7 = after the final norm of 6 layers


def test_deepspec_without_markov_and_confidence_is_its_dflash_baseline() -> None:
    config = parse_draft_config(
        deepspec_config(
            markov_rank=0, enable_confidence_head=False,
            markov_head_type=..., confidence_head_with_markov=...,
        )
    )  # fmt: skip
    assert (config.markov_kind, config.confidence_kind) == ("none", "none")
    assert config.predicts_from_anchor


def test_zlab_dflash_fills_in_and_has_no_heads() -> None:
    config = parse_draft_config(zlab_config())
    assert config.format == "dflash"
    assert not config.predicts_from_anchor
    assert (config.num_slots, config.num_drafts) == (5, 4)
    assert config.tap_states == (2, 4)
    assert (config.markov_kind, config.confidence_kind) == ("none", "none")


def test_a_deepspec_class_wins_over_a_dflash_section() -> None:
    own = {"causal": True, "target_layer_ids": [0, 2], "mask_token_id": 1}
    config = parse_draft_config(deepspec_config(dflash_config=own))
    assert config.format == "deepspec"
    assert config.tap_states == (2, 4)
    assert config.is_causal


def test_speculators_taps_are_states() -> None:
    config = parse_draft_config(speculators_config(aux_hidden_state_layer_ids=[0, 2, 6]))
    assert config.tap_states == (0, 2, 6)


def test_speculators_dflash_fills_in_unless_it_says_otherwise() -> None:
    keys = {"speculators_model_type": "dflash", "sample_from_anchor": ...}
    without = parse_draft_config(speculators_config(**keys, speculators_config=...))
    assert not without.predicts_from_anchor
    assert (without.markov_kind, without.confidence_kind) == ("none", "none")
    by_width = parse_draft_config(speculators_config(**keys, speculators_config=proposals(3)))
    assert by_width.num_drafts == 3


@pytest.mark.parametrize(
    ("num_drafts", "flag", "expected"),
    [
        (4, ..., True),
        (3, ..., False),
        (4, False, True),  # the widths win over the flag
        (3, True, False),
        (2, True, True),
        (2, False, False),
        (None, True, True),
        (None, False, False),
        (None, ..., False),  # legacy
    ],
)
def test_speculators_slot_layout(num_drafts: int | None, flag: Any, expected: bool) -> None:
    own = ... if num_drafts is None else proposals(num_drafts)
    config = speculators_config(speculators_config=own, sample_from_anchor=flag)
    assert parse_draft_config(config).predicts_from_anchor is expected


def test_speculators_widths_that_fit_no_layout_need_the_flag() -> None:
    config = speculators_config(speculators_config=proposals(2), sample_from_anchor=...)
    with pytest.raises(CheckpointError, match="sample_from_anchor"):
        parse_draft_config(config)


def test_speculators_defaults_are_those_of_the_library() -> None:
    absent = ("markov_rank", "markov_head_type", "enable_confidence_head",
              "confidence_head_with_markov", "draft_vocab_size", "block_size")  # fmt: skip
    config = parse_draft_config(
        speculators_config(
            {"vocab_size": 50_000}, speculators_config=..., **dict.fromkeys(absent, ...)
        )
    )
    assert (config.markov_rank, config.markov_kind) == (256, "vanilla")
    assert config.confidence_kind == "hidden+markov"
    assert (config.draft_vocab_size, config.num_slots) == (32_000, 8)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (FULL, LayerView(24, True))),
        ({"sliding_window_non_causal": True}, (FULL, LayerView(24, False))),
        ({"is_causal": True}, (LayerView(None, True), LayerView(24, True))),
        ({"is_causal": False}, (FULL, LayerView(24, False))),
    ],
)
def test_sliding_layers_are_causal_unless_told_otherwise(
    changes: dict[str, Any], expected: tuple[LayerView, ...]
) -> None:
    layers = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 24}
    assert parse_draft_config(speculators_config(layers, **changes)).layers == expected


def test_layers_without_types_follow_the_window_switch() -> None:
    layers = {"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 1}
    assert parse_draft_config(speculators_config(layers)).layers == (FULL, LayerView(24, True))
    layers["use_sliding_window"] = False
    assert parse_draft_config(speculators_config(layers)).layers == (FULL, FULL)


@pytest.mark.parametrize("window", [None, 24])
def test_a_sliding_layer_without_its_window_is_refused(window: int | None) -> None:
    layers = {"layer_types": ["sliding_attention"] * 2, "sliding_window": window}
    if window:
        layers["use_sliding_window"] = False
    with pytest.raises(CheckpointError, match="sliding_window"):
        parse_draft_config(speculators_config(layers))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 5e5},
        {"rope_theta": ..., "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        {"rope_theta": 500_000, "rope_parameters": {"rope_theta": 5e5}},
        {"rope_theta": 5e5, "rope_scaling": None},
    ],
)
def test_theta_is_read_from_any_of_its_places(rope: dict[str, Any]) -> None:
    config = parse_draft_config(deepspec_config(**rope))
    assert config.rope_theta == 5e5
    assert config.rope_scaling is None


def test_rope_scaling_is_kept() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert parse_draft_config(deepspec_config(rope_scaling=yarn)).rope_scaling == yarn


DEEPSPEC_FAULTS: list[tuple[dict[str, Any], str]] = [
    *(({key: ...}, key) for key in (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "vocab_size", "rope_theta", "num_target_layers", "target_layer_ids", "block_size",
        "mask_token_id", "markov_rank", "markov_head_type", "enable_confidence_head",
        "confidence_head_with_markov",
    )),
    *(({key: "7"}, key) for key in (
        "hidden_size", "block_size", "mask_token_id", "markov_rank", "rms_norm_eps",
        "target_layer_ids", "enable_confidence_head", "attention_bias", "sliding_window",
    )),
    ({"block_size": True}, "block_size"),
    ({"block_size": 0}, "num_slots is 0"),
    ({"block_size": 7.0}, "block_size"),
    ({"mask_token_id": 40}, "mask_token_id is 40"),
    ({"target_layer_ids": []}, "tapped states"),
    ({"target_layer_ids": [3, 1]}, "strictly increasing"),
    ({"target_layer_ids": [1, 6]}, "layers 0 to 5"),
    ({"target_layer_ids": [-2, 1]}, "layers 0 to 5"),
    ({"target_layer_ids": [1.0]}, "target_layer_ids"),
    ({"markov_rank": -1}, "markov_rank is -1"),
    ({"markov_head_type": "lstm"}, "lstm"),
    ({"layer_types": ["full_attention"]}, "1 layer types"),
    ({"layer_types": ["chunked_attention"] * 2}, "chunked_attention"),
    ({"tie_word_embeddings": True}, "tie_word_embeddings"),
    ({"num_key_value_heads": 3}, "cannot share"),
    ({"model_type": "gemma4_text"}, "gemma4_text"),
    ({"architectures": ["Gemma4DSparkModel"]}, "Gemma4DSparkModel"),
    ({"hidden_act": "gelu"}, "gelu"),
    ({"partial_rotary_factor": 0.5}, "part of a head"),
    ({"rope_is_neox_style": False}, "interleaved"),
    ({"rope_parameters": {"rope_theta": 1.0}}, "disagree"),
    ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}}, "part of a head"),
    ({"rope_scaling": {"rope_type": "spiral"}}, "spiral"),
    ({"rope_scaling": {"rope_type": "linear"}}, "incomplete"),
    ({"rope_scaling": 4}, "rope_scaling"),
    ({"dspark_draft_topk": 41}, "dspark_draft_topk is 41"),
    ({"dspark_draft_topk": 0}, "dspark_draft_topk is 0"),
    ({"dspark_draft_topk": True}, "dspark_draft_topk"),
    ({"quantization": {"bits": 4}}, "group_size"),
    ({"quantization": {"bits": 7, "group_size": 64}}, "7 bits"),
    ({"quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}}, "mxfp4"),
    ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
    ({"target_layer_ids": ..., "architectures": ["Qwen3ForCausalLM"]}, "none of DeepSpec's"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "words"), DEEPSPEC_FAULTS)
def test_a_broken_deepspec_config_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DSparkError, match=words):
        parse_draft_config(deepspec_config(**changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speculators_model_type": "eagle3"}, "eagle3"),
        ({"transformer_layer_config": ...}, "transformer_layer_config"),
        ({"mask_token_id": ...}, "mask_token_id"),
        ({"aux_hidden_state_layer_ids": ...}, "aux_hidden_state_layer_ids"),
        ({"aux_hidden_state_layer_ids": [2, True]}, "aux_hidden_state_layer_ids"),
        ({"speculators_config": {"proposal_methods": 4}}, "proposal_methods"),
        ({"sample_from_anchor": "yes", "speculators_config": ...}, "sample_from_anchor"),
        ({"draft_vocab_size": -1}, "draft_vocab_size"),
    ],
)
def test_a_broken_speculators_config_is_refused_by_name(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(DSparkError, match=words):
        parse_draft_config(speculators_config(**changes))


def test_a_broken_nested_key_says_where_it_stands() -> None:
    with pytest.raises(CheckpointError, match="transformer_layer_config has no 'hidden_size'"):
        parse_draft_config(speculators_config({"hidden_size": ...}))


@pytest.mark.parametrize("own", [{"mask_token_id": 3}, {"target_layer_ids": [1, 3]}])
def test_a_dflash_config_without_taps_or_mask_is_refused(own: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="dflash_config has no"):
        parse_draft_config(zlab_config(dflash_config=own))


def test_a_repackaging_with_a_projector_is_refused() -> None:
    own = {"mask_token_id": 3, "target_layer_ids": [1, 3], "projector_type": "dspark"}
    with pytest.raises(UnsupportedError, match="projector_type"):
        parse_draft_config(zlab_config(dflash_config=own))


def test_a_folder_without_config_or_with_a_broken_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        read_draft_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        read_draft_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps([LAYERS]))
    with pytest.raises(CheckpointError, match="expected an object"):
        read_draft_config(tmp_path)


FACTS = {"hidden_size": 64, "num_layers": 6, "vocab_size": 40, "head_dim": 16, "num_kv_heads": 2}


def test_the_facts_of_a_target_are_read_from_its_config() -> None:
    target = TargetConfig(
        model_type="qwen3", hidden_size=64, intermediate_size=128, num_layers=6, num_heads=4,
        num_kv_heads=2, head_dim=16, vocab_size=40, rms_norm_eps=1e-6, rope_theta=1e4,
    )  # fmt: skip
    assert target_facts(target) == TargetFacts(64, 6, 40, head_dim=16)


def test_a_draft_fits_its_own_target() -> None:
    check_fits_target(parse_draft_config(deepspec_config()), TargetFacts(**FACTS))
    check_fits_target(parse_draft_config(speculators_config()), TargetFacts(64, 6, 40))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("hidden_size", 96, "hidden size is 64 in the draft and 96"),
        ("vocab_size", 41, "vocabulary is 40 in the draft and 41"),
        ("num_layers", 7, "number of target layers is 6"),
        ("head_dim", 32, "head dimension is 16"),
        ("num_kv_heads", 4, "key/value heads is 2"),
    ],
)
def test_a_draft_for_another_target_is_refused(key: str, value: int, words: str) -> None:
    config = parse_draft_config(deepspec_config())
    with pytest.raises(CheckpointError, match=words):
        check_fits_target(config, TargetFacts(**{**FACTS, key: value}))


def test_a_tap_past_the_target_is_refused() -> None:
    config = parse_draft_config(speculators_config(aux_hidden_state_layer_ids=[2, 6]))
    check_fits_target(config, TargetFacts(64, 6, 40))
    with pytest.raises(CheckpointError, match="taps state 6 and the target has states 0 to 5"):
        check_fits_target(config, TargetFacts(64, 5, 40))
