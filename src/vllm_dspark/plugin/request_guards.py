"""What is refused per request, as HTTP 400 with the parameter's name."""

from dataclasses import dataclass
from typing import Any

from vllm.exceptions import VLLMValidationError


@dataclass(frozen=True, slots=True)
class RequestGuard:
    """One request parameter that is refused.

    Attributes:
        parameter: name in ``SamplingParams``.
        off: values that mean it is not used.
        advice: what to do instead.
    """

    parameter: str
    off: tuple[Any, ...]
    advice: str


REQUEST_GUARDS: tuple[RequestGuard, ...] = (
    RequestGuard(
        "prompt_logprob_token_ids",
        (None,),
        "scores of fixed prompt ids are not implemented: use prompt_logprobs",
    ),
    RequestGuard(
        "thinking_token_budget",
        (None,),
        "budgets for reasoning tokens are not implemented: use max_tokens",
    ),
    RequestGuard(
        "trace_decode_token_ids",
        (None,),
        "replay of a trace is not implemented: leave it out",
    ),
)


def check_request(params: Any) -> None:
    """Raise VLLMValidationError for the first parameter that is refused."""
    for guard in REQUEST_GUARDS:
        value = getattr(params, guard.parameter, None)
        # Compared by identity: vLLM turns some lists into arrays, whose == is not a truth value.
        if not any(value is off for off in guard.off):
            raise VLLMValidationError(
                f"{guard.parameter} is set; {guard.advice}", parameter=guard.parameter
            )
