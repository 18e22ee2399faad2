"""model_type -> the function that reads its config."""

from collections.abc import Callable, Mapping
from typing import Any

from vllm_dspark.errors import CheckpointError
from vllm_dspark.models import llama, qwen3
from vllm_dspark.models.config import TargetConfig

FAMILIES: dict[str, Callable[[Mapping[str, Any]], TargetConfig]] = {
    "llama": llama.read_config,
    "qwen3": qwen3.read_config,
}


def read_target_config(raw: Mapping[str, Any]) -> TargetConfig:
    """Translate a target's config.json.

    Raises:
        CheckpointError: for an unknown model_type (the message lists the known ones).
    """
    kind = raw.get("model_type")
    if kind not in FAMILIES:
        raise CheckpointError(
            f"the target's model_type is {kind!r}; this build has {sorted(FAMILIES)}: "
            "use a model of one of these families"
        )
    return FAMILIES[kind](raw)
