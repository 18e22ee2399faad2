"""Drafts of an ordinary second, smaller causal model (vLLM's method ``draft_model``)."""

import mlx.core as mx

from vllm_dspark.cache.attend import CausalAttend
from vllm_dspark.cache.layout import PageLayout, make_context_layout
from vllm_dspark.cache.pool import KVPool
from vllm_dspark.cache.row_attend import RowAttend
from vllm_dspark.drafter.drafter import Draft
from vllm_dspark.models.decoder import Decoder
from vllm_dspark.ops.select import Mix
from vllm_dspark.runner.pack import Batch
from vllm_dspark.runner.propose import Anchors
from vllm_dspark.types import Seen


class CausalProposer:
    """Drafts one token after another with a model that has the target's vocabulary.

    Args:
        model: the draft model.
        pool: pages of its layers.
        mix: the attention operation.
        num_drafts: K.
        group: KV cache group of ``pool``.
    """

    def __init__(
        self, model: Decoder, pool: KVPool, *, mix: Mix, num_drafts: int, group: int = 0
    ) -> None:
        self.taps: tuple[int, ...] = ()
        self.group = group
        self.num_drafts = num_drafts
        self._model = model
        self._pool = pool
        self._mix = mix

    @property
    def arrays(self) -> list[mx.array]:
        return self._pool.arrays

    def absorb(self, seen: Seen, batch: Batch, layout: PageLayout) -> None:
        """Run the model over all rows of the step for their keys and values.

        Rows of drafts that the target rejects are stored too: they lie beyond the new length and
        are written again before they can be read.
        """
        attend = CausalAttend(self._pool, layout, self._mix)
        self._model.forward(batch.token_ids, batch.positions, attend)

    def propose(self, anchors: Anchors) -> Draft:
        """Run K steps of one row per request, each on the token of the one before.

        Keys and values of these rows go to the lookahead slots that the scheduler reserves, and to
        the null block where none were granted; the next step writes over them.
        """
        bounds = [bound + self.num_drafts for bound in anchors.bounds]
        layout = make_context_layout(anchors.tables, bounds, self._pool.block_size)
        token_ids, drafts = anchors.tokens, []
        for step in range(self.num_drafts):
            positions = anchors.positions + step
            attend = RowAttend(self._pool, layout, self._mix, positions=positions)
            hidden = self._model.forward(token_ids, positions, attend).hidden
            token_ids = self._model.unembed(hidden).argmax(axis=-1).astype(mx.int32)
            drafts.append(token_ids)
        return Draft(mx.stack(drafts, axis=1))
