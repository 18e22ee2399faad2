"""The draft that suits a target."""

from vllm_dspark.drafter.config import DraftConfig, LayerView
from vllm_dspark.models.config import TargetConfig
from vllm_dspark.training.settings import DraftShape, require

NUM_TAPS = 5  # of DeepSpec's released drafts


def spread_taps(num_layers: int) -> tuple[int, ...]:
    """Layers whose outputs are tapped by default: five from the second to the fourth last."""
    first, last = 1, max(num_layers - 3, 1)
    step = (last - first) / (NUM_TAPS - 1)
    return tuple(sorted({round(first + step * index) for index in range(NUM_TAPS)}))


def draft_config(target: TargetConfig, shape: DraftShape) -> DraftConfig:
    """Describe a draft for a target.

    Raises:
        SettingsError: a tap is not a layer of the target, or its last one.
        CheckpointError: another setting that no draft can have.
    """
    taps = shape.taps or spread_taps(target.num_layers)
    wrong = [tap for tap in taps if not 0 <= tap < target.num_layers - 1]
    require(
        not wrong,
        f"taps has {wrong}, must be layers 0 to {target.num_layers - 2} of the target, whose last "
        "layer's output is only seen after the final norm",
    )
    has_markov = shape.markov_kind != "none"
    confidence = "hidden+markov" if has_markov else "hidden"
    return DraftConfig(
        format="deepspec",
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_layers=shape.num_layers,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        vocab_size=target.vocab_size,
        draft_vocab_size=target.vocab_size,
        rms_norm_eps=target.rms_norm_eps,
        rope_theta=target.rope_theta,
        rope_scaling=target.rope_scaling,
        num_slots=shape.block_size,
        predicts_from_anchor=True,
        mask_token_id=shape.mask_token_id,
        tap_states=tuple(tap + 1 for tap in taps),
        markov_kind=shape.markov_kind,
        markov_rank=shape.markov_rank if has_markov else 0,
        confidence_kind=confidence if shape.has_confidence else "none",
        layers=tuple(LayerView() for _ in range(shape.num_layers)),
        max_position_embeddings=target.max_position_embeddings,
        num_target_layers=target.num_layers,
    )
