"""What one request asked of the sampler, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling options of one request, already checked by vLLM.

    Attributes:
        temperature: 0 means argmax.
        top_k: 0 keeps all tokens. top_p: 1 keeps all. min_p: 0 keeps all.
        seed: start of the request's random stream.
        stop_ids: end-of-sequence and stop token ids, banned until ``min_tokens``.
        end_ids: the stop ids that do end the request (no end-of-sequence id under ignore_eos).
        max_tokens: output tokens after which the request ends; None means the context limit.
        allowed_ids: only these may be sampled; None allows all.
        bad_words: token id sequences that may not appear.
        num_logprobs: alternatives to report per output token; None reports nothing, -1 all.
        num_prompt_logprobs: the same for prompt tokens.
        logprob_ids: report these ids instead of the most likely ones.
        is_structured: a grammar mask comes with every step.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()
    end_ids: frozenset[int] = frozenset()
    max_tokens: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    logprob_ids: tuple[int, ...] = ()
    is_structured: bool = False

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )

    @property
    def has_rules(self) -> bool:
        """Whether logits must be edited before temperature."""
        return bool(
            self.has_penalties
            or self.min_tokens
            or self.logit_bias
            or self.allowed_ids is not None
            or self.bad_words
        )

    @property
    def wants_logprobs(self) -> bool:
        return self.num_logprobs is not None or bool(self.logprob_ids)
