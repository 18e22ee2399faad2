"""The one table of live requests: tokens, counts and block tables."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from vllm_dspark.errors import StateError
from vllm_dspark.runner.schedule import Admission, HostScores, Schedule
from vllm_dspark.sampling.params import Sampling


@dataclass(slots=True)
class Request:
    """One live request.

    Attributes:
        token_ids: prompt and emitted tokens.
        num_computed: tokens whose keys and values are in the pages; between steps this is also
            the length of the draft context and the position of the anchor.
        is_resumed: it was preempted after tokens had been emitted.
        blocks: [B] int32 block table per KV cache group.
        drafts: what the drafter proposed after ``token_ids``.
        confidence_logits: [K] of those drafts and of the ones cut from them.
        draft_logits: [K, V] logits that ``drafts`` were drawn from; None where they were picked.
        prompt_scores: scores of prompt rows done so far.
    """

    request_id: str
    token_ids: list[int]
    num_prompt: int
    num_computed: int
    sampling: Sampling
    blocks: list[np.ndarray]
    is_resumed: bool = False
    drafts: tuple[int, ...] = ()
    confidence_logits: np.ndarray | None = None
    draft_logits: mx.array | None = None
    prompt_scores: list[HostScores] = field(default_factory=list)

    @property
    def num_outputs(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def has_ended(self) -> bool:
        """Whether the newest token is the last one.

        The scheduler stops the request for the same reason, but under async scheduling it may have
        scheduled one more step before it saw that token.
        """
        limit = self.sampling.max_tokens
        if self.num_outputs < 1:
            return False
        if limit is not None and self.num_outputs >= limit:
            return True
        is_end = self.token_ids[-1] in self.sampling.end_ids
        return is_end and self.num_outputs >= self.sampling.min_tokens


class RequestTable:
    """Live requests by id; follows the scheduler's decisions."""

    def __init__(self) -> None:
        self._requests: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, request_id: str) -> Request:
        try:
            return self._requests[request_id]
        except KeyError:
            raise StateError(
                f"request {request_id} is scheduled but was never admitted; this is a bug"
            ) from None

    def follow(self, schedule: Schedule) -> None:
        """Forget, admit and extend as the scheduler says."""
        self._forget(schedule.forgotten)
        for admission in schedule.admissions:
            self._admit(admission)
        for request_id, groups in schedule.new_blocks.items():
            request = self[request_id]
            request.blocks = [
                np.concatenate([table, np.asarray(new, np.int32)])
                for table, new in zip(request.blocks, groups, strict=True)
            ]

    def _forget(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._requests.pop(request_id, None)

    def _admit(self, admission: Admission) -> None:
        self._requests[admission.request_id] = Request(
            admission.request_id,
            list(admission.token_ids),
            admission.num_prompt,
            admission.num_computed,
            admission.sampling,
            [np.asarray(table, np.int32) for table in admission.blocks],
            is_resumed=len(admission.token_ids) > admission.num_prompt,
        )
