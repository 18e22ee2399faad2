"""Everything SamplingParams offers, compared with a recomputation from mlx_lm's logits."""

import json
import re
from typing import Any

import numpy as np
import pytest
from engines import PROMPTS, counted_preemptions, engine, greedy, pool_bytes, token_ids
from recompute import all_logits, forced_logits, log_softmax, penalised, tokens_of

pytestmark = pytest.mark.vllm

TOLERANCE = 1e-4


def params(**options: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(**{"max_tokens": 24, "temperature": 0.0, **options})


def one(llm: Any, options: Any, prompt: str = PROMPTS[2]) -> Any:
    return llm.generate([prompt], options, use_tqdm=False)[0]


PENALTIES = [
    {"presence": 1.5},
    {"frequency": 0.7},
    {"repetition": 1.3},
    {"presence": -0.5, "frequency": 0.4, "repetition": 0.9},
]


@pytest.mark.parametrize("wanted", PENALTIES, ids=str)
def test_penalties_choose_what_their_formula_says(llm: Any, wanted: dict[str, float]) -> None:
    options = {f"{name}_penalty": value for name, value in wanted.items()}
    outputs = llm.generate(
        [PROMPTS[2], PROMPTS[0]], [params(**options, ignore_eos=True), greedy(24)], use_tqdm=False
    )
    plain = one(llm, greedy(24))
    tokens, prompt = tokens_of(outputs[0]), outputs[0].prompt_token_ids
    for index, logits in enumerate(forced_logits(outputs[0])):
        row = penalised(logits, prompt, tokens[:index], **wanted)
        assert row[tokens[index]] > row.max() - TOLERANCE
    assert tokens != tokens_of(plain)
    assert tokens_of(outputs[1]) == tokens_of(one(llm, greedy(24), PROMPTS[0]))


def test_logit_bias_moves_a_token_up_and_another_out(llm: Any) -> None:
    plain = tokens_of(one(llm, greedy(8)))
    banned = tokens_of(one(llm, params(logit_bias={plain[0]: -100.0})))
    assert plain[0] not in banned
    assert set(tokens_of(one(llm, params(logit_bias={200: 100.0}, max_tokens=4)))) == {200}


def test_bad_words_are_never_completed(llm: Any) -> None:
    def has(tokens: list[int], word: list[int]) -> bool:
        return any(tokens[at : at + len(word)] == word for at in range(len(tokens)))

    encode = llm.get_tokenizer().encode
    plain = tokens_of(one(llm, greedy(24)))
    long, short = encode(" gia + gia"), encode(" Ada")
    assert len(long) > 1 and has(plain, long) and has(plain, short)
    output = tokens_of(one(llm, params(bad_words=["gia + gia", "Ada"], ignore_eos=True)))
    assert not has(output, long) and not has(output, short)
    assert has(output, long[:1])


def test_only_allowed_tokens_are_chosen(llm: Any) -> None:
    allowed = [17, 68, 224, 305]
    output = one(llm, params(allowed_token_ids=allowed))
    for token, logits in zip(tokens_of(output), forced_logits(output), strict=True):
        assert token == allowed[int(np.argmax(logits[allowed]))]
    drawn = one(llm, params(allowed_token_ids=allowed, temperature=2.0, seed=1))
    assert set(tokens_of(drawn)) <= set(allowed)


def test_min_tokens_keeps_stop_tokens_away(llm: Any) -> None:
    stop = tokens_of(one(llm, greedy(8)))[2]
    short = one(llm, params(stop_token_ids=[stop]))
    longer = one(llm, params(stop_token_ids=[stop], min_tokens=10))
    assert len(tokens_of(short)) == 3 and short.outputs[0].stop_reason == stop
    assert len(tokens_of(longer)) >= 10
    assert stop not in tokens_of(longer)[:10]


def test_end_of_sequence_stops_unless_ignored(llm: Any) -> None:
    stopped = one(llm, params(max_tokens=60), PROMPTS[1])
    ignored = one(llm, params(max_tokens=60, ignore_eos=True), PROMPTS[1])
    assert stopped.outputs[0].finish_reason == "stop"
    assert tokens_of(stopped)[-1] == 2
    assert len(tokens_of(ignored)) == 60
    assert tokens_of(ignored)[: len(tokens_of(stopped))] == tokens_of(stopped)


def test_stop_strings_cut_the_text(llm: Any) -> None:
    text = one(llm, greedy(24)).outputs[0].text
    stop = text[10:14]
    cut = one(llm, params(stop=[stop])).outputs[0]
    kept = one(llm, params(stop=stop, include_stop_str_in_output=True)).outputs[0]
    assert cut.text == text[: text.index(stop)] and cut.finish_reason == "stop"
    assert kept.text == cut.text + stop


@pytest.mark.parametrize("count", [0, 1, 5, -1])
def test_logprobs_are_the_models_own(llm: Any, count: int) -> None:
    output = one(llm, params(logprobs=count, temperature=1.0, seed=5, ignore_eos=True))
    expected = log_softmax(forced_logits(output))
    for row, token, table in zip(
        expected, tokens_of(output), output.outputs[0].logprobs, strict=True
    ):
        assert len(table) in ({512} if count == -1 else {count, count + 1})
        assert token in table
        for index, entry in table.items():
            assert abs(entry.logprob - row[index]) < TOLERANCE
            if abs(np.sort(row)[::-1][entry.rank - 1] - row[index]) > TOLERANCE:
                pytest.fail(f"token {index} is not of rank {entry.rank}")
        best = sorted(table.values(), key=lambda entry: entry.rank)[:count]
        if count > 0:
            values = np.array([entry.logprob for entry in best])
            assert np.abs(values - np.sort(row)[::-1][:count]).max() < TOLERANCE


def test_logprob_token_ids_are_scored_beside_rows_that_want_the_best(llm: Any) -> None:
    ids = [3, 200, 17]
    wanted = [params(logprob_token_ids=ids), params(logprobs=2), params(logprobs=5), params()]
    outputs = llm.generate([PROMPTS[2]] * 4, wanted, use_tqdm=False)
    rows = log_softmax(forced_logits(outputs[0]))
    tables = [output.outputs[0].logprobs for output in outputs]
    assert tables[3] is None
    for row, token, named, two, five in zip(rows, tokens_of(outputs[0]), *tables[:3], strict=True):
        assert set(named) == {token, *ids}
        for index in named:
            assert abs(named[index].logprob - row[index]) < TOLERANCE
        order = np.argsort(-row)
        assert set(two) == {token, *order[:2]}
        assert set(five) == {token, *order[:5]}


@pytest.mark.parametrize("chunk", [16, 512])
@pytest.mark.parametrize("is_async", [False, True])
def test_prompt_logprobs_are_right_in_chunks_too(is_async: bool, chunk: int) -> None:
    prompt = PROMPTS[2] + PROMPTS[4]
    with engine(
        async_scheduling=is_async, max_num_batched_tokens=chunk, max_num_seqs=8, max_logprobs=-1
    ) as llm:
        for count in (0, 3, -1):
            wanted = [params(prompt_logprobs=count, max_tokens=4), greedy(8)]
            output = llm.generate([prompt, PROMPTS[0]], wanted, use_tqdm=False)[0]
            rows = log_softmax(all_logits(output))
            assert output.prompt_logprobs[0] is None
            assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
            for index, table in enumerate(output.prompt_logprobs[1:]):
                token = output.prompt_token_ids[index + 1]
                assert token in table
                assert len(table) in ({512} if count == -1 else {count, count + 1})
                for entry_id, entry in table.items():
                    assert abs(entry.logprob - rows[index][entry_id]) < TOLERANCE


def test_prompt_logprobs_survive_preemption() -> None:
    with engine(
        kv_cache_memory_bytes=pool_bytes(16), max_model_len=160, max_num_batched_tokens=16,
        max_num_seqs=8,
    ) as llm:  # fmt: skip
        with counted_preemptions(llm) as preempted:
            wanted = params(prompt_logprobs=1, logprobs=1, max_tokens=64, ignore_eos=True)
            outputs = llm.generate(list(PROMPTS), wanted, use_tqdm=False)
        assert preempted
        for output in outputs:
            rows = log_softmax(all_logits(output))
            ids = [*output.prompt_token_ids, *tokens_of(output)]
            tables = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
            assert len(tables) == len(ids) - 1
            for row, token, table in zip(rows, ids[1:], tables, strict=False):
                assert abs(table[token].logprob - row[token]) < TOLERANCE


MODES = ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]


