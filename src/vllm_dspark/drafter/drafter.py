"""The drafter: fuse the target's taps, run a block, walk the Markov head to K drafts.

Nothing here waits for the device; every method is a function of arrays and weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from vllm_dspark.drafter.backbone import Backbone, BlockAttend, KeysValues
from vllm_dspark.drafter.confidence import ConfidenceHead
from vllm_dspark.drafter.config import DraftConfig
from vllm_dspark.drafter.markov import MarkovHead, top_candidates
from vllm_dspark.nn.linear import Embedding, Linear

Embed = Callable[[mx.array], mx.array]
Unembed = Callable[[mx.array], mx.array]
Pick = Callable[[int, mx.array], mx.array]
"""(slot, corrected logits [R, Vd]) -> draft ids [R]."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What the drafter proposes for the requests of one step.

    Attributes:
        tokens: [R, K] int32, target token ids.
        confidence_logits: [R, K] float32, or None without a confidence head.
        base_logits: [R, K, Vd] before the Markov bias, or None unless asked for.
        corrected_logits: [R, K, Vd] that the tokens are the argmax of (-inf outside the
            candidates of a top-k walk), or None unless asked for.
        drawn_logits: [R, K, V] over target ids that drawn tokens came from, or None where tokens
            were picked.
    """

    tokens: mx.array
    confidence_logits: mx.array | None = None
    base_logits: mx.array | None = None
    corrected_logits: mx.array | None = None
    drawn_logits: mx.array | None = None


class Drafter(nn.Module):  # noqa: PLR0904 - training uses its parts one by one
    """A block drafter with its heads; an ordinary module, so it also trains.

    Attributes:
        config: what the checkpoint says about itself.
        backbone: taps and block to hidden states.
        markov_head, confidence_head: None where the checkpoint has none.
        embed_tokens, lm_head: the draft's own tables; None means the target's are shared.
    """

    def __init__(  # noqa: PLR0913 - one argument per part of a checkpoint
        self,
        config: DraftConfig,
        backbone: Backbone,
        *,
        markov_head: MarkovHead | None = None,
        confidence_head: ConfidenceHead | None = None,
        embed_tokens: Embedding | None = None,
        lm_head: Linear | None = None,
        draft_to_target: mx.array | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.backbone = backbone
        self.markov_head = markov_head
        self.confidence_head = confidence_head
        self.embed_tokens = embed_tokens
        self.lm_head = lm_head
        self._draft_to_target = draft_to_target  # offsets [Vd] int32; None is the identity

    def lay_out_for_cpu(self, silu: Callable[[mx.array], mx.array]) -> None:
        """Store matrices the way a CPU multiplies fastest; for serving, not for training.

        ``qkv_proj`` stays: its key and value rows are kept once more, for absorbing.

        Args:
            silu: the activation to use from now on.
        """
        self.backbone.join_context()
        for layer in self.backbone.layers:
            layer.mlp.silu = silu
            for linear in (layer.self_attn.o_proj, layer.mlp.gate_up_proj, layer.mlp.down_proj):
                linear.lay_input_major()
        if self.lm_head is not None:
            self.lm_head.lay_input_major()
        if self.markov_head is not None:
            self.markov_head.markov_w2.lay_input_major(fills_rows=False)

    @property
    def draft_to_target(self) -> mx.array | None:
        """Offsets [Vd] int32 from draft ids to target ids; None when they are the same."""
        return self._draft_to_target

    def fuse(self, taps: Sequence[mx.array]) -> mx.array:
        """Fuse the states ``config.tap_states``: each [N, d_target] -> c [N, d]."""
        return self.backbone.fuse(list(taps))

    def context_kv(self, fused: mx.array, positions: mx.array) -> list[KeysValues]:
        """Per layer keys and values [N, KV, D] of tokens with c [N, d] at positions [N]."""
        return self.backbone.context_kv(fused, positions)

    def block(
        self,
        embed: Embed,
        anchors: mx.array,
        positions: mx.array,
        attend: BlockAttend,
        *,
        num_slots: int | None = None,
    ) -> mx.array:
        """Run one block per request.

        Args:
            embed: the target's embedding, used unless the draft has its own; ids -> [..., d].
            anchors: [R] int32, newest tokens, not yet run through the target.
            positions: [R] int32, absolute positions of the anchors.
            attend: attention of one layer over the context before the anchor and the block.
            num_slots: from ``config.slots_for``; None is the trained width.

        Returns:
            g [R, S, d], final-normed hidden states of the slots.
        """
        width = num_slots or self.config.num_slots
        masks = mx.full(
            (anchors.shape[0], width - 1), self.config.mask_token_id, dtype=anchors.dtype
        )
        ids = mx.concatenate([anchors[:, None], masks], axis=1)
        embed = embed if self.embed_tokens is None else self.embed_tokens.lookup
        slots = positions[:, None] + mx.arange(width, dtype=positions.dtype)
        return self.backbone.block(embed(ids), slots, attend)

    def draft_rows(self, hidden: mx.array, num_drafts: int | None = None) -> mx.array:
        """Rows that give drafts 1..K, by the slot layout: g [R, S, d] -> [R, K, d]."""
        first = self.config.first_draft_slot
        return hidden[:, first : first + (num_drafts or self.config.num_drafts)]

    def base_logits(self, rows: mx.array, unembed: Unembed) -> mx.array:
        """Logits before the Markov bias: [..., d] -> [..., Vd], own head before the target's."""
        head = unembed if self.lm_head is None else self.lm_head
        return head(rows)

    def to_target_ids(self, draft_ids: mx.array) -> mx.array:
        """Translate draft vocabulary ids to target token ids, any shape, int32."""
        draft_ids = draft_ids.astype(mx.int32)
        if self._draft_to_target is None:
            return draft_ids
        return draft_ids + self._draft_to_target[draft_ids]

    def to_target_logits(self, logits: mx.array, vocab_size: int) -> mx.array:
        """Spread logits [..., Vd] over target ids [..., V]; ids without a column get -inf."""
        if self._draft_to_target is None and logits.shape[-1] == vocab_size:
            return logits
        ids = self.to_target_ids(mx.arange(logits.shape[-1]))
        spread = mx.full((*logits.shape[:-1], vocab_size), -mx.inf, dtype=logits.dtype)
        spread[..., ids] = logits
        return spread

    def propose(
        self,
        hidden: mx.array,
        anchors: mx.array,
        unembed: Unembed,
        *,
        num_drafts: int | None = None,
        top_k: int | None = None,
        keep_logits: bool = False,
    ) -> Draft:
        """Turn the hidden states of a block into drafts.

        Args:
            hidden: g [R, S, d], from :meth:`block`.
            anchors: [R] int32, target token ids.
            unembed: the target's head, used unless the draft has its own.
            num_drafts: K, 1..config.num_drafts; None is all.
            top_k: from ``resolve_top_k``; None walks over the whole draft vocabulary.
            keep_logits: whether to return base and corrected logits.

        Returns:
            K drafts per request.
        """
        rows = self.draft_rows(hidden, num_drafts)
        base = self.base_logits(rows, unembed)
        return self.walk(base, rows, anchors, top_k=top_k, keep_logits=keep_logits)

    def walk(
        self,
        base: mx.array,
        rows: mx.array,
        anchors: mx.array,
        *,
        top_k: int | None = None,
        keep_logits: bool = False,
        pick: Pick | None = None,
    ) -> Draft:
        """Pick the drafts left to right, each biased by the one before.

        Args:
            base: U [R, K, Vd]; rows: g [R, K, d]; anchors: [R] int32.
            top_k, keep_logits: as in :meth:`propose`.
            pick: chooses among corrected logits, instead of the argmax.
        """
        if pick is not None:
            tokens, corrected = self._walk_picking(base, rows, anchors, top_k, pick)
        elif self.markov_head is None:
            tokens, corrected = self.to_target_ids(base.argmax(axis=-1)), base
        elif top_k is None or top_k == base.shape[-1]:
            tokens, corrected = self._walk_dense(base, rows, anchors)
        else:
            tokens, corrected = self._walk_top(base, rows, anchors, top_k, keep_logits)
        previous = mx.concatenate([anchors[:, None].astype(mx.int32), tokens[:, :-1]], axis=1)
        return Draft(
            tokens=tokens,
            confidence_logits=self.confidences(rows, previous),
            base_logits=base if keep_logits else None,
            corrected_logits=corrected if keep_logits else None,
        )

    def _walk_dense(
        self, base: mx.array, rows: mx.array, anchors: mx.array
    ) -> tuple[mx.array, mx.array]:
        """Tokens [R, K] and corrected logits [R, K, Vd] over the whole draft vocabulary."""
        head = self.markov_head
        e = head.embed(anchors)
        state, tokens, corrected = head.start(e), [], []
        for slot in range(base.shape[1]):
            low_rank, state = head.step(e, rows[:, slot], state)
            corrected.append(base[:, slot] + head.bias(low_rank))
            tokens.append(self.to_target_ids(corrected[-1].argmax(axis=-1)))
            e = head.embed(tokens[-1])
        return mx.stack(tokens, axis=1), mx.stack(corrected, axis=1)

    def _walk_picking(
        self,
        base: mx.array,
        rows: mx.array,
        anchors: mx.array,
        top_k: int | None,
        pick: Pick,
    ) -> tuple[mx.array, mx.array]:
        """Like :meth:`_walk_dense`, with ``pick`` choosing; top_k cuts the base logits."""
        if top_k is not None:
            values, ids = top_candidates(base, top_k)
            base = mx.put_along_axis(mx.full(base.shape, -mx.inf), ids, values, axis=-1)
        head, previous, tokens, corrected = self.markov_head, anchors, [], []
        state = None if head is None else head.start(head.embed(anchors))
        for slot in range(base.shape[1]):
            logits = base[:, slot]
            if head is not None:
                low_rank, state = head.step(head.embed(previous), rows[:, slot], state)
                logits = logits + head.bias(low_rank)
            corrected.append(logits)
            previous = self.to_target_ids(pick(slot, logits))
            tokens.append(previous)
        return mx.stack(tokens, axis=1), mx.stack(corrected, axis=1)

    def _walk_top(
        self,
        base: mx.array,
        rows: mx.array,
        anchors: mx.array,
        top_k: int,
        keep_logits: bool,
    ) -> tuple[mx.array, mx.array | None]:
        """Like :meth:`_walk_dense` among the ``top_k`` best base logits of each slot."""
        head = self.markov_head
        values, ids = top_candidates(base, top_k)  # ids ascend: argmax keeps the tie order
        w2_rows = head.candidate_rows(ids)  # [R, K, top_k, r]
        e = head.embed(anchors)
        state, tokens, scores = head.start(e), [], []
        for slot in range(base.shape[1]):
            low_rank, state = head.step(e, rows[:, slot], state)
            bias = (w2_rows[:, slot] @ low_rank[..., None])[..., 0]
            scores.append(values[:, slot] + bias)
            best = scores[-1].argmax(axis=-1, keepdims=True)
            chosen = mx.take_along_axis(ids[:, slot], best, axis=-1)[:, 0]
            tokens.append(self.to_target_ids(chosen))
            e = head.embed(tokens[-1])
        corrected = None
        if keep_logits:
            empty = mx.full(base.shape, -mx.inf, dtype=base.dtype)
            corrected = mx.put_along_axis(empty, ids, mx.stack(scores, axis=1), axis=-1)
        return mx.stack(tokens, axis=1), corrected

    def confidences(self, rows: mx.array, previous: mx.array) -> mx.array | None:
        """Logits of each slot's acceptance chance.

        Args:
            rows: g [..., K, d]; previous: [..., K] int32, target ids of the tokens before.

        Returns:
            [..., K] float32, or None without a confidence head.
        """
        if self.confidence_head is None:
            return None
        e = self.markov_head.embed(previous) if self.confidence_head.reads_markov else None
        return self.confidence_head(rows, e)

    def teacher_forced(
        self, rows: mx.array, previous: mx.array
    ) -> tuple[mx.array | None, mx.array | None]:
        """Markov bias and confidence when the previous tokens are known, for training.

        Args:
            rows: g [..., K, d], the rows that give drafts.
            previous: [..., K] int32, target ids: the anchor, then the true tokens after it.

        Returns:
            Bias [..., K, Vd] to add to the base logits (None without a Markov head), and
            confidence logits [..., K] (None without a confidence head).
        """
        confidence_logits = self.confidences(rows, previous)
        if self.markov_head is None:
            return None, confidence_logits
        e = self.markov_head.embed(previous)
        return self.markov_head.bias(self.markov_head.all_slots(e, rows)), confidence_logits
