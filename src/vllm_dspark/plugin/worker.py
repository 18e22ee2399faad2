"""What vLLM asks a worker; it alone holds "not yet" states, since vLLM builds in stages."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec
from vllm.v1.outputs import AsyncModelRunnerOutput, DraftTokenIds, ModelRunnerOutput
from vllm.v1.worker.worker_base import CompilationTimes, WorkerBase

from vllm_dspark.blas import load_blas
from vllm_dspark.errors import UnsupportedError
from vllm_dspark.plugin import compat
from vllm_dspark.plugin.counters import CounterFile, counter_path
from vllm_dspark.plugin.locate import locate_model
from vllm_dspark.plugin.translate import (
    ScheduleReader,
    report_unverified,
    translate_drafts,
    translate_grammar,
    translate_result,
)
from vllm_dspark.runner.schedule import StepResult

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput

    from vllm_dspark.runner.build import AnyDraftSettings, Loaded
    from vllm_dspark.runner.step import Runner
    from vllm_dspark.types import AttentionShape

logger = init_logger(f"vllm.{__name__}")
T = TypeVar("T")

TARGET_LAYER = "model.layers.{}.self_attn"
DRAFT_LAYER = "draft.layers.{}.self_attn"


def find_group(config: KVCacheConfig, layer_name: str) -> int:
    """Index of the KV cache group that holds a layer; 0 where there is none."""
    for index, group in enumerate(config.kv_cache_groups):
        if layer_name in group.layer_names:
            return index
    return 0


class FutureOutput(AsyncModelRunnerOutput):
    """A step that the compute thread is still working on."""

    def __init__(self, future: "Future[ModelRunnerOutput]") -> None:
        self._future = future

    def get_output(self) -> ModelRunnerOutput:
        return self._future.result()

    def get_kv_connector_output(self) -> None:
        return None


class MLXWorker(WorkerBase):
    """Runs every MLX call on one thread of its own.

    With async scheduling ``sample_tokens`` returns at once and the scheduler works while the
    thread computes; otherwise it waits.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        local_rank: int,
        rank: int,
        distributed_init_method: str,
        is_driver_worker: bool = False,
    ) -> None:
        super().__init__(vllm_config, local_rank, rank, distributed_init_method, is_driver_worker)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mlx")
        self._is_async = bool(self.scheduler_config.async_scheduling)
        self._reader = ScheduleReader(self.model_config.seed or 0, keeps_drafts=self._is_async)
        self._loaded: Loaded | None = None
        self._runner: Runner | None = None
        self._begun: Future[None] | None = None
        self._output: SchedulerOutput | None = None
        self._result = StepResult()
        self._num_blocks = 0
        speculative = vllm_config.speculative_config
        self._rejection = speculative.rejection_sample_method if speculative else "standard"
        rank = self.parallel_config.data_parallel_rank
        self._counters = CounterFile(counter_path(vllm_config.instance_id, rank))
        self._num_drafts = vllm_config.num_speculative_tokens

    def _call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        return self._thread.submit(function, *args, **options).result()

    def init_device(self) -> None:
        """Load the BLAS before MLX, and keep torch off the second core."""
        self.device = torch.device("cpu")
        compat.apply_patches()
        torch.set_num_threads(1)
        library = load_blas()
        if not library.is_fast:
            logger.warning(
                "MLX will use %s, which is slow; run 'vllm-dspark doctor' to see what to install",
                library.name,
            )

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """Read the target's weights onto the device."""
        from vllm_dspark.runner.build import load

        folder = locate_model(self.model_config.model, self.model_config.revision)
        dtype_name = str(self.model_config.dtype).removeprefix("torch.")
        self._loaded = self._call(load, folder, dtype_name, self._draft_settings())

    def _draft_settings(self) -> "AnyDraftSettings | None":
        from vllm_dspark.runner.build import CausalSettings, DraftSettings
        from vllm_dspark.runner.lookup_proposer import LookupProposer

        speculative = self.speculative_config
        if speculative is None:
            return None
        num_drafts = speculative.num_speculative_tokens
        if speculative.method == "ngram":
            shortest, longest = speculative.prompt_lookup_min, speculative.prompt_lookup_max
            return LookupProposer(shortest, longest, num_drafts)
        draft = speculative.draft_model_config
        folder = locate_model(draft.model, draft.revision)
        if speculative.method == "draft_model":
            return CausalSettings(folder=folder, num_drafts=num_drafts)
        options = self.vllm_config.additional_config or {}
        return DraftSettings(
            folder=folder,
            num_drafts=num_drafts,
            top_k=speculative.dspark_draft_topk,
            quantization=options.get("dspark_draft_quantization"),
            draws=speculative.draft_sample_method == "probabilistic",
            window=options.get("dspark_draft_window"),
        )

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """Layers of keys and values: the target's, and the draft's beside them."""
        assert self._loaded is not None
        specs = self._layer_specs(self._loaded.config.attention, TARGET_LAYER, is_draft=False)
        if self._loaded.draft is not None:
            shape = self._loaded.draft.attention
            specs.update(self._layer_specs(shape, DRAFT_LAYER, is_draft=True))
        return specs

    def _layer_specs(
        self, shape: "AttentionShape", name: str, *, is_draft: bool
    ) -> dict[str, KVCacheSpec]:
        spec = FullAttentionSpec(
            block_size=self.cache_config.block_size,
            num_kv_heads=shape.num_kv_heads,
            head_size=shape.head_dim,
            dtype=self.model_config.dtype,
            is_draft=is_draft,
        )
        return {name.format(index): spec for index in range(shape.num_layers)}

    def get_supported_kv_cache_layouts(self) -> list[str]:
        return ["LBNHC"]

    def determine_available_memory(self) -> int:
        """Bytes for pages: the flag's, else a measured budget."""
        from vllm_dspark.runner.memory import measure_budget

        explicit = self.cache_config.kv_cache_memory_bytes
        if explicit is not None:
            return explicit
        return self._call(
            measure_budget,
            self._loaded,
            max_rows=self.scheduler_config.max_num_batched_tokens,
            max_context=self.model_config.max_model_len,
            utilization=self.cache_config.gpu_memory_utilization,
        )

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate pages and build the runner."""
        from vllm_dspark.runner.build import build_runner

        self._num_blocks = kv_cache_config.num_blocks
        self._runner = self._call(
            build_runner,
            self._loaded,
            num_blocks=kv_cache_config.num_blocks,
            block_size=self.cache_config.block_size,
            max_model_len=self.model_config.max_model_len,
            draft_group=find_group(kv_cache_config, DRAFT_LAYER.format(0)),
            logprobs_mode=self.model_config.logprobs_mode,
            rejection=self._rejection,
        )

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Measure what steps cost, where verification is to adapt to it."""
        from vllm_dspark.runner.build import add_planner

        speculative = self.speculative_config
        if speculative is None or not speculative.enable_adaptive_verification:
            return CompilationTimes(0.0, 0.0)
        names = (self.model_config, speculative.draft_model_config)
        costs = self._call(
            add_planner,
            self._runner,
            self._loaded,
            folders=[locate_model(one.model, one.revision) for one in names],
            num_blocks=self._num_blocks,
            block_size=self.cache_config.block_size,
        )
        logger.info("the draft planner uses these step costs: %s", costs.to_json())
        return CompilationTimes(0.0, 0.0)

    def update_max_model_len(self, max_model_len: int) -> None:
        """Nothing here is sized by the context limit."""
        self.model_config.max_model_len = max_model_len

    def execute_model(self, scheduler_output: "SchedulerOutput") -> ModelRunnerOutput | None:
        """Start a step; None asks the engine to call ``sample_tokens``."""
        assert self._runner is not None
        schedule = self._reader.read(scheduler_output)
        begun = self._thread.submit(self._runner.begin, schedule)
        if schedule.turns:
            self._begun = begun
            self._output = scheduler_output
            return None
        begun.result()
        return ModelRunnerOutput(req_ids=[], req_id_to_index={})

    def sample_tokens(
        self, grammar_output: "GrammarOutput | None"
    ) -> ModelRunnerOutput | AsyncModelRunnerOutput:
        """Choose the step's tokens."""
        assert self._begun is not None and self._output is not None
        future = self._thread.submit(self._finish, self._begun, self._output, grammar_output)
        self._begun = self._output = None
        return FutureOutput(future) if self._is_async else future.result()

    def _finish(
        self,
        begun: "Future[None]",
        output: "SchedulerOutput",
        grammar_output: "GrammarOutput | None",
    ) -> ModelRunnerOutput:
        assert self._runner is not None
        begun.result()
        grammar = translate_grammar(grammar_output, rows_per_request=1 + self._num_drafts)
        self._result = self._runner.finish(grammar)
        report_unverified(output, self._result, grammar)
        if self._num_drafts:
            self._counters.update(self._runner.policy)
        return translate_result(self._result)

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """The drafts of the last finished step, for a scheduler that wants to see them."""
        return self._call(lambda: translate_drafts(self._result)) if self._num_drafts else None

    def execute_dummy_batch(self) -> None:
        """Other engines' steps need nothing from this one."""

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def get_model_inspection(self) -> str:
        """The network as a tree of modules; ``repr`` of an ``LLM`` shows it."""
        assert self._loaded is not None
        return repr(self._loaded.target)

    def get_model(self) -> Any:
        raise UnsupportedError(
            "the model is made of MLX arrays, not a torch module: use mlx_lm to inspect it"
        )

    def memory_report(self) -> dict[str, int]:
        """Bytes in MLX's domains; benchmarks ask for it by ``collective_rpc``."""
        import mlx.core as mx

        return {
            "mlx_active_bytes": mx.get_active_memory(),
            "mlx_peak_bytes": mx.get_peak_memory(),
            "mlx_cache_bytes": mx.get_cache_memory(),
        }

    def synchronize_device(self) -> None:
        """Wait for the compute thread."""
        self._call(int)

    def reset_mm_cache(self) -> None:
        """There are no images to forget."""

    def reset_encoder_cache(self) -> None:
        """There are no images to forget."""

    def list_loras(self) -> set[int]:
        return set()

    def shutdown(self) -> None:
        self._thread.shutdown(wait=True)
        if self._num_drafts and self._runner is not None:
            self._counters.update(self._runner.policy, is_final=True)
            self._counters.remove()
        self._runner = None
        self._loaded = None
