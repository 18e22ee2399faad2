"""Proposers whose drafts are known in advance: always right, always wrong, right up to a place."""

from collections import Counter
from collections.abc import Mapping, Sequence

import mlx.core as mx

from vllm_dspark.cache.layout import PageLayout
from vllm_dspark.drafter.drafter import Draft
from vllm_dspark.runner.pack import Batch, Span
from vllm_dspark.runner.propose import Anchors
from vllm_dspark.types import Seen


class ScriptedProposer:
    """Drafts the known continuation of each request, wrong from a given draft on.

    Args:
        sequences: request id -> prompt and the target's own continuation.
        num_drafts: K.
        vocab_size: of the target.
    """

    taps: tuple[int, ...] = ()
    group = 0
    arrays: Sequence[mx.array] = ()

    def __init__(
        self, sequences: Mapping[str, Sequence[int]], num_drafts: int, vocab_size: int = 512
    ) -> None:
        self.num_drafts = num_drafts
        self._sequences = sequences
        self._vocab_size = vocab_size
        self._spans: tuple[Span, ...] = ()

    def num_right(self, request_id: str) -> int:
        """How many leading drafts of the request's next block are right."""
        raise NotImplementedError

    def absorb(self, seen: Seen, batch: Batch, layout: PageLayout) -> None:
        """Note whose rows these are; there are no pages."""
        self._spans = batch.spans

    def propose(self, anchors: Anchors) -> Draft:
        """Draft from the script."""
        rows = []
        positions = anchors.positions.tolist()
        for table, position in zip(anchors.tables, positions, strict=True):
            request = next(
                span.request for span in self._spans if span.request.blocks[0] is table
            )
            rows.append(self._block(request.request_id, position))
        return Draft(mx.array(rows, mx.int32))

    def _block(self, request_id: str, position: int) -> list[int]:
        right = self._sequences[request_id][position + 1 : position + 1 + self.num_drafts]
        right = [*right, *[0] * (self.num_drafts - len(right))]
        count = self.num_right(request_id)
        wrong = [(token + 1) % self._vocab_size for token in right[count:]]
        return [*right[:count], *wrong]


class Oracle(ScriptedProposer):
    """Every draft is the target's own choice."""

    def num_right(self, request_id: str) -> int:
        return self.num_drafts


class Liar(ScriptedProposer):
    """No draft is the target's choice."""

    def num_right(self, request_id: str) -> int:
        return 0


class Mask(ScriptedProposer):
    """Request by request, blocks are right up to 0, 1, .. K drafts in turn."""

    def __init__(
        self, sequences: Mapping[str, Sequence[int]], num_drafts: int, vocab_size: int = 512
    ) -> None:
        super().__init__(sequences, num_drafts, vocab_size)
        self._blocks: Counter[str] = Counter()

    def num_right(self, request_id: str) -> int:
        self._blocks[request_id] += 1
        return (self._blocks[request_id] - 1) % (self.num_drafts + 1)
