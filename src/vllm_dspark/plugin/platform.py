"""What vLLM asks a platform; loaded in every process, so it imports neither MLX nor weights."""

from typing import TYPE_CHECKING, Any

import torch
from vllm.logger import init_logger
from vllm.platforms.interface import Platform, PlatformEnum

from vllm_dspark.errors import UnsupportedError
from vllm_dspark.plugin import compat
from vllm_dspark.plugin.device import device_kind
from vllm_dspark.plugin.facts import read_facts
from vllm_dspark.plugin.guards import check_facts, refused_quantization
from vllm_dspark.plugin.request_guards import check_request

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger(f"vllm.{__name__}")

WORKER_CLASS = "vllm_dspark.plugin.worker.MLXWorker"
DEFAULT_BLOCK_SIZE = 16


class MLXPlatform(Platform):
    """MLX as vLLM's device: Metal, CUDA or a CPU, one device per engine."""

    _enum = PlatformEnum.OOT
    device_name = "mlx"
    device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"
    device_control_env_var = "VLLM_DSPARK_NO_DEVICE_CHOICE"
    supported_quantization = ["mlx"]

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        if device_kind() == "cpu":
            return [torch.float32]
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return f"mlx-{device_kind()}"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        import psutil

        return psutil.virtual_memory().total

    @classmethod
    def import_kernels(cls) -> None:
        """There are no torch kernels to import."""

    @classmethod
    def import_ir_kernels(cls) -> None:
        """There are no torch kernels to import."""

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """torch stays on the CPU."""

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Random draws are keyed by request, see ``sampling.draw``."""

    @classmethod
    def inference_mode(cls) -> Any:
        return torch.no_grad()

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        return True

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        """Any float type can be stored; the compute type is settled in the configuration."""

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: "VllmConfig") -> None:
        """Any block size works; there is no backend to ask."""

    @classmethod
    def verify_quantization(cls, quant: str) -> None:
        """Refuse a method that is not MLX's own; vLLM asks before it builds the configuration."""
        if quant not in cls.supported_quantization:
            raise UnsupportedError(refused_quantization(quant))

    @classmethod
    def check_and_update_config(cls, vllm_config: "VllmConfig") -> None:
        """Refuse what is not implemented, and settle what has one answer here.

        Raises:
            UnsupportedError: listing everything that is refused, with what to do instead.
        """
        from vllm.config import CompilationMode, CUDAGraphMode

        compat.apply_patches()
        vllm_config.compilation_config.mode = CompilationMode.NONE
        speculative = vllm_config.speculative_config
        # vLLM lets verification adapt only in a mode with full graphs; here nothing is captured.
        is_adaptive = speculative is not None and speculative.enable_adaptive_verification
        mode = CUDAGraphMode.FULL_DECODE_ONLY if is_adaptive else CUDAGraphMode.NONE
        vllm_config.compilation_config.cudagraph_mode = mode
        vllm_config.compilation_config.cudagraph_capture_sizes = []
        if vllm_config.cache_config.block_size is None:
            vllm_config.cache_config.block_size = DEFAULT_BLOCK_SIZE
        if vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = WORKER_CLASS
        if vllm_config.model_config is None:
            return
        check_facts(read_facts(vllm_config))
        if vllm_config.speculative_config is not None:
            from vllm_dspark.plugin.counters import register_collector

            register_collector(vllm_config)
        cls._settle_dtype(vllm_config)

    @classmethod
    def get_kv_cache_config_builder_cls(cls, vllm_config: "VllmConfig") -> str:
        """The default builder merges draft and target layers of one geometry into one group."""
        options = vllm_config.additional_config or {}
        if options.get("dspark_draft_group") == "separate":
            return "vllm_dspark.plugin.kv_groups.SeparateDraftGroup"
        return super().get_kv_cache_config_builder_cls(vllm_config)

    @classmethod
    def _settle_dtype(cls, vllm_config: "VllmConfig") -> None:
        model_config = vllm_config.model_config
        if device_kind() == "cpu" and model_config.dtype != torch.float32:
            logger.warning(
                "dtype %s was asked for; MLX computes 16-bit matrices 40 times slower than 32-bit "
                "ones on a CPU, so float32 is used",
                model_config.dtype,
            )
            model_config.dtype = torch.float32

    @classmethod
    def validate_request(cls, processed_inputs: Any, params: Any) -> None:
        """Refuse a request that asks for something not implemented (HTTP 400)."""
        check_request(params)
