"""vLLM's contract: platform, worker, translation, refusals. Only this package knows vLLM."""

from vllm_dspark.settings import EXACT_FLOAT32, set_environment_defaults

PLATFORM_CLASS = "vllm_dspark.plugin.platform.MLXPlatform"
ENVIRONMENT_DEFAULTS = {
    # Without Triton vLLM would fall back to its first runner's contract, which has no DSpark.
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    # MLX does not survive a fork.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    **EXACT_FLOAT32,
}


def register() -> str:
    """Entry point ``vllm.platform_plugins``: name our platform; called in every process."""
    set_environment_defaults(ENVIRONMENT_DEFAULTS)
    return PLATFORM_CLASS
