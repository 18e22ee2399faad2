"""A draft's folder -> its config, the check against a target, and a finished drafter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from vllm_dspark.checkpoints.build import DraftTensors, build_drafter
from vllm_dspark.checkpoints.deepspec import is_deepspec, is_zlab, parse_deepspec, parse_zlab
from vllm_dspark.checkpoints.fields import read_json
from vllm_dspark.checkpoints.layout import check_stored
from vllm_dspark.checkpoints.quantize import resolve_quantization
from vllm_dspark.checkpoints.shards import open_tensors, read_headers
from vllm_dspark.checkpoints.speculators import is_speculators, parse_speculators
from vllm_dspark.drafter.config import DraftConfig
from vllm_dspark.drafter.drafter import Drafter
from vllm_dspark.errors import CheckpointError
from vllm_dspark.models.config import TargetConfig

FORMATS: tuple[tuple[Callable[[Mapping[str, Any]], bool], Callable[..., DraftConfig]], ...] = (
    (is_speculators, parse_speculators),
    (is_deepspec, parse_deepspec),
    (is_zlab, parse_zlab),
)


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What a draft must fit.

    Attributes:
        hidden_size, num_layers, vocab_size: of the target.
        head_dim, num_kv_heads: of the target's cache when the draft shares its pages; None
            where the draft's may differ.
    """

    hidden_size: int
    num_layers: int
    vocab_size: int
    head_dim: int | None = None
    num_kv_heads: int | None = None


def target_facts(config: TargetConfig) -> TargetFacts:
    """What a draft must fit when its keys lie in pages beside this target's."""
    return TargetFacts(
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        vocab_size=config.vocab_size,
        head_dim=config.head_dim,
    )


def parse_draft_config(raw: Mapping[str, Any]) -> DraftConfig:
    """Read the content of a draft's config.json, in whichever format it is.

    Raises:
        CheckpointError: unknown format, or a key is missing, mistyped or contradictory.
        UnsupportedError: a variant that is not implemented.
    """
    for is_format, parse in FORMATS:
        if is_format(raw):
            return parse(raw)
    raise CheckpointError(
        "the draft's config.json is none of DeepSpec's (target_layer_ids), Speculators' "
        "(speculators_model_type) or z-lab's DFlash (dflash_config); give such a draft, or use "
        "method draft_model for an ordinary small model"
    )


def read_draft_config(folder: str | Path) -> DraftConfig:
    """Read a draft's config.json; no weights are touched.

    Raises:
        CheckpointError, UnsupportedError: as :func:`parse_draft_config`, or no such file.
    """
    return parse_draft_config(read_json(Path(folder) / "config.json"))


def check_fits_target(config: DraftConfig, target: TargetFacts) -> None:
    """Refuse a draft that was made for another target, before weights are read.

    Raises:
        CheckpointError: listing everything that differs.
    """
    problems = [
        f"{what} is {ours} in the draft and {theirs} in the target"
        for what, ours, theirs in (
            ("the target's hidden size", config.target_hidden_size, target.hidden_size),
            ("the vocabulary", config.vocab_size, target.vocab_size),
            ("the number of target layers", config.num_target_layers, target.num_layers),
            ("the head dimension", config.head_dim, target.head_dim),
            ("the number of key/value heads", config.num_kv_heads, target.num_kv_heads),
        )
        if ours is not None and theirs is not None and ours != theirs
    ]
    # Only formats that say the target's depth can mean its final-normed state, index N + 1.
    last_state = target.num_layers + (config.num_target_layers is not None)
    if config.tap_states[-1] > last_state:
        problems.append(
            f"the draft taps state {config.tap_states[-1]} and the target has states 0 to "
            f"{last_state}"
        )
    if problems:
        raise CheckpointError(
            "the draft does not fit the target: " + "; ".join(problems)
            + "; use a draft that was trained for this target"
        )  # fmt: skip


