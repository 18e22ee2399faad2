"""Qwen3, dense: queries and keys are RMS-normalised per head before rotation."""

from collections.abc import Mapping
from typing import Any

from vllm_dspark.models.config import TargetConfig, common_fields, refuse_unless


def read_config(raw: Mapping[str, Any]) -> TargetConfig:
    """Translate a Qwen3 config.json.

    Raises:
        CheckpointError: for a missing key or a variant that is not implemented.
    """
    refuse_unless(raw, "hidden_act", ("silu",))
    refuse_unless(raw, "use_sliding_window", (False, None))
    return TargetConfig(model_type="qwen3", has_qk_norm=True, **common_fields(raw))
