"""Log-probabilities of prompt tokens, gathered chunk by chunk."""

import mlx.core as mx

from vllm_dspark.models.decoder import Decoder
from vllm_dspark.runner.pack import Span
from vllm_dspark.sampling.logprobs import TokenScores, score_tokens


def wants_prompt_scores(span: Span) -> bool:
    """Whether rows of this span judge prompt tokens that the request asked about.

    A request that was preempted after its first output has reported them already.
    """
    request = span.request
    return (
        request.sampling.num_prompt_logprobs is not None
        and not request.is_resumed
        and span.start < request.num_prompt - 1
    )


def score_prompt_rows(
    target: Decoder, hidden: mx.array, span: Span, *, is_logits: bool
) -> TokenScores:
    """Score prompt tokens start+1 .. with the rows before them.

    Args:
        hidden: [N, H] final states of the whole step.
    """
    request = span.request
    stop = min(span.start + span.num_known, request.num_prompt - 1)
    rows = hidden[span.first_row : span.first_row + stop - span.start]
    chosen = mx.array(request.token_ids[span.start + 1 : stop + 1], mx.int32)
    logits = target.unembed(rows).astype(mx.float32)
    num_top = request.sampling.num_prompt_logprobs or 0
    return score_tokens(logits, chosen, num_top=num_top, is_logits=is_logits)
