"""Llama (2, 3, SmolLM2 and other checkpoints of this shape): no query or key norms."""

from collections.abc import Mapping
from typing import Any

from vllm_dspark.models.config import TargetConfig, common_fields, refuse_unless


def read_config(raw: Mapping[str, Any]) -> TargetConfig:
    """Translate a Llama config.json.

    Raises:
        CheckpointError: for a missing key or a variant that is not implemented.
    """
    refuse_unless(raw, "hidden_act", ("silu",))
    refuse_unless(raw, "rope_traditional", (False,))
    return TargetConfig(model_type="llama", **common_fields(raw))
