"""Verification of drafts that were drawn from the draft's distribution."""

from collections.abc import Sequence

import mlx.core as mx

from vllm_dspark.runner.pack import Span
from vllm_dspark.sampling.draw import ROUND_STRIDE, draw_key
from vllm_dspark.verify.sampled import verify_block, verify_standard

ACCEPT_STREAM = 2
"""Random stream of accept decisions, apart from the target's tokens (0) and the drafts (1)."""


def is_drawn(span: Span) -> bool:
    """Whether this span verifies drafts that came from a stored distribution."""
    return bool(span.drafts) and span.request.draft_logits is not None


def choose_drawn(
    span: Span, shaped: mx.array, noise_keys: Sequence[tuple[int, int]], *, method: str
) -> tuple[mx.array, mx.array | None]:
    """Choose the tokens of one span by rejection sampling.

    Args:
        span: with n drafts, drawn from ``request.draft_logits``.
        shaped: [n+1, V] logits of the span's rows; softmax is the target's distribution.
        noise_keys: keys of the rows' own draws.
        method: "standard" or "block".

    Returns:
        tokens [n+1] int32, and for "block" the number of accepted drafts (else None: drafts are
        accepted while they equal the tokens).
    """
    request, count = span.request, len(span.drafts)
    assert request.draft_logits is not None
    p = mx.softmax(shaped, axis=-1, precise=True)
    q = mx.softmax(request.draft_logits[:count].astype(mx.float32), axis=-1, precise=True)
    drafts = mx.array(list(span.drafts), mx.int32)
    first = span.start + span.num_known
    keys = [
        draw_key(request.sampling.seed, first * ROUND_STRIDE + slot, ACCEPT_STREAM)
        for slot in range(count)
    ]
    uniforms = mx.stack([mx.random.uniform(key=mx.array(key, mx.uint32)) for key in keys])
    noise = mx.stack(
        [mx.random.gumbel((p.shape[1],), key=mx.array(key, mx.uint32)) for key in noise_keys]
    )
    if method == "block":
        accepted, tokens = verify_block(p, q, drafts, uniforms, noise)
        return tokens, accepted
    kept = verify_standard(p[:count], q, drafts, uniforms, noise[:count])
    bonus = mx.argmax(shaped[count:] + noise[count:], axis=1).astype(mx.int32)
    return mx.concatenate([kept, bonus]), None
