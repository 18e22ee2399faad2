"""Speculators' config.json (dspark and dflash) as a DraftConfig."""

from collections.abc import Mapping
from typing import Any

from vllm_dspark.checkpoints.fields import Fields
from vllm_dspark.checkpoints.layers import heads, layer_sizes, layer_views, stored_quantization
from vllm_dspark.drafter.config import DraftConfig
from vllm_dspark.errors import CheckpointError, UnsupportedError

DEFAULT_BLOCK_SIZE = 8
DEFAULT_DRAFT_VOCAB_SIZE = 32_000


def is_speculators(raw: Mapping[str, Any]) -> bool:
    """Whether config.json is Speculators'."""
    return "speculators_model_type" in raw


def parse_speculators(raw: Mapping[str, Any]) -> DraftConfig:
    """Read a Speculators config.json.

    Raises:
        CheckpointError: a key is missing, has a wrong type or contradicts another.
        UnsupportedError: another algorithm, or layers that are not implemented.
    """
    fields = Fields(raw, "config.json")
    kind = fields.text("speculators_model_type")
    if kind not in ("dspark", "dflash"):
        raise UnsupportedError(
            f"speculators_model_type is {kind!r}; 'dspark' and 'dflash' are implemented: "
            "use such a draft"
        )
    layer_fields = fields.object("transformer_layer_config")
    sizes = layer_sizes(layer_fields)
    quantization, overrides = stored_quantization(fields)
    block_size = fields.integer("block_size", DEFAULT_BLOCK_SIZE)
    return DraftConfig(
        format="speculators",
        **sizes,
        **heads(fields, markov=kind == "dspark", defaults=True),
        target_hidden_size=fields.integer("target_hidden_size", sizes["hidden_size"]),
        draft_vocab_size=fields.integer("draft_vocab_size", DEFAULT_DRAFT_VOCAB_SIZE),
        num_slots=block_size,
        predicts_from_anchor=_predicts_from_anchor(fields, block_size),
        mask_token_id=fields.integer("mask_token_id"),
        tap_states=fields.items("aux_hidden_state_layer_ids", int),
        layers=layer_views(
            layer_fields,
            sizes["num_layers"],
            is_causal=fields.flag("is_causal", None),
            sliding_is_causal=not fields.flag("sliding_window_non_causal", False),
        ),
        top_k=fields.integer("dspark_draft_topk", None),
        confidence_temperatures=fields.items("confidence_temperatures", float, ()),
        quantization=quantization,
        quantization_overrides=overrides,
    )


def _predicts_from_anchor(fields: Fields, block_size: int) -> bool:
    """Decide the slot layout: by the widths, else by the flag, else the legacy fill-in one.

    Raises:
        CheckpointError: ``speculative_tokens`` fits neither layout and there is no flag.
    """
    num_drafts = _speculative_tokens(fields)
    if num_drafts is not None and block_size - num_drafts in (0, 1):
        return block_size == num_drafts
    flag = fields.flag("sample_from_anchor", None)
    if flag is None and num_drafts is not None:
        raise CheckpointError(
            f"block_size is {block_size} and speculative_tokens is {num_drafts}, which fits no "
            "slot layout; add sample_from_anchor to the draft's config.json"
        )
    return bool(flag)


def _speculative_tokens(fields: Fields) -> int | None:
    """The width of the default proposal method, where the config gives it."""
    own = fields.object("speculators_config", {})
    methods = own.items("proposal_methods", dict, ())
    default = own.text("default_proposal_method", None)
    named = [method for method in methods if method.get("proposal_type") == default]
    for method in named or methods:
        return Fields(method, "config.json: proposal_methods").integer("speculative_tokens", None)
    return None
