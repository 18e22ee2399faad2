"""What a request may not ask is refused with the parameter's name, as HTTP 400."""

from typing import Any

import pytest
from vllm.exceptions import VLLMValidationError

from vllm_dspark.plugin.request_guards import REQUEST_GUARDS, check_request

pytestmark = pytest.mark.vllm

BROKEN: dict[str, dict[str, Any]] = {
    "prompt_logprob_token_ids": {"prompt_logprob_token_ids": [[1, 2]]},
    "thinking_token_budget": {"thinking_token_budget": 5},
    "trace_decode_token_ids": {"trace_decode_token_ids": [1, 2]},
}


@pytest.mark.parametrize("parameter", [guard.parameter for guard in REQUEST_GUARDS])
def test_each_parameter_is_refused_with_its_name(parameter: str) -> None:
    from vllm import SamplingParams

    check_request(SamplingParams())
    with pytest.raises(VLLMValidationError) as caught:
        check_request(SamplingParams(**BROKEN[parameter]))
    assert caught.value.parameter == parameter
    assert str(caught.value).startswith(f"{parameter} is set; ")


@pytest.mark.parametrize("parameter", sorted(BROKEN))
def test_the_engine_refuses_it_and_goes_on(sync_llm: Any, parameter: str) -> None:
    from engines import PROMPTS, expected_tokens, greedy, token_ids

    with pytest.raises(VLLMValidationError, match=parameter):
        sync_llm.generate([PROMPTS[0]], greedy(4, **BROKEN[parameter]), use_tqdm=False)
    outputs = sync_llm.generate([PROMPTS[0]], greedy(), use_tqdm=False)
    assert token_ids(outputs) == expected_tokens(PROMPTS[:1])


OUT_OF_VOCABULARY: dict[str, dict[str, Any]] = {
    "logit_bias": {"logit_bias": {512: 1.0}},
    "stop_token_ids": {"stop_token_ids": [512]},
    "allowed_token_ids": {"allowed_token_ids": [512]},
    "logprob_token_ids": {"logprob_token_ids": [-1]},
}


@pytest.mark.parametrize("parameter", sorted(OUT_OF_VOCABULARY))
def test_ids_outside_the_vocabulary_never_reach_the_device(sync_llm: Any, parameter: str) -> None:
    from engines import PROMPTS, greedy

    wanted = greedy(4, min_tokens=2, **OUT_OF_VOCABULARY[parameter])
    with pytest.raises(VLLMValidationError, match=parameter):
        sync_llm.generate([PROMPTS[0]], wanted, use_tqdm=False)
    assert sync_llm.generate([PROMPTS[0]], greedy(2), use_tqdm=False)


def test_prompt_ids_outside_the_vocabulary_are_refused(sync_llm: Any) -> None:
    from engines import greedy

    with pytest.raises(VLLMValidationError, match="out of vocabulary"):
        sync_llm.generate([{"prompt_token_ids": [5, 512]}], greedy(2), use_tqdm=False)


def test_a_prompt_longer_than_the_context_is_refused(sync_llm: Any) -> None:
    from engines import greedy

    with pytest.raises(VLLMValidationError, match="512"):
        sync_llm.generate([{"prompt_token_ids": [5] * 600}], greedy(2), use_tqdm=False)
