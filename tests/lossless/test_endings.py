"""Requests end exactly where the target alone would end them, wherever that falls in a block."""

import pytest
from driver import Engine, Live, cases, make_runner, run_alone
from stubs import Oracle, ScriptedProposer

from vllm_dspark.runner import step
from vllm_dspark.runner.pack import pack
from vllm_dspark.runner.schedule import Admission, Grammar, Outcome, Schedule, Turn
from vllm_dspark.sampling.params import Sampling

PROMPT, OUTPUT = cases()[0]
SEQUENCES = {"a": [*PROMPT, *OUTPUT]}
NEW_TOKENS = [index for index in range(1, 30) if OUTPUT[index] not in OUTPUT[:index]]


def run_oracle(sampling: Sampling, num_drafts: int = 7) -> Live:
    engine = Engine(make_runner(proposer=Oracle(SEQUENCES, num_drafts)))
    engine.add("a", PROMPT, sampling)
    return engine.run().done["a"]


@pytest.mark.parametrize("index", NEW_TOKENS)
def test_a_stop_id_ends_the_request_at_each_place_of_a_block(index: int) -> None:
    stop = frozenset([OUTPUT[index]])
    live = run_oracle(Sampling(temperature=0.0, max_tokens=40, stop_ids=stop, end_ids=stop))
    assert live.tokens == OUTPUT[: index + 1]
    assert all(accepted == drafted for accepted, drafted in live.accepted[:-1])


def test_stop_ids_fell_on_every_place_of_a_block() -> None:
    # The first token comes from the prompt, then blocks of 1 + 7.
    assert {(index - 1) % 8 for index in NEW_TOKENS} >= set(range(5))


@pytest.mark.parametrize("max_tokens", range(1, 19))
def test_max_tokens_ends_the_request_at_each_place_of_a_block(max_tokens: int) -> None:
    live = run_oracle(Sampling(temperature=0.0, max_tokens=max_tokens))
    assert live.tokens == OUTPUT[:max_tokens]
    assert sum(drafted for _, drafted in live.accepted) <= max(max_tokens - 2, 0)


@pytest.mark.parametrize("min_tokens", range(1, 14))
def test_min_tokens_holds_back_the_end_as_the_target_alone_does(min_tokens: int) -> None:
    stop = frozenset(OUTPUT[3:7])
    sampling = Sampling(
        temperature=0.0, max_tokens=20, min_tokens=min_tokens, stop_ids=stop, end_ids=stop
    )
    expected = run_alone(PROMPT, sampling)
    assert run_oracle(sampling).tokens == expected.tokens
    assert run_alone(PROMPT, sampling, drafting=True).tokens == expected.tokens


@pytest.mark.parametrize("block_size", [8, 16])
@pytest.mark.parametrize("room", [*range(1, 11), 15, 16, 17])
@pytest.mark.parametrize("kind", ["draft", "oracle"])
def test_a_request_runs_to_exactly_the_context_limit(
    block_size: int, room: int, kind: str
) -> None:
    limit = len(PROMPT) + room
    proposer: ScriptedProposer | str = Oracle(SEQUENCES, 7) if kind == "oracle" else "draft"
    runner = make_runner(proposer=proposer, block_size=block_size, max_model_len=limit)
    engine = Engine(runner, block_size=block_size, max_model_len=limit)
    free = len(engine.free)
    engine.add("a", PROMPT, Sampling(temperature=0.0))
    live = engine.run().done["a"]
    assert live.tokens == OUTPUT[:room]
    assert len(live.blocks) <= -(-limit // block_size)
    assert len(engine.free) == free


@pytest.mark.parametrize("drafting", [False, True])
@pytest.mark.parametrize("reason", ["max_tokens", "end id", "early end id"])
def test_a_step_scheduled_before_the_end_was_seen_computes_nothing(
    reason: str, drafting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (prompt, answer), (other, _), *_ = cases()
    options = {
        "max_tokens": {"max_tokens": 1},
        "end id": {"end_ids": frozenset([answer[0]]), "max_tokens": 9},
        "early end id": {"end_ids": frozenset([answer[0]]), "max_tokens": 9, "min_tokens": 5},
    }[reason]
    runner = make_runner(proposer="draft" if drafting else None)
    admissions = tuple(
        Admission(
            request_id=name, token_ids=ids, num_prompt=len(ids), num_computed=0,
            blocks=(list(range(start, start + 20)),), sampling=Sampling(temperature=0.0, **extra),
        )
        for name, ids, start, extra in (("a", prompt, 1, options), ("b", other, 30, {}))
    )  # fmt: skip
    turns = (Turn("a", len(prompt)), Turn("b", len(other)))
    runner.begin(Schedule(admissions=admissions, turns=turns))
    first = runner.finish(Grammar()).outcomes
    assert first["a"].token_ids == (answer[0],)

    packed = []
    monkeypatch.setattr(
        step, "pack", lambda table, turns: packed.append(turns) or pack(table, turns)
    )
    widths = {name: len(first[name].drafts) for name in ("a", "b")}
    turns = tuple(Turn(name, 1 + widths[name], widths[name]) for name in ("a", "b"))
    runner.begin(Schedule(turns=turns))
    second = runner.finish(Grammar()).outcomes
    assert list(second) == ["a", "b"]
    goes_on = reason == "early end id"
    assert [turn.request_id for turn in packed[0]] == (["a", "b"] if goes_on else ["b"])
    assert bool(second["a"].token_ids) == goes_on
    assert second["b"].token_ids
    if not goes_on:
        runner.begin(Schedule(turns=turns[:1]))
        assert runner.finish(Grammar()).outcomes == {"a": Outcome()}
        assert len(packed) == 1
