"""The draft's context is the same however it came about: drafts and confidences are compared."""

import functools
from collections.abc import Sequence

import numpy as np
import pytest
from driver import (
    GREEDY,
    SLIDING,
    VANILLA,
    Engine,
    Live,
    Proposal,
    cases,
    make_runner,
    pair,
)

from vllm_dspark.sampling.params import Sampling

TOLERANCE = 1e-4
SETS = pytest.mark.parametrize("name", [VANILLA, SLIDING])
OFFSETS = pytest.mark.parametrize("offset", [-1, 0, 1])
LONG = Sampling(temperature=0.0, max_tokens=24)


def text(name: str = VANILLA) -> list[int]:
    """A long text: prompts of a set in a row."""
    return [token for prompt, output in cases(name)[:4] for token in [*prompt, *output]]


def make_engine(name: str = VANILLA, **options: object) -> Engine:
    runner_options = {"block_size": options.get("block_size", 16)}
    return Engine(make_runner(pair(name), **runner_options), **options)


def run_cold(prompt: Sequence[int], name: str = VANILLA, max_tokens: int = 24) -> Live:
    return _run_cold(tuple(prompt), name, max_tokens)


@functools.cache
def _run_cold(prompt: tuple[int, ...], name: str, max_tokens: int) -> Live:
    engine = make_engine(name)
    engine.add("cold", prompt, Sampling(temperature=0.0, max_tokens=max_tokens))
    return engine.run().done["cold"]


@functools.cache
def every_proposal(name: str, prompt: tuple[int, ...]) -> dict[int, Proposal]:
    """Proposals at every position after a prompt: steps of one token, nothing ever rejected."""
    engine = make_engine(name)
    engine.injected["a"] = ()
    engine.add("a", prompt, GREEDY)
    return {one.position: one for one in engine.run().done["a"].proposals}


def assert_clean(ours: Sequence[Proposal], prompt: Sequence[int], name: str = VANILLA) -> None:
    """Proposals have the drafts and confidences of a context without any history."""
    expected = every_proposal(name, tuple(prompt))
    assert len(ours) > 1
    assert_same(ours, [expected[one.position] for one in ours])


def assert_same(ours: Sequence[Proposal], expected: Sequence[Proposal]) -> None:
    for one, other in zip(ours, expected, strict=True):
        assert one.position == other.position
        width = min(len(one.drafts), len(other.drafts))
        assert one.drafts[:width] == other.drafts[:width]
        assert one.confidences is not None
        np.testing.assert_allclose(one.confidences, other.confidences, atol=TOLERANCE)


def assert_same_run(ours: Live, expected: Live) -> None:
    assert ours.tokens == expected.tokens
    assert ours.accepted == expected.accepted
    assert_same(ours.proposals, expected.proposals)


@SETS
@OFFSETS
@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("drafted_before", [True, False], ids=["drafted", "skipped"])
def test_a_prefix_hit_gives_the_cold_drafts(
    name: str, offset: int, block_size: int, drafted_before: bool
) -> None:
    prompt = text(name)[: 2 * block_size + offset]
    engine = make_engine(name, block_size=block_size, seed=3)
    engine.skip_drafts = not drafted_before
    engine.add("first", [*prompt, 7, 8, 9], GREEDY)
    for _ in range(4):
        engine.step()
    assert bool(engine.live["first"].proposals) == drafted_before
    engine.skip_drafts = False
    num_shared = (len(prompt) - 1) // block_size
    assert num_shared == (1 if offset < 1 else 2)
    engine.add("warm", prompt, LONG, shared=engine.live["first"].blocks[:num_shared])
    while "warm" not in engine.done:
        engine.step()
    assert_same_run(engine.done["warm"], run_cold(prompt, name))


