"""Where drafts come from: the protocols, and the block drafter behind the first one.

A proposer absorbs every computed row of every step, whether it drafts or not: the pages it writes
may be adopted by a later prefix hit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from vllm_dspark.sampling.draw import DRAFT_STREAM, ROUND_STRIDE, draw, draw_key, shape_logits
from vllm_dspark.sampling.params import Sampling
from vllm_dspark.types import Seen


@dataclass(frozen=True, slots=True)
class Anchors:
    """The requests that draft in a step, as the proposer sees them.

    Attributes:
        tokens: [R] int32, newest tokens, not yet run through the target.
        positions: [R] int32, their positions; also the lengths of the committed contexts.
        tables: block tables of the proposer's group.
        bounds: upper bounds of ``positions``, known on the host.
        firsts: lower bounds of ``positions``: what this step was the first to decide.
        options: what each request asked of the sampler.
    """

    tokens: mx.array
    positions: mx.array
    tables: Sequence[np.ndarray]
    bounds: Sequence[int]
    firsts: Sequence[int] = ()
    options: Sequence[Sampling] = ()


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
        draws: draw the drafts of sampled requests, instead of picking the most likely ones.
        window: context positions before the anchor that every layer is limited to; absolute
            positions are kept, and output is the target's whatever it is.
        group: KV cache group of ``pool``.
    """

    def __init__(  # noqa: PLR0913 - one argument per choice
        self,
        drafter: Drafter,
        target: Decoder,
        pool: KVPool,
        *,
        mix: Mix,
        num_drafts: int,
        top_k: int | None = None,
        draws: bool = False,
        window: int | None = None,
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
        self._draws = draws
        self._num_slots = drafter.config.slots_for(num_drafts)
        self._layers = [
            (_narrower(view.window, window), view.is_causal) for view in drafter.config.layers
        ]
        windows = [one for one, _ in self._layers]
        # A bound may lie up to K positions past the anchor.
        self._reach = None if None in windows else max(windows) + num_drafts

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
        if self._draws and any(not one.is_greedy for one in anchors.options):
            return self._draw(hidden, anchors)
        return self._drafter.propose(
            hidden,
            anchors.tokens,
            self._target.unembed,
            num_drafts=self.num_drafts,
            top_k=self._top_k,
        )

    def _draw(self, hidden: mx.array, anchors: Anchors) -> Draft:
        """Walk the block drawing from the draft's distribution, shaped as the request asks."""
        rows = self._drafter.draft_rows(hidden, self.num_drafts)
        base = self._drafter.base_logits(rows, self._target.unembed)
        shaped: list[mx.array] = []

        def pick(slot: int, logits: mx.array) -> mx.array:
            shaped.append(shape_logits(logits.astype(mx.float32), anchors.options))
            keys = [
                draw_key(one.seed, first * ROUND_STRIDE + slot, DRAFT_STREAM)
                for one, first in zip(anchors.options, anchors.firsts, strict=True)
            ]
            return draw(shaped[-1], anchors.options, keys)

        draft = self._drafter.walk(base, rows, anchors.tokens, top_k=self._top_k, pick=pick)
        drawn = self._drafter.to_target_logits(
            mx.stack(shaped, axis=1), self._target.vocab_size
        )
        return replace(draft, drawn_logits=drawn)

    def _block(self, anchors: Anchors) -> mx.array:
        layout = make_context_layout(
            anchors.tables, anchors.bounds, self._pool.block_size, self._reach
        )
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


def _narrower(first: int | None, second: int | None) -> int | None:
    given = [window for window in (first, second) if window is not None]
    return min(given) if given else None
