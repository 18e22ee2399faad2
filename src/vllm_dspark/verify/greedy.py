"""The accept rule of greedy decoding: a draft stands while it is the target's own argmax."""

import mlx.core as mx


def verify_greedy(
    drafts: mx.array, num_drafted: mx.array, choices: mx.array
) -> tuple[mx.array, mx.array]:
    """Accept the leading drafts that the target agrees with, and pick the token after them.

    Args:
        drafts: [R, K] int32, draft tokens; entries at num_drafted[r] and later are padding.
        num_drafted: [R] int32, drafts of each request that were verified, 0..K.
        choices: [R, K+1] int32, the target's argmax at the anchor and at each draft.

    Returns:
        accepted [R] int32 in 0..num_drafted[r], and next_token [R] int32.
    """
    num_slots = drafts.shape[1]
    if num_slots == 0:
        return mx.zeros(choices.shape[:1], dtype=mx.int32), choices[:, 0]
    is_drafted = mx.arange(num_slots) < num_drafted[:, None]
    agrees = ((drafts == choices[:, :-1]) & is_drafted).astype(mx.int32)
    accepted = mx.cumprod(agrees, axis=1).sum(axis=1)
    return accepted, mx.take_along_axis(choices, accepted[:, None], axis=1)[:, 0]
