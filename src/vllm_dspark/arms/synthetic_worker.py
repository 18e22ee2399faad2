"""The plugin's worker, whose drafts can be made to be accepted at given rates."""

from collections.abc import Sequence
from pathlib import Path

from vllm_dspark.arms.synthetic import SyntheticProposer, read_answers
from vllm_dspark.plugin.worker import MLXWorker


class SyntheticWorker(MLXWorker):
    """Told what to do by ``collective_rpc("set_rates", ...)`` before the first request."""

    def set_rates(self, survival: Sequence[float], answers_file: str) -> None:
        """Put the known answers around the runner's draft."""
        answers = read_answers(Path(answers_file))
        assert self._runner is not None
        self._runner.wrap_proposer(lambda inner: SyntheticProposer(inner, survival, answers))