@pytest.mark.parametrize("mode", MODES)
def test_each_logprobs_mode_reports_its_own_numbers(mode: str) -> None:
    with engine(logprobs_mode=mode, max_logprobs=-1) as llm:
        output = one(llm, params(logprobs=-1, temperature=0.5, top_k=5, seed=2, max_tokens=6))
    for logits, table in zip(forced_logits(output), output.outputs[0].logprobs, strict=True):
        expected = logits.astype(np.float64)
        if mode.startswith("processed"):
            expected = np.where(expected >= np.sort(expected)[-5], expected / 0.5, -np.inf)
        if mode.endswith("logprobs"):
            expected = log_softmax(expected)
        ours = np.array([table[index].logprob for index in range(512)])
        assert np.array_equal(np.isinf(ours), np.isinf(expected))
        finite = np.isfinite(expected)
        assert np.abs(ours[finite] - expected[finite]).max() < 2 * TOLERANCE


TRUNCATIONS = [
    {"top_k": 1},
    {"top_k": 3},
    {"top_p": 0.5},
    {"min_p": 0.2},
    {"top_k": 4, "top_p": 0.7},
]


@pytest.mark.parametrize("wanted", TRUNCATIONS, ids=str)
def test_truncation_keeps_draws_inside_the_set(llm: Any, wanted: dict[str, float]) -> None:
    prompts = [PROMPTS[0], PROMPTS[5]] * 4
    options = [
        params(temperature=1.7, seed=seed, **wanted, ignore_eos=True)
        for seed in range(len(prompts))
    ]
    seen = 0
    for output in llm.generate(prompts, options, use_tqdm=False):
        for token, logits in zip(tokens_of(output), forced_logits(output), strict=True):
            assert token in allowed_set(logits / 1.7, **wanted)
            seen += token != int(np.argmax(logits))
    assert (seen == 0) == (wanted == {"top_k": 1})


