"""Networks that keep what they last computed, for comparison; serving never uses them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from vllm_dspark.drafter.drafter import Draft, Drafter, Unembed
from vllm_dspark.models.decoder import Decoder
from vllm_dspark.runner.build import Loaded
from vllm_dspark.types import Seen


class RecordingTarget:
    """A target that remembers its last forward."""

    def __init__(self, target: Decoder) -> None:
        self.seen: Seen | None = None
        self._target = target
        self.embed = target.embed
        self.unembed = target.unembed

    def forward(self, *args: Any, **options: Any) -> Seen:
        """Run the target."""
        self.seen = self._target.forward(*args, **options)
        return self.seen

    def logits(self, row: int) -> mx.array:
        """Logits [V] of one row of the last forward."""
        assert self.seen is not None
        return self._target.unembed(self.seen.hidden[row])


class RecordingDrafter:
    """A drafter that remembers its last block and keeps the logits of its walk."""

    def __init__(self, drafter: Drafter) -> None:
        self.config = drafter.config
        self.fused: mx.array | None = None
        self.hidden: mx.array | None = None
        self.draft: Draft | None = None
        self._drafter = drafter
        self.context_kv = drafter.context_kv
        self.draft_rows = drafter.draft_rows
        self.to_target_ids = drafter.to_target_ids

    def fuse(self, taps: Sequence[mx.array]) -> mx.array:
        """Fuse as the drafter does."""
        self.fused = self._drafter.fuse(taps)
        return self.fused

    def block(self, *args: Any, **options: Any) -> mx.array:
        """Run a block as the drafter does."""
        self.hidden = self._drafter.block(*args, **options)
        return self.hidden

    def propose(
        self, hidden: mx.array, anchors: mx.array, unembed: Unembed, **options: Any
    ) -> Draft:
        """Walk as the drafter does, and keep its logits."""
        options["keep_logits"] = True
        self.draft = self._drafter.propose(hidden, anchors, unembed, **options)
        return self.draft


@dataclass(frozen=True, slots=True)
class Recorded:
    """Loaded networks in recording form; ``loaded`` builds a runner as the plain ones do."""

    loaded: Loaded
    target: RecordingTarget
    drafter: RecordingDrafter


def record(loaded: Loaded) -> Recorded:
    """Wrap the networks of a pair."""
    assert loaded.draft is not None
    target, drafter = RecordingTarget(loaded.target), RecordingDrafter(loaded.draft.drafter)
    draft = replace(loaded.draft, drafter=drafter)
    return Recorded(replace(loaded, target=target, draft=draft), target, drafter)
