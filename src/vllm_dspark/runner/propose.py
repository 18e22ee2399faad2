"""Where drafts come from: the protocols, and the block drafter behind the first one.

A proposer absorbs every computed row of every step, whether it drafts or not: the pages it writes
may be adopted by a later prefix hit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np

from vllm_dspark.cache.attend import BlockAttend
from vllm_dspark.cache.layout import PageLayout, make_context_layout
from vllm_dspark.cache.pool import KVPool
from vllm_dspark.drafter.drafter import Draft, Drafter
from vllm_dspark.models.decoder import Decoder
from vllm_dspark.ops.select import Mix
from vllm_dspark.runner.pack import Batch
from vllm_dspark.runner.requests import Request
from vllm_dspark.types import Seen


@dataclass(frozen=True, slots=True)
class Anchors:
    """The requests that draft in a step, as the proposer sees them.

    Attributes:
        tokens: [R] int32, newest tokens, not yet run through the target.
        positions: [R] int32, their positions; also the lengths of the committed contexts.
        tables: block tables of the proposer's group.
        bounds: upper bounds of ``positions``, known on the host.
    """

    tokens: mx.array
    positions: mx.array
    tables: Sequence[np.ndarray]
    bounds: Sequence[int]


class Proposer(Protocol):
    """What the step asks of a source of drafts.

    Attributes:
        taps: target states to hand to ``absorb``.
        group: KV cache group of its pages.
        num_drafts: K.
    """

    taps: tuple[int, ...]
    group: int
    num_drafts: int

    @property
    def arrays(self) -> list[mx.array]:
        """Arrays of its pages, evaluated with every step."""
        ...

    def absorb(self, seen: Seen, batch: Batch, layout: PageLayout) -> None:
        """Write the context of all rows of a step."""
        ...

    def propose(self, anchors: Anchors) -> Draft:
        """Draft K tokens per request."""
        ...


class HostProposer(Protocol):
    """A source of drafts that reads emitted tokens, so it is asked after the device."""

    def lookup(self, request: Request) -> tuple[int, ...]:
        """Drafts after the request's newest token."""
        ...


class BlockProposer:
    """Drafts blocks with a DSpark or DFlash network.

    Args:
        drafter: the draft network.
        target: shares its embedding and head.
        pool: pages of the draft layers.
        mix: the attention operation.
        num_drafts: K, at most the trained number; the block always has the trained width unless
            all layers are causal.
        top_k: candidates of the Markov walk; None is all.
        group: KV cache group of ``pool``.
    """

    def __init__(
        self,
        drafter: Drafter,
        target: Decoder,
        pool: KVPool,
        *,
        mix: Mix,
        num_drafts: int,
        top_k: int | None = None,
        group: int = 0,
    ) -> None:
        self.taps = drafter.config.tap_states
        self.group = group
        self.num_drafts = num_drafts
        self._drafter = drafter
        self._target = target
        self._pool = pool
        self._mix = mix
        self._top_k = top_k
        self._num_slots = drafter.config.slots_for(num_drafts)
        self._layers = [(view.window, view.is_causal) for view in drafter.config.layers]

    @property
    def arrays(self) -> list[mx.array]:
        return self._pool.arrays

    def absorb(self, seen: Seen, batch: Batch, layout: PageLayout) -> None:
        """Project the taps of all rows to draft keys and values, and store them.

        Rows of drafts that the target rejects are stored too: they lie beyond the new length and
        are written again before they can be read.
        """
        fused = self._drafter.fuse(seen.taps)
        for layer, (k, v) in enumerate(self._drafter.context_kv(fused, batch.positions)):
            self._pool.write(layer, layout.slots, k, v)

    def propose(self, anchors: Anchors) -> Draft:
        """Run one block per request and walk it to K drafts; nothing is waited for."""
        hidden = self._block(anchors)
        return self._drafter.propose(
            hidden,
            anchors.tokens,
            self._target.unembed,
            num_drafts=self.num_drafts,
            top_k=self._top_k,
        )

    def _block(self, anchors: Anchors) -> mx.array:
        layout = make_context_layout(anchors.tables, anchors.bounds, self._pool.block_size)
        attend = BlockAttend(
            self._pool,
            layout,
            self._mix,
            lengths=anchors.positions,
            layers=self._layers,
            num_slots=self._num_slots,
        )
        return self._drafter.block(
            self._target.embed,
            anchors.tokens,
            anchors.positions,
            attend,
            num_slots=self._num_slots,
        )
