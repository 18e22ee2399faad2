"""Accept rules for drafts that were drawn, not picked: standard and block rejection sampling.

Standard: Leviathan et al. 2023; block: Sun et al. 2024, "Block verification accelerates
speculative decoding". Both emit exactly the target's distribution.
"""

import mlx.core as mx

TINY = 1e-12


def residual_weights(p: mx.array, q: mx.array, kept: mx.array | float = 1.0) -> mx.array:
    """What to draw from after a rejection: kept * p - q where positive, or p where nothing is.

    Args:
        p, q: [..., V] distributions of target and draft.
        kept: [..., 1] joint weight of the accepted prefix; 1 for the standard rule.

    Returns:
        [..., V], not normalised.
    """
    extra = mx.maximum(kept * p - q, 0.0)
    return mx.where(extra.sum(axis=-1, keepdims=True) > TINY, extra, p)


def draw_weighted(weights: mx.array, noise: mx.array) -> mx.array:
    """Draw an index in proportion to weights [..., V] with Gumbel noise [..., V]: [...] int32."""
    logits = mx.where(weights > 0, mx.log(mx.maximum(weights, 1e-38)), -mx.inf)
    return mx.argmax(logits + noise, axis=-1).astype(mx.int32)


def verify_standard(
    p: mx.array, q: mx.array, drafts: mx.array, uniforms: mx.array, noise: mx.array
) -> mx.array:
    """Keep each draft with chance min(1, p/q), else draw its replacement.

    A rejected draft has no residual weight, so the result differs from it; the first row whose
    token is not the draft ends the round.

    Args:
        p, q: [S, V] distributions of target and draft at S verified rows.
        drafts: [S] int32, drawn from q.
        uniforms: [S] in [0, 1). noise: [S, V] Gumbel.

    Returns:
        [S] int32, the draft where it is kept.
    """
    index = drafts[:, None]
    p_draft = mx.take_along_axis(p, index, axis=1)[:, 0]
    q_draft = mx.take_along_axis(q, index, axis=1)[:, 0]
    is_kept = uniforms * q_draft < p_draft
    return mx.where(is_kept, drafts, draw_weighted(residual_weights(p, q), noise))


def verify_block(
    p: mx.array, q: mx.array, drafts: mx.array, uniforms: mx.array, noise: mx.array
) -> tuple[mx.array, mx.array]:
    """Accept a prefix of one request's block by the joint rule.

    With w_0 = 1 and w_i = min(1, w_{i-1} p_i(d_i) / q_i(d_i)), prefix i is accepted with chance
    h_i = s_i / (s_i + 1 - w_i), s_i = sum of max(w_i p_{i+1} - q_{i+1}, 0), and h_K = w_K; the
    longest accepted prefix counts, and the next token is drawn from that residual.

    Args:
        p: [K+1, V]; q: [K, V]; drafts: [K] int32; uniforms: [K]; noise: [K+1, V] Gumbel.

    Returns:
        accepted: int32 scalar array in 0..K, and tokens [K+1] int32: the accepted drafts, then
        the token drawn after each possible prefix at its own index.
    """
    num_drafts = drafts.shape[0]
    chances, weights = block_chances(p, q, drafts)
    is_accepted = uniforms < chances
    lengths = mx.where(is_accepted, mx.arange(1, num_drafts + 1), 0)
    accepted = lengths.max().astype(mx.int32)
    residual = residual_weights(p[:num_drafts], q, weights[:num_drafts, None])
    drawn = draw_weighted(mx.concatenate([residual, p[num_drafts:]]), noise)
    is_kept = mx.arange(num_drafts) < accepted
    return accepted, mx.concatenate([mx.where(is_kept, drafts, drawn[:-1]), drawn[-1:]])


def block_chances(p: mx.array, q: mx.array, drafts: mx.array) -> tuple[mx.array, mx.array]:
    """Chances h_1..h_K [K] and weights w_0..w_K [K+1] of the joint rule; shapes as there."""
    num_drafts = drafts.shape[0]
    weight = mx.array(1.0)
    weights, chances = [weight], []
    for slot in range(num_drafts):
        token = drafts[slot]
        weight = mx.minimum(weight * p[slot, token] / mx.maximum(q[slot, token], TINY), 1.0)
        weights.append(weight)
        if slot + 1 == num_drafts:
            chances.append(weight)
            continue
        extra = mx.maximum(weight * p[slot + 1] - q[slot + 1], 0.0).sum()
        chances.append(mx.where(weight >= 1.0, 1.0, extra / mx.maximum(extra + 1 - weight, TINY)))
    return mx.stack(chances), mx.stack(weights)
