"""Whole engines that draft: the target's own output, and drafts that do not depend on history."""

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from drafting import (
    assert_same_drafts,
    counted,
    drafting_engine,
    kept_rounds,
    pair_bytes,
    watched,
    worker_of,
)
from engines import (
    PROMPTS,
    counted_preemptions,
    expected_tokens,
    free_blocks,
    greedy,
    scheduler_of,
    token_ids,
)

pytestmark = pytest.mark.vllm

COMPACT_JSON = {"backend": "xgrammar", "disable_any_whitespace": True}
MODES = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


@pytest.fixture(scope="module", params=[False, True], ids=["sync", "async"])
def drafter(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A roomy engine that drafts 7 tokens."""
    with drafting_engine(
        async_scheduling=request.param,
        max_logprobs=-1,
        structured_outputs_config=COMPACT_JSON,
    ) as llm:
        yield llm


def generate(llm: Any, prompts: Any, params: Any) -> list[Any]:
    return llm.generate(prompts, params, use_tqdm=False)


def params(**options: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(**{"temperature": 0.0, "max_tokens": 32, **options})


def test_greedy_tokens_equal_mlx_lm_alone_and_in_a_batch(drafter: Any) -> None:
    before = free_blocks(drafter)
    with counted(drafter) as moved:
        alone = [token_ids(generate(drafter, [prompt], greedy()))[0] for prompt in PROMPTS]
        together = token_ids(generate(drafter, list(PROMPTS), greedy()))
    assert alone == expected_tokens()
    assert together == expected_tokens()
    assert moved["num_accepted_tokens"] > 2 * 8 * 24
    assert free_blocks(drafter) == before


def test_counters_equal_a_recount_of_emitted_tokens(drafter: Any) -> None:
    with counted(drafter) as moved, watched(drafter) as rounds:
        generate(drafter, list(PROMPTS), greedy(40))
    kept = [one for one in kept_rounds(rounds, 40) if one.num_verified]
    accepted = [one.num_tokens - 1 for one in kept]
    assert moved["num_drafts"] == len(kept)
    assert moved["num_draft_tokens"] == sum(one.num_verified for one in kept)
    assert moved["num_accepted_tokens"] == sum(accepted)
    by_position = [sum(count > place for count in accepted) for place in range(7)]
    assert moved["num_accepted_tokens_per_pos"].tolist() == by_position


@pytest.mark.parametrize("length", [31, 32, 33, 49])
def test_a_prefix_hit_gives_the_cold_drafts(drafter: Any, length: int) -> None:
    tokenizer = drafter.get_tokenizer()
    ids = tokenizer.encode(PROMPTS[2] + PROMPTS[4] + PROMPTS[6])[:length]
    assert len(ids) == length
    drafter.reset_prefix_cache()
    runs = []
    for _ in range(2):
        with counted(drafter) as moved, watched(drafter) as rounds:
            output = generate(drafter, [{"prompt_token_ids": ids}], greedy(24))[0]
        runs.append((output, moved, kept_rounds(rounds, 24)))
    (cold, cold_moved, cold_rounds), (warm, warm_moved, warm_rounds) = runs
    assert cold.num_cached_tokens == 0
    # A prompt of 33 or 49 tokens has one token left to compute: a padded admission.
    assert warm.num_cached_tokens == (length - 1) // 16 * 16
    assert token_ids([warm]) == token_ids([cold])
    assert_same_drafts(warm_rounds, cold_rounds)
    for name, value in cold_moved.items():
        assert np.all(value == warm_moved[name]), name


def test_a_hit_on_decoded_pages_gives_the_cold_drafts(drafter: Any) -> None:
    drafter.reset_prefix_cache()
    first = generate(drafter, [PROMPTS[2]], greedy(40))[0]
    longer = [*first.prompt_token_ids, *first.outputs[0].token_ids, 17, 202]
    runs = []
    for _ in range(2):
        with watched(drafter) as rounds:
            output = generate(drafter, [{"prompt_token_ids": longer}], greedy(16))[0]
        runs.append((output, kept_rounds(rounds, 16)))
        drafter.reset_prefix_cache()
    (warm, warm_rounds), (cold, cold_rounds) = runs
    assert warm.num_cached_tokens > len(first.prompt_token_ids)
    assert cold.num_cached_tokens == 0
    assert_same_drafts(warm_rounds, cold_rounds)


def test_requests_that_share_a_running_prefix_give_the_cold_drafts(drafter: Any) -> None:
    ids = drafter.get_tokenizer().encode(PROMPTS[2] + PROMPTS[4])[:48]
    drafter.reset_prefix_cache()
    with watched(drafter) as rounds:
        generate(drafter, [{"prompt_token_ids": ids}], greedy(24))
    expected = kept_rounds(rounds, 24)
    drafter.reset_prefix_cache()
    core = drafter.llm_engine
    with watched(drafter) as rounds:
        for number in range(5):
            core.add_request(f"s{number}", {"prompt_token_ids": ids}, greedy(24))
            core.step()
        while core.has_unfinished_requests():
            core.step()
    for number in range(5):
        own = [one for one in rounds if one.request_id.startswith(f"s{number}")]
        assert_same_drafts(kept_rounds(own, 24), expected)


@MODES
@pytest.mark.parametrize("chunk", [64, 512])
def test_preempted_requests_give_the_same_tokens(is_async: bool, chunk: int) -> None:
    with drafting_engine(
        async_scheduling=is_async,
        kv_cache_memory_bytes=pair_bytes(16),
        max_model_len=160,
        max_num_seqs=8,
        max_num_batched_tokens=chunk,
    ) as llm:
        before = free_blocks(llm)
        with counted_preemptions(llm) as preempted, counted(llm) as moved:
            outputs = generate(llm, list(PROMPTS), greedy(64))
        assert len(preempted) > 0
        assert token_ids(outputs) == expected_tokens(max_tokens=64)
        assert moved["num_accepted_tokens"] > 8 * 24
        assert free_blocks(llm) == before


@MODES
@pytest.mark.parametrize(
    ("name", "block_size", "num_drafts"),
    [
        ("deepspec-gated-k5", 8, 5),
        ("speculators-fillin-sliding-k5", 32, 3),
        ("speculators-reduced-vocab-k4", 16, 1),
    ],
)
def test_other_drafts_block_sizes_and_widths_give_the_same_tokens(
    name: str, block_size: int, num_drafts: int, is_async: bool
) -> None:
    with drafting_engine(
        name,
        {"num_speculative_tokens": num_drafts},
        async_scheduling=is_async,
        block_size=block_size,
        max_model_len=160,
        max_num_batched_tokens=128,
    ) as llm:
        with counted(llm) as moved:
            outputs = generate(llm, list(PROMPTS), greedy())
        assert token_ids(outputs) == expected_tokens()
        assert moved["num_accepted_tokens"] > 8 * 12
        assert len(moved["num_accepted_tokens_per_pos"]) == num_drafts


@MODES
def test_the_schedule_by_batch_size_is_followed(is_async: bool) -> None:
    schedule = [(1, 1, 7), (2, 4, 2), (5, 16, 0)]
    with drafting_engine(
        speculative={"num_speculative_tokens_per_batch_size": schedule},
        async_scheduling=is_async,
    ) as llm:
        for count, width in ((1, 7), (3, 2), (8, 0)):
            with watched(llm) as rounds:
                outputs = generate(llm, list(PROMPTS[:count]), greedy(24))
            assert token_ids(outputs) == expected_tokens(PROMPTS[:count], 24)
            most = max(one.num_verified for one in rounds[: len(rounds) // 2])
            assert most == width
        assert worker_of(llm)._runner.policy.reasons["schedule_zero"] > 0


@pytest.mark.parametrize("steps_before", [1, 2, 5])
def test_an_abort_and_its_id_used_again_leave_no_trace(drafter: Any, steps_before: int) -> None:
    before = free_blocks(drafter)
    core = drafter.llm_engine
    names = [f"abort-{steps_before}-{index}" for index in range(len(PROMPTS))]
    for name, prompt in zip(names, PROMPTS, strict=True):
        core.add_request(name, prompt, greedy())
    for _ in range(steps_before):
        core.step()
    aborted = (0, 3, 7)
    core.abort_request([names[index] for index in aborted])
    for index in aborted:
        core.add_request(names[index], PROMPTS[7 - index], greedy())
    tokens: dict[str, list[int]] = {}
    while core.has_unfinished_requests():
        for output in core.step():
            if output.finished:
                tokens[output.request_id] = list(output.outputs[0].token_ids)
    expected = expected_tokens()
    for index, name in enumerate(names):
        assert tokens[name] == expected[7 - index if index in aborted else index]
    generate(drafter, [PROMPTS[5]], greedy(2))
    assert free_blocks(drafter) == before
    assert len(worker_of(drafter)._runner.table) <= 1


GRAMMARS = {
    "regex": {"regex": r"(Ada|Ben) has [0-9]{2,4} red books\."},
    "choice": {"choice": ["Finn puts the maps", "Finn puts the books", "Eva"]},
    "json": {
        "json": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"type": "integer"}},
            "required": ["name", "n"],
            "additionalProperties": False,
        }
    },
    "grammar": {"grammar": 'root ::= item ("; " item){2,6}\nitem ::= [a-z]{3,5} " is " [0-9]'},
}


@pytest.mark.parametrize("kind", GRAMMARS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_structured_outputs_equal_the_target_alone(
    drafter: Any, sync_llm: Any, kind: str, temperature: float
) -> None:
    from vllm.sampling_params import StructuredOutputsParams

    options = [
        params(
            temperature=temperature,
            seed=5,
            max_tokens=48,
            structured_outputs=StructuredOutputsParams(**GRAMMARS[kind]),
        ),
        greedy(32),
    ]
    prompts = [PROMPTS[0], PROMPTS[1]]
    with counted(drafter) as moved:
        ours = generate(drafter, prompts, options)
    assert token_ids(ours) == token_ids(generate(sync_llm, prompts, options))
    assert moved["num_draft_tokens"] > 0
    text = ours[0].outputs[0].text
    if ours[0].outputs[0].finish_reason == "stop":
        check_grammar(kind, text)
    if kind in ("regex", "choice"):
        assert ours[0].outputs[0].finish_reason == "stop"


def check_grammar(kind: str, text: str) -> None:
    """Assert that a finished text obeys its grammar."""
    if kind == "json":
        assert set(json.loads(text)) == {"name", "n"}
    elif kind == "choice":
        assert text in GRAMMARS[kind]["choice"]
    elif kind == "regex":
        assert re.fullmatch(GRAMMARS[kind]["regex"], text)
    else:
        assert re.fullmatch(r"[a-z]{3,5} is [0-9](; [a-z]{3,5} is [0-9]){2,6}", text)


KINDS = {
    "sampled": {"temperature": 0.8, "seed": 3},
    "truncated": {"temperature": 1.2, "top_p": 0.8, "top_k": 20, "seed": 4},
    "penalised": {"presence_penalty": 0.7, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
    "bad words": {"bad_words": ["gia + gia", "Ada", "small"]},
    "allowed": {"allowed_token_ids": list(range(250))},
    "min tokens": {"min_tokens": 20, "stop_token_ids": [202, 17, 366]},
    "stop ids": {"stop_token_ids": [202]},
    "stop strings": {"stop": ["box.", "return", "right"], "include_stop_str_in_output": True},
    "stop string inside": {"stop": ["he", "s a"]},
    "logprobs": {"logprobs": 3},
    "sampled logprobs": {"logprobs": 1, "temperature": 1.0, "seed": 6},
    "prompt logprobs": {"prompt_logprobs": 2, "max_tokens": 8},
    "several": {"n": 3, "temperature": 1.0, "seed": 7},
}


@pytest.mark.parametrize("kind", KINDS)
def test_any_request_equals_the_target_alone(drafter: Any, sync_llm: Any, kind: str) -> None:
    before = free_blocks(drafter)
    options = params(**KINDS[kind])
    with counted(drafter) as moved:
        ours = generate(drafter, list(PROMPTS[:4]), options)
    expected = generate(sync_llm, list(PROMPTS[:4]), options)
    for one, other in zip(ours, expected, strict=True):
        assert len(one.outputs) == len(other.outputs)
        for mine, theirs in zip(one.outputs, other.outputs, strict=True):
            assert mine.token_ids == theirs.token_ids
            assert mine.text == theirs.text
            assert (mine.finish_reason, mine.stop_reason) == (
                theirs.finish_reason,
                theirs.stop_reason,
            )
            assert_same_logprobs(mine.logprobs, theirs.logprobs)
        assert_same_logprobs(one.prompt_logprobs, other.prompt_logprobs)
    assert moved["num_draft_tokens"] > 0
    generate(drafter, [PROMPTS[5]], greedy(2))
    assert free_blocks(drafter) == before


def assert_same_logprobs(ours: Any, expected: Any) -> None:
    assert (ours is None) == (expected is None)
    for one, other in zip(ours or (), expected or (), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert list(one) == list(other)
            for token, value in one.items():
                assert value.logprob == pytest.approx(other[token].logprob, abs=1e-4)
                assert value.rank == other[token].rank


def test_a_mixed_batch_of_all_kinds_equals_the_target_alone(drafter: Any, sync_llm: Any) -> None:
    options = [params(**kind) for kind in KINDS.values()]
    prompts = [PROMPTS[index % len(PROMPTS)] for index in range(len(options))]
    ours, expected = (generate(llm, prompts, options) for llm in (drafter, sync_llm))
    for one, other in zip(ours, expected, strict=True):
        assert [list(out.token_ids) for out in one.outputs] == [
            list(out.token_ids) for out in other.outputs
        ]


@pytest.mark.parametrize("room", [1, 2, 5, 9])
def test_requests_run_to_exactly_the_context_limit(drafter: Any, room: int) -> None:
    ids = drafter.get_tokenizer().encode("".join(PROMPTS) * 6)[: 512 - room]
    assert len(ids) == 512 - room
    before = free_blocks(drafter)
    output = generate(drafter, [{"prompt_token_ids": ids}], params(max_tokens=None))[0]
    tokens = output.outputs[0].token_ids
    assert len(tokens) == room or output.outputs[0].finish_reason == "stop"
    generate(drafter, [PROMPTS[5]], greedy(2))
    assert free_blocks(drafter) == before


def random_requests(count: int, seed: int) -> list[tuple[list[int], int]]:
    """Prompts cut out of the tests' texts, with numbers of tokens to generate."""
    from engines import reference_model

    text = reference_model()[1].encode(" ".join(PROMPTS) * 2)
    random = np.random.default_rng(seed)
    requests = []
    for _ in range(count):
        start = int(random.integers(0, len(text) // 2))
        stop = start + int(random.integers(1, 60))
        requests.append((text[start:stop], int(random.integers(1, 30))))
    return requests


def test_a_hundred_random_requests_with_aborts_equal_the_target_alone(
    drafter: Any, sync_llm: Any
) -> None:
    requests = random_requests(100, seed=1)
    prompts = [{"prompt_token_ids": ids} for ids, _ in requests]
    solo = token_ids(generate(sync_llm, prompts, greedy(30)))
    before = free_blocks(drafter)
    random = np.random.default_rng(2)
    core = drafter.llm_engine
    waiting, running = list(range(100)), set()
    finished: dict[int, list[int]] = {}
    width = 16
    while waiting or core.has_unfinished_requests():
        if random.random() < 0.1:
            width = int(random.integers(1, 17))
        while waiting and len(running) < width:
            index = waiting.pop()
            core.add_request(f"r{index}", prompts[index], greedy(requests[index][1]))
            running.add(index)
        for output in core.step():
            if output.finished:
                index = int(output.request_id[1:])
                running.discard(index)
                finished[index] = list(output.outputs[0].token_ids)
        if running and random.random() < 0.05:
            index = sorted(running)[0]
            core.abort_request([f"r{index}"])
            running.discard(index)
    assert len(finished) > 80
    assert all(tokens == solo[index][: requests[index][1]] for index, tokens in finished.items())
    generate(drafter, [PROMPTS[5]], greedy(2))
    assert free_blocks(drafter) == before
    assert not scheduler_of(drafter).has_unfinished_requests()
