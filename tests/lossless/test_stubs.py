"""Oracle, liar and mask: every accept count, and always the target's own text."""

import pytest
from driver import GREEDY, Engine, Live, cases, make_runner
from stubs import Liar, Mask, Oracle, ScriptedProposer

from vllm_dspark.runner.schedule import Schedule
from vllm_dspark.sampling.params import Sampling

SEQUENCES = {str(index): [*prompt, *output] for index, (prompt, output) in enumerate(cases())}
WIDTHS = range(1, 8)
BLOCK_SIZES = (8, 16, 32)


def run_case(proposer: ScriptedProposer, index: int, block_size: int, max_tokens: int) -> Live:
    engine = Engine(make_runner(proposer=proposer, block_size=block_size), block_size=block_size)
    prompt, output = cases()[index]
    engine.add(str(index), prompt, Sampling(temperature=0.0, max_tokens=max_tokens))
    live = engine.run().done[str(index)]
    assert live.tokens == output[:max_tokens]
    return live


@pytest.mark.parametrize("num_drafts", WIDTHS)
def test_every_draft_of_the_oracle_is_accepted(num_drafts: int) -> None:
    for index, block_size in enumerate(BLOCK_SIZES):
        live = run_case(Oracle(SEQUENCES, num_drafts), index, block_size, 40)
        assert all(accepted == drafted for accepted, drafted in live.accepted)
        assert sum(drafted + 1 for _, drafted in live.accepted) >= 38


@pytest.mark.parametrize("num_drafts", WIDTHS)
def test_no_draft_of_the_liar_is_accepted(num_drafts: int) -> None:
    for index, block_size in enumerate(BLOCK_SIZES):
        live = run_case(Liar(SEQUENCES, num_drafts), index, block_size, 16)
        assert {accepted for accepted, _ in live.accepted} == {0}
        assert len(live.accepted) == 14


@pytest.mark.parametrize("num_drafts", WIDTHS)
def test_every_accept_count_is_possible(num_drafts: int) -> None:
    for index, block_size in enumerate(BLOCK_SIZES):
        live = run_case(Mask(SEQUENCES, num_drafts), index, block_size, 47)
        full = [accepted for accepted, drafted in live.accepted if drafted == num_drafts]
        assert full == [number % (num_drafts + 1) for number in range(len(full))]
        assert set(full) == set(range(num_drafts + 1))


@pytest.mark.parametrize("kind", [Oracle, Liar, Mask])
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_a_mixed_batch_with_arrivals_and_departures(
    kind: type[ScriptedProposer], block_size: int
) -> None:
    engine = Engine(
        make_runner(proposer=kind(SEQUENCES, 5), block_size=block_size),
        block_size=block_size,
        chunk=11,
        seed=1,
    )
    free = sorted(engine.free)
    lengths = {}
    for index, (prompt, _) in enumerate(cases()):
        lengths[str(index)] = 12 + 4 * index
        engine.add(str(index), prompt, Sampling(temperature=0.0, max_tokens=lengths[str(index)]))
        engine.step()
        if index % 2:
            engine.step()
    engine.run()
    for index, (_, output) in enumerate(cases()):
        assert engine.done[str(index)].tokens == output[: lengths[str(index)]]
    assert sorted(engine.free) == free
    engine.runner.begin(Schedule(forgotten=frozenset(engine.done)))
    assert len(engine.runner.table) == 0


def test_a_slot_and_an_id_of_a_dropped_request_can_be_used_at_once() -> None:
    engine = Engine(make_runner(proposer=Mask(SEQUENCES, 5)))
    (first, _), (second, output) = cases()[:2]
    engine.add("0", first)
    engine.add("1", second)
    for _ in range(4):
        engine.step()
    engine.drop("0")
    dropped = engine.drop("1")
    assert len(dropped.tokens) > 1
    engine.add("1", second, GREEDY)
    assert engine.run().done["1"].tokens == output