def allowed_set(
    logits: np.ndarray, *, top_k: int = 512, top_p: float = 1.0, min_p: float = 0.0
) -> set[int]:
    """Tokens that top-k, then top-p, or min-p keep; ties at the border are kept."""
    order = np.argsort(-logits)[:top_k]
    mass = np.exp(log_softmax(logits[order]))
    count = int((np.cumsum(mass) - mass < top_p).sum())
    last = logits[order[count - 1]] - 1e-5
    probabilities = np.exp(log_softmax(logits))
    kept = (logits >= last) & (probabilities >= min_p * probabilities.max() - 1e-6)
    return set(np.nonzero(kept)[0].tolist())


def test_seeds_repeat_alone_in_a_batch_and_after_preemption(llm: Any) -> None:
    options = [
        params(temperature=1.0, seed=seed, max_tokens=64, ignore_eos=True)
        for seed in range(len(PROMPTS))
    ]
    alone = [tokens_of(one(llm, *pair)) for pair in zip(options, PROMPTS, strict=True)]
    together = token_ids(llm.generate(list(PROMPTS), options, use_tqdm=False))
    assert together == alone
    with engine(
        kv_cache_memory_bytes=pool_bytes(16), max_model_len=160, max_num_batched_tokens=16,
        max_num_seqs=8,
    ) as tiny:  # fmt: skip
        with counted_preemptions(tiny) as preempted:
            squeezed = token_ids(tiny.generate(list(PROMPTS), options, use_tqdm=False))
    assert preempted
    assert squeezed == alone