def load_drafter(
    folder: str | Path,
    config: DraftConfig,
    dtype: mx.Dtype,
    quantization: str | None = None,
    *,
    target_tables: Mapping[str, mx.array] | None = None,
) -> Drafter:
    """Read, check and assemble a draft; its weights are in memory when this returns.

    Args:
        folder: with config.json and one or more safetensors files.
        config: from :func:`read_draft_config`.
        dtype: that the draft computes in; float32 on a CPU.
        quantization: ``q4``, ``q8`` or None: form of the backbone's matrices.
        target_tables: the target's dense ``embed_tokens.weight`` and ``lm_head.weight``; a
            stored copy that equals them is dropped and the target's is used.

    Raises:
        SettingsError: the quantisation does not suit the draft.
        CheckpointError: naming the tensors that are missing, extra, mis-shaped, not finite or
            inconsistent.
    """
    convert_to = resolve_quantization(config, quantization)
    stored = read_headers(Path(folder))
    check_stored(config, stored)
    raw = open_tensors(stored)
    draft_to_target = _offsets(config, raw)
    arrays = {name: _cast(name, array, dtype) for name, array in raw.items()}
    arrays = {name: array for name, array in arrays.items() if name not in ("d2t", "t2d")}
    _check_finite(arrays)
    for name, table in (target_tables or {}).items():
        if name in arrays and _is_same(arrays[name], table):
            del arrays[name]
    drafter = build_drafter(DraftTensors(arrays, config, convert_to), config, draft_to_target)
    drafter.eval()
    mx.eval(drafter.parameters())
    return drafter


def _cast(name: str, array: mx.array, dtype: mx.Dtype) -> mx.array:
    """Cast a float tensor to its compute dtype; packed words stay."""
    if not mx.issubdtype(array.dtype, mx.floating):
        return array
    is_wide = name.startswith("confidence_head.") or (
        dtype == mx.float16 and name.startswith(("fc.", "hidden_norm."))
    )
    return array.astype(mx.float32 if is_wide else dtype)


def _is_same(array: mx.array, table: mx.array) -> bool:
    return array.shape == table.shape and bool(
        mx.array_equal(array, table.astype(array.dtype)).item()
    )


def _check_finite(arrays: Mapping[str, mx.array]) -> None:
    """Raise CheckpointError naming the tensors with an infinity or not-a-number."""
    names = [name for name, array in arrays.items() if mx.issubdtype(array.dtype, mx.floating)]
    flags = mx.stack([mx.isfinite(arrays[name]).all() for name in names]).tolist()
    broken = [name for name, is_finite in zip(names, flags, strict=True) if not is_finite]
    if broken:
        raise CheckpointError(
            f"the draft has numbers that are not finite in {', '.join(sorted(broken))}; download "
            "it again, or use a wider dtype if it overflows"
        )


def _offsets(config: DraftConfig, raw: Mapping[str, mx.array]) -> mx.array | None:
    """Check d2t and t2d, and return the offsets [Vd] int32; None when ids are the same.

    Raises:
        CheckpointError: ids out of range or twice, or a t2d mask that says otherwise.
    """
    if "d2t" not in raw:
        return None
    count = config.num_draft_logits
    offsets = raw["d2t"][:count]
    targets: list[int] = (offsets + mx.arange(count)).tolist()
    if min(targets) < 0 or max(targets) >= config.vocab_size or len(set(targets)) < count:
        raise CheckpointError(
            f"d2t must give every draft id its own target id below {config.vocab_size}, as offsets "
            f"(target id = draft id + d2t[draft id]); it gives {min(targets)} to {max(targets)} "
            f"with {len(set(targets))} different ids for {count}: export the draft again"
        )
    if "t2d" in raw:
        marked = [index for index, is_in in enumerate(raw["t2d"].tolist()) if is_in]
        if marked != sorted(targets):
            raise CheckpointError(
                f"t2d marks {len(marked)} target ids that are not the {count} that d2t gives; "
                "export the draft again"
            )
    return offsets.astype(mx.int32) if any(offsets.tolist()) else None
