"""Where a run starts: random weights, or those of a draft that is there."""

from pathlib import Path

import mlx.core as mx

from vllm_dspark.checkpoints.build import new_drafter
from vllm_dspark.checkpoints.draft import load_drafter, read_draft_config
from vllm_dspark.drafter.config import DraftConfig
from vllm_dspark.drafter.drafter import Drafter
from vllm_dspark.errors import CheckpointError
from vllm_dspark.training.network import parameters_of

SAME = (
    "num_layers", "tap_states", "num_slots", "predicts_from_anchor", "markov_kind", "markov_rank",
    "confidence_kind", "mask_token_id", "hidden_size", "intermediate_size", "num_heads",
    "num_kv_heads", "head_dim", "vocab_size", "draft_vocab_size", "rope_theta", "layers",
    "attention_bias",
)  # fmt: skip
"""What a draft to start from and the run must agree in, by the config's field names."""


def first_drafter(config: DraftConfig, *, seed: int, start: Path | None) -> Drafter:
    """Make the drafter that a run begins with, in float32.

    Args:
        config: of the run's draft.
        seed: of random weights.
        start: a draft's folder, whose weights are taken; None draws them at random.

    Raises:
        CheckpointError: there is no draft in ``start``, or one of another shape.
    """
    fresh = new_drafter(config, seed=seed)
    if start is None:
        return fresh
    found = read_draft_config(start)
    differing = [
        f"{name} is {getattr(found, name)} there and {getattr(config, name)} in the run"
        for name in SAME
        if getattr(found, name) != getattr(config, name)
    ]
    if differing:
        raise CheckpointError(
            f"{start} cannot start this run: {'; '.join(differing)}; give the run the draft's "
            "shape, or start from another draft"
        )
    drafter = load_drafter(start, config, mx.float32)
    extra = sorted(set(parameters_of(drafter)) ^ set(parameters_of(fresh)))
    if extra:
        raise CheckpointError(
            f"{start} cannot start this run: it stores {', '.join(extra)}, which a run does not "
            "train; start from a dense draft that uses the target's embedding and head"
        )
    return drafter