def test_requests_without_a_seed_differ_from_each_other(llm: Any) -> None:
    free = params(temperature=1.5, ignore_eos=True)
    outputs = llm.generate([PROMPTS[5]] * 4, free, use_tqdm=False)
    assert len({tuple(tokens_of(output)) for output in outputs}) == 4


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 1, "maximum": 9},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
GRAMMAR = 'root ::= ("yes" | "no") " " [0-9] [0-9]'


def structured(**kind: Any) -> Any:
    from vllm.sampling_params import StructuredOutputsParams

    return StructuredOutputsParams(**kind)


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_structured_outputs_are_valid_beside_free_ones(llm: Any, temperature: float) -> None:
    common = {"temperature": temperature, "max_tokens": 60, "seed": 4}
    kinds = [
        structured(json=SCHEMA),
        structured(regex=r"[a-c]{3}-\d{2}"),
        structured(choice=["Ada", "Eva", "Finn"]),
        structured(grammar=GRAMMAR),
        None,
    ]
    options = [params(**common, structured_outputs=kind) for kind in kinds]
    outputs = llm.generate([PROMPTS[0]] * len(kinds), options, use_tqdm=False)
    texts = [output.outputs[0].text for output in outputs]
    answer = json.loads(texts[0])
    assert set(answer) == {"name", "age", "kind"}
    assert answer["kind"] in ("a", "b") and 1 <= answer["age"] <= 9
    assert re.fullmatch(r"[a-c]{3}-\d{2}", texts[1])
    assert texts[2] in ("Ada", "Eva", "Finn")
    assert re.fullmatch(r"(yes|no) \d\d", texts[3])
    assert tokens_of(outputs[4]) == tokens_of(one(llm, options[4], PROMPTS[0]))


def test_structured_outputs_obey_other_rules_and_report_logprobs(llm: Any) -> None:
    kind = structured(regex="[ab]{8}")
    output = one(llm, params(structured_outputs=kind, logprobs=3, frequency_penalty=2.0))
    assert re.fullmatch("[ab]{8}", output.outputs[0].text)
    rows = log_softmax(forced_logits(output))
    for row, token, table in zip(rows, tokens_of(output), output.outputs[0].logprobs, strict=True):
        assert abs(table[token].logprob - row[token]) < TOLERANCE


def test_structured_outputs_survive_preemption_and_chunks() -> None:
    with engine(
        kv_cache_memory_bytes=pool_bytes(16), max_model_len=160, max_num_batched_tokens=16,
        max_num_seqs=8, async_scheduling=True,
    ) as llm:  # fmt: skip
        with counted_preemptions(llm) as preempted:
            wanted = params(
                structured_outputs=structured(regex="[a-f]{60}"), max_tokens=64, temperature=1.0
            )
            outputs = llm.generate(list(PROMPTS), wanted, use_tqdm=False)
    assert preempted
    assert all(re.fullmatch("[a-f]{60}", output.outputs[0].text) for output in outputs)


def test_repetition_detection_ends_a_loop(llm: Any) -> None:
    from vllm.sampling_params import RepetitionDetectionParams

    detect = RepetitionDetectionParams(max_pattern_size=2, min_pattern_size=1, min_count=4)
    wanted = params(allowed_token_ids=[68], repetition_detection=detect, ignore_eos=True)
    assert len(tokens_of(one(llm, wanted))) < 24


def test_flat_logprobs_hold_the_same_numbers(llm: Any) -> None:
    flat = one(llm, params(logprobs=2, flat_logprobs=True)).outputs[0].logprobs
    table = one(llm, params(logprobs=2)).outputs[0].logprobs
    assert len(flat) == len(table)
    for left, right in zip(flat, table, strict=True):
        assert left.keys() == right.keys()
