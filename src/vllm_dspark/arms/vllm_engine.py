"""This project: vLLM with its scheduler in the arm's process."""

import time
from collections.abc import Sequence
from typing import Any

import psutil

from vllm_dspark.arms.spec import Answer, ArmSpec, Ask, Drafting, Run
from vllm_dspark.settings import set_environment_defaults

SPEC_COUNTERS = {
    "rounds": "vllm:spec_decode_num_drafts",
    "drafted": "vllm:spec_decode_num_draft_tokens",
    "accepted": "vllm:spec_decode_num_accepted_tokens",
    "accepted_at": "vllm:spec_decode_num_accepted_tokens_per_pos",
}
SYNTHETIC_WORKER = "vllm_dspark.arms.synthetic_worker.SyntheticWorker"


def llm_options(spec: ArmSpec) -> dict[str, Any]:
    """Arguments of vLLM's LLM for a spec."""
    options: dict[str, Any] = {
        "model": spec.model,
        "dtype": spec.dtype,
        "max_model_len": spec.max_model_len,
        "max_num_seqs": spec.max_num_seqs,
        "kv_cache_memory_bytes": spec.kv_bytes,
        "enable_prefix_caching": spec.prefix_cache,
        "async_scheduling": spec.is_async,
        "disable_log_stats": False,
    }
    if spec.draft:
        options["speculative_config"] = {"method": "dspark", "model": spec.draft}
        if spec.num_drafts:
            options["speculative_config"]["num_speculative_tokens"] = spec.num_drafts
    if spec.synthetic:
        options["worker_cls"] = SYNTHETIC_WORKER
    return {**options, **spec.options}


def make_engine(spec: ArmSpec) -> "VLLMEngine":
    """Load the engine of a spec."""
    set_environment_defaults({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
    from vllm import LLM

    llm = LLM(**llm_options(spec))
    if spec.synthetic:
        llm.collective_rpc("set_rates", args=(list(spec.synthetic), spec.answers))
    return VLLMEngine(llm)


class VLLMEngine:
    """Drives an in-process LLM as so many clients would.

    Args:
        llm: vLLM's LLM, whose scheduler lives in this process.
    """

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self._num_runs = 0

    @property
    def scheduler(self) -> Any:
        """vLLM's scheduler."""
        return self.llm.llm_engine.engine_core.engine_core.scheduler

    def _free_blocks(self) -> int:
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def generate(self, asks: Sequence[Ask], clients: int) -> Run:
        """Answer requests; a client sends its next one when the last is answered."""
        self._num_runs += 1
        free, before = self._free_blocks(), self._drafting()
        loop = ClosedLoop(self.llm.llm_engine, asks, clients, f"run{self._num_runs}")
        answers, seconds = loop.run()
        return Run(answers, seconds, self._drafting().since(before), free - self._free_blocks())

    def _drafting(self) -> Drafting:
        found: dict[str, Any] = {}
        metrics = {one.name: one for one in self.llm.get_metrics()}
        for name, metric_name in SPEC_COUNTERS.items():
            metric = metrics.get(metric_name)
            if metric is not None:
                values = getattr(metric, "values", None)
                found[name] = metric.value if values is None else tuple(values)
        return Drafting(**found)

    def memory(self) -> dict[str, int]:
        """MLX's domains, resident size, and the pages."""
        import mlx.core as mx

        config = self.scheduler.kv_cache_config
        block_size = self.scheduler.block_size
        return {
            "mlx_active_bytes": mx.get_active_memory(),
            "mlx_peak_bytes": mx.get_peak_memory(),
            "mlx_cache_bytes": mx.get_cache_memory(),
            "resident_bytes": psutil.Process().memory_info().rss,
            "kv_bytes": sum(tensor.size for tensor in config.kv_cache_tensors),
            "kv_tokens": config.num_blocks * block_size,
        }

    def reset_cache(self) -> None:
        """Forget cached prefixes."""
        self.llm.reset_prefix_cache()


class ClosedLoop:
    """A fixed number of clients, each with one request under way.

    Args:
        engine: vLLM's LLMEngine.
        prefix: makes request ids unique.
    """

    def __init__(self, engine: Any, asks: Sequence[Ask], clients: int, prefix: str) -> None:
        self._engine = engine
        self._asks = asks
        self._clients = clients
        self._prefix = prefix
        self._sent: dict[str, float] = {}
        self._first: dict[str, float] = {}
        self._tokens: dict[str, list[int]] = {}
        self._done: dict[str, Answer] = {}

    def run(self) -> tuple[tuple[Answer, ...], float]:
        """Send everything; returns the answers and the seconds from first to last."""
        names = [f"{self._prefix}-{index}" for index in range(len(self._asks))]
        waiting = list(zip(names, self._asks, strict=True))[::-1]
        start = time.perf_counter()
        while waiting or self._engine.has_unfinished_requests():
            while waiting and len(self._sent) - len(self._done) < self._clients:
                self._send(*waiting.pop())
            outputs = self._engine.step()
            now = time.perf_counter()
            for output in outputs:
                self._note(output, now)
        return tuple(self._done[name] for name in names), time.perf_counter() - start

    def _send(self, name: str, ask: Ask) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        params = SamplingParams(
            temperature=ask.temperature,
            max_tokens=ask.max_tokens,
            seed=ask.seed,
            ignore_eos=ask.ignore_eos,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            structured_outputs=StructuredOutputsParams(json=ask.schema) if ask.schema else None,
        )
        self._sent[name] = time.perf_counter()
        self._tokens[name] = []
        self._engine.add_request(name, {"prompt_token_ids": list(ask.token_ids)}, params)

    def _note(self, output: Any, now: float) -> None:
        name = output.request_id
        tokens = output.outputs[0].token_ids
        if tokens:
            self._first.setdefault(name, now)
        self._tokens[name].extend(tokens)
        if output.finished:
            sent = self._sent[name]
            self._done[name] = Answer(
                tuple(self._tokens[name]),
                self._first.get(name, now) - sent,
                now - sent,
                output.num_cached_tokens or 0,
            )