@SETS
@OFFSETS
def test_a_hit_on_decoded_blocks_gives_the_cold_drafts(name: str, offset: int) -> None:
    prompt, _ = cases(name)[0]
    engine = make_engine(name, seed=4)
    engine.add("first", prompt, Sampling(temperature=0.0, max_tokens=80))
    while len(engine.live["first"].tokens) < 44:
        engine.step()
    first = engine.live["first"]
    assert any(accepted < drafted for accepted, drafted in first.accepted)
    blocks = (len(prompt) + 40) // 16
    longer = first.known[: blocks * 16 + offset]
    engine.add("warm", longer, LONG, shared=first.blocks[: (len(longer) - 1) // 16])
    while "warm" not in engine.done:
        engine.step()
    assert_same_run(engine.done["warm"], run_cold(longer, name))


@SETS
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_resuming_after_preemption_gives_the_uninterrupted_drafts(name: str, steps: int) -> None:
    prompt, _ = cases(name)[1]
    engine = make_engine(name, seed=5)
    engine.add("a", prompt, GREEDY)
    for _ in range(steps):
        engine.step()
    stopped = engine.drop("a")
    engine.add("b", text(name)[:50], LONG)
    engine.step()
    engine.add("a", prompt, GREEDY, tokens=stopped.tokens)
    engine.run()
    resumed, expected = engine.done["a"], run_cold(prompt, name, 48)
    assert resumed.tokens == expected.tokens
    assert_clean([*stopped.proposals, *resumed.proposals], prompt, name)
    assert resumed.proposals[0].position == len(prompt) + len(stopped.tokens)


@SETS
def test_resuming_on_its_own_pages_gives_the_uninterrupted_drafts(name: str) -> None:
    prompt, _ = cases(name)[1]
    engine = make_engine(name, seed=5)
    engine.add("a", prompt, GREEDY)
    while engine.live["a"].num_computed < 40:
        engine.step()
    stopped = engine.drop("a")
    kept = stopped.blocks[: (stopped.num_computed - 1) // 16]
    engine.free = [block for block in engine.free if block not in kept]
    engine.add("a", prompt, GREEDY, tokens=stopped.tokens, shared=kept)
    engine.run()
    expected = run_cold(prompt, name, 48)
    assert engine.done["a"].tokens == expected.tokens
    assert_clean(engine.done["a"].proposals, prompt, name)


@SETS
@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_a_prompt_in_chunks_gives_the_same_drafts(name: str, chunk: int) -> None:
    prompt = text(name)[:37]
    engine = make_engine(name, chunk=chunk, seed=6)
    engine.add("a", prompt, LONG)
    assert_same_run(engine.run().done["a"], run_cold(prompt, name))


@SETS
def test_neighbours_do_not_change_the_drafts(name: str) -> None:
    engine = make_engine(name, chunk=9, seed=7)
    for index, (prompt, _) in enumerate(cases(name)):
        engine.add(str(index), prompt, LONG)
        engine.step()
    engine.run()
    for index, (prompt, _) in enumerate(cases(name)):
        assert_same_run(engine.done[str(index)], run_cold(prompt, name))


@SETS
def test_scattered_pages_give_the_drafts_of_consecutive_ones(name: str) -> None:
    prompt = text(name)[:70]
    engine = make_engine(name, seed=8)
    engine.add("a", prompt, LONG)
    scattered = engine.run().done["a"]
    assert np.any(np.diff(scattered.blocks) != 1)
    assert_same_run(scattered, run_cold(prompt, name))


@SETS
@pytest.mark.parametrize("num_right", [0, 1, 3])
def test_a_rejected_draft_changes_nothing_later(name: str, num_right: int) -> None:
    prompt, output = cases(name)[2]
    engine = make_engine(name, seed=9)
    engine.add("a", prompt, LONG)
    for _ in range(8):
        one = engine.live["a"]
        right = output[len(one.tokens) : len(one.tokens) + num_right]
        wrong = [(token + 3) % 512 for token in output[len(one.tokens) + num_right :][:2]]
        engine.injected["a"] = (*right, *wrong) if one.tokens else ()
        engine.step()
        if "a" not in engine.live or len(engine.live["a"].tokens) > 16:
            break
    engine.injected.clear()
    engine.run()
    assert engine.done["a"].tokens == output[: len(engine.done["a"].tokens)]
    assert_clean(engine.done["a"].proposals, prompt, name)


def test_a_step_without_drafts_keeps_the_context_whole() -> None:
    prompt, _ = cases()[0]
    engine = make_engine(seed=10)
    engine.add("a", prompt, LONG)
    for number in range(12):
        engine.skip_drafts = number % 3 != 0
        if engine.live:
            engine.step()
    engine.skip_drafts = False
    engine.run()
    assert engine.runner.policy.reasons["scheduler_skips"] > 3
    assert_clean(engine.done["a"].proposals, prompt)
    assert engine.done["a"].tokens == run_cold(prompt).tokens


def test_pages_of_a_sampled_request_serve_a_greedy_one() -> None:
    prompt = text()[:48]
    engine = make_engine(seed=11)
    heated = Sampling(temperature=1.0, seed=5, max_tokens=24, num_logprobs=2)
    engine.add("first", prompt, heated)
    engine.step()
    engine.step()
    engine.add("warm", prompt, LONG, shared=engine.live["first"].blocks[:2])
    engine.run()
    assert_same_run(engine.done["warm"], run_cold(prompt))


@pytest.mark.parametrize("num_drafts", [1, 2, 4, 7])
def test_fewer_drafts_are_the_first_of_the_full_block(num_drafts: int) -> None:
    prompt, output = cases()[3]
    engine = Engine(make_runner(pair(VANILLA, num_drafts)))
    engine.add("a", prompt, GREEDY)
    live = engine.run().done["a"]
    assert live.tokens == output
    assert max(len(one.drafts) for one in live.proposals) == num_drafts
    full = {one.position: one for one in run_cold(prompt, max_tokens=48).proposals}
    common = [one for one in live.proposals if one.position in full]
    assert common
    for one in common:
        width = min(len(one.drafts), len(full[one.position].drafts))
        assert one.drafts[:width] == full[one.position].drafts[:width]
