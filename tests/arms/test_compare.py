"""Exact answers, near-ties within a gate, and failures."""

from collections.abc import Sequence

import pytest

from vllm_dspark.arms.compare import GATES, Comparison, compare, first_difference
from vllm_dspark.arms.spec import Judgement


def run(got: list[int], expected: list[int], verdict: Judgement) -> Comparison:
    def judge(cases: Sequence[tuple[Sequence[int], int]]) -> list[Judgement]:
        return [verdict for _ in cases]

    return compare(
        "ours", [got], "theirs", [expected],
        names=["p"], prompts=[[1, 2]], judge=judge, gate=GATES["float32"],
    )  # fmt: skip


def test_equal_answers_are_exact_and_nobody_is_asked() -> None:
    found = run([5, 6], [5, 6], Judgement(9, 9.0))
    assert (found.num_exact, found.num_ties, found.num_failures) == (1, 0, 0)


@pytest.mark.parametrize(
    ("rank", "margin", "is_tie"),
    [(2, 0.0005, True), (1, 0.0, True), (2, 0.002, False), (3, 0.0005, False)],
)
def test_a_near_tie_needs_both_rank_and_margin(rank: int, margin: float, is_tie: bool) -> None:
    found = run([5, 7], [5, 6], Judgement(rank, margin))
    assert (found.num_ties, found.num_failures) == ((1, 0) if is_tie else (0, 1))
    (gap,) = found.differences
    assert (gap.position, gap.expected, gap.got) == (1, 6, 7)


@pytest.mark.parametrize("got", [[5], [5, 6, 7]])
def test_an_answer_of_another_length_is_a_failure(got: list[int]) -> None:
    found = run(got, [5, 6], Judgement(1, 0.0))
    assert found.num_failures == 1


def test_the_judge_is_asked_about_the_reference_prefix() -> None:
    asked = []

    def judge(cases: Sequence[tuple[Sequence[int], int]]) -> list[Judgement]:
        asked.extend(cases)
        return [Judgement(2, 0.0)] * len(cases)

    compare(
        "ours", [[5, 7, 8], [4]], "theirs", [[5, 6, 9], [4]],
        names=["p", "q"], prompts=[[1, 2], [3]], judge=judge, gate=GATES["float32"],
    )  # fmt: skip
    assert asked == [([1, 2, 5], 7)]


def test_first_difference_of_a_prefix_is_its_length() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [1, 3]) == 1
    assert first_difference([1, 2], [1]) == 1
