"""vLLM's contract: platform, worker, translation, refusals. Only this package knows vLLM."""

from vllm_dspark.settings import set_environment_defaults

PLATFORM_CLASS = "vllm_dspark.plugin.platform.MLXPlatform"
ENVIRONMENT_DEFAULTS = {
    # Without Triton vLLM would fall back to its first runner's contract, which has no DSpark.
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    # MLX does not survive a fork.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # TF32 rounds the factors of float32 products of two rows or more: drafting would change text.
    "MLX_ENABLE_TF32": "0",
}


def register() -> str:
    """Entry point ``vllm.platform_plugins``: name our platform; called in every process."""
    set_environment_defaults(ENVIRONMENT_DEFAULTS)
    return PLATFORM_CLASS
