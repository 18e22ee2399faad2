"""DeepSpec's config.json, and z-lab's DFlash one, as a DraftConfig.

Both copy the target's config and add keys, tap layers by their output, and use the same tensor
names. They differ in the slot layout: DeepSpec always predicts from the anchor, z-lab never.
"""

from collections.abc import Mapping
from typing import Any

from vllm_dspark.checkpoints.fields import Fields
from vllm_dspark.checkpoints.layers import heads, layer_sizes, layer_views, stored_quantization
from vllm_dspark.drafter.config import DraftConfig
from vllm_dspark.errors import CheckpointError, UnsupportedError

DEEPSPEC_CLASSES = ("Qwen3DSparkModel", "Qwen3DFlashModel", "DSparkDraftModel")
ZLAB_CLASSES = ("DFlashDraftModel",)


def is_deepspec(raw: Mapping[str, Any]) -> bool:
    """Whether config.json is DeepSpec's: by its class, or by taps at the top level."""
    has_taps = "target_layer_ids" in raw and "dflash_config" not in raw
    return has_taps or bool(_classes(raw) & set(DEEPSPEC_CLASSES))


def is_zlab(raw: Mapping[str, Any]) -> bool:
    """Whether config.json is z-lab's DFlash one."""
    return "dflash_config" in raw or bool(_classes(raw) & set(ZLAB_CLASSES))


def _classes(raw: Mapping[str, Any]) -> set[str]:
    names = raw.get("architectures")
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def parse_deepspec(raw: Mapping[str, Any]) -> DraftConfig:
    """Read a DeepSpec config.json.

    Raises:
        CheckpointError: a key is missing, has a wrong type or contradicts another.
        UnsupportedError: a family or variant that is not implemented.
    """
    fields = Fields(raw, "config.json")
    unknown = _classes(raw) - set(DEEPSPEC_CLASSES)
    if unknown:
        raise UnsupportedError(
            f"the draft's architecture is {sorted(unknown)}; {list(DEEPSPEC_CLASSES)} are "
            "implemented: use a draft with Qwen3-style layers"
        )
    if fields.flag("tie_word_embeddings", False):
        raise CheckpointError(
            "tie_word_embeddings is true in a DeepSpec draft, which shares the target's tables "
            "or stores its own; set it to false"
        )
    fields.integer("markov_rank")
    fields.flag("enable_confidence_head")
    return _config(fields, fields, format="deepspec", predicts_from_anchor=True, markov=True)


def parse_zlab(raw: Mapping[str, Any]) -> DraftConfig:
    """Read a z-lab DFlash config.json, whose own keys are in ``dflash_config``.

    Raises:
        CheckpointError, UnsupportedError: as :func:`parse_deepspec`.
    """
    fields = Fields(raw, "config.json")
    own = fields.object("dflash_config")
    if "projector_type" in own:
        raise UnsupportedError(
            f"dflash_config.projector_type is {own.any('projector_type')!r}; this packaging is "
            "not implemented: use a DeepSpec, Speculators or z-lab checkpoint"
        )
    merged = Fields({**raw, **raw["dflash_config"]}, "config.json: dflash_config")
    return _config(fields, merged, format="dflash", predicts_from_anchor=False, markov=False)


def _config(
    fields: Fields, own: Fields, *, format: str, predicts_from_anchor: bool, markov: bool
) -> DraftConfig:
    """Build the config from the target's keys in ``fields`` and the draft's keys in ``own``."""
    sizes = layer_sizes(fields)
    quantization, overrides = stored_quantization(fields)
    nested = fields.object("dflash_config", {})
    is_causal = fields.flag("is_causal", nested.flag("causal", None))
    num_target_layers = own.integer("num_target_layers")
    return DraftConfig(
        format=format,
        **sizes,
        **heads(own, markov=markov, defaults=False),
        target_hidden_size=own.integer("target_hidden_size", sizes["hidden_size"]),
        draft_vocab_size=own.integer("draft_vocab_size", sizes["vocab_size"]),
        num_slots=own.integer("block_size"),
        predicts_from_anchor=predicts_from_anchor,
        mask_token_id=own.integer("mask_token_id"),
        tap_states=_tap_states(own.items("target_layer_ids", int), num_target_layers),
        layers=layer_views(fields, sizes["num_layers"], is_causal=is_causal),
        top_k=own.integer("dspark_draft_topk", None),
        confidence_temperatures=own.items("confidence_temperatures", float, ()),
        num_target_layers=num_target_layers,
        quantization=quantization,
        quantization_overrides=overrides,
    )


def _tap_states(layer_ids: tuple[int, ...], num_target_layers: int) -> tuple[int, ...]:
    """Translate layer outputs into state indices.

    Both producers tap transformers' ``hidden_states[id + 1]``, whose last entry is taken after the
    final norm. So the last layer's id means the normed state, which has the index N + 1 here; the
    recorded features of the conformance set deepspec-gated-k5 show it.

    Raises:
        CheckpointError: an id is not a layer of the target.
    """
    wrong = [layer for layer in layer_ids if not -1 <= layer < num_target_layers]
    if wrong:
        raise CheckpointError(
            f"target_layer_ids has {wrong}, but the target has layers 0 to {num_target_layers - 1} "
            "(-1 is the embedding); give layers of the target"
        )
    last = num_target_layers - 1
    return tuple(layer + 2 if layer == last else layer + 1 for layer in layer_ids)
