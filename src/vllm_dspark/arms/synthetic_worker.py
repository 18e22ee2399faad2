"""The plugin's worker with drafts that are accepted at given rates."""

from pathlib import Path

from vllm.v1.kv_cache_interface import KVCacheConfig

from vllm_dspark.arms.synthetic import SyntheticProposer, read_answers
from vllm_dspark.plugin.worker import MLXWorker


class SyntheticWorker(MLXWorker):
    """Reads ``synthetic_rates`` and ``synthetic_answers`` from --additional-config."""

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Build the runner, then put the known answers around its draft."""
        super().initialize_from_config(kv_cache_config)
        options = self.vllm_config.additional_config
        answers = read_answers(Path(options["synthetic_answers"]))
        assert self._runner is not None
        self._runner.wrap_proposer(
            lambda inner: SyntheticProposer(inner, options["synthetic_rates"], answers)
        )
