"""Two lists of token sequences -> exact matches, near-ties, failures; gates per precision."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vllm_dspark.arms.spec import Judgement

Tokens = Sequence[Sequence[int]]
Judge = Callable[[Sequence[tuple[Sequence[int], int]]], list[Judgement]]
"""(prefix, token) pairs -> rank and margin of each, by the reference network."""


@dataclass(frozen=True, slots=True)
class Gate:
    """What still counts as a near-tie at one precision.

    Attributes:
        top_k: the first differing token must be among the reference's best k.
        max_margin: and its logit this close to the best one's.
        reason: where the tolerance comes from.
    """

    top_k: int
    max_margin: float
    reason: str


GATES = {
    "float32": Gate(2, 1e-3, "sums in another order move a logit by about 1e-5"),
    "float16": Gate(3, 0.06, "two units in the last place of a logit of 16 to 32"),
    "bfloat16": Gate(5, 0.25, "two units in the last place of a logit of 16 to 32"),
    "4-bit": Gate(5, 0.25, "activations in bfloat16; the weights are the same 4-bit ones"),
}


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where an answer leaves the reference.

    Attributes:
        position: index of the token in the answer.
        expected, got: tokens there; None past the end of an answer.
        rank, margin: of ``got``, by the reference network; None where there is no token.
        is_tie: the gate lets it pass.
    """

    prompt: str
    position: int
    expected: int | None
    got: int | None
    rank: int | None
    margin: float | None
    is_tie: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """Counts of one arm against a reference."""

    arm: str
    reference: str
    num_prompts: int
    differences: tuple[Difference, ...]

    @property
    def num_ties(self) -> int:
        return sum(one.is_tie for one in self.differences)

    @property
    def num_failures(self) -> int:
        return len(self.differences) - self.num_ties

    @property
    def num_exact(self) -> int:
        return self.num_prompts - len(self.differences)

    def to_json(self) -> dict[str, Any]:
        return {
            "arm": self.arm,
            "reference": self.reference,
            "prompts": self.num_prompts,
            "exact": self.num_exact,
            "top_k": self.num_ties,
            "failures": self.num_failures,
            "differences": [asdict(one) for one in self.differences],
        }


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Index of the first unequal token; the shorter length when one is cut; None when equal."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def compare(  # noqa: PLR0913 - two named sides and how to judge them
    arm: str,
    got: Tokens,
    reference: str,
    expected: Tokens,
    *,
    names: Sequence[str],
    prompts: Tokens,
    judge: Judge,
    gate: Gate,
) -> Comparison:
    """Compare answers to the same prompts; an answer that is cut short is a failure."""
    places = [first_difference(one, two) for one, two in zip(expected, got, strict=True)]
    hits = [index for index, place in enumerate(places) if place is not None]
    judged = [index for index in hits if places[index] < min(len(got[index]), len(expected[index]))]
    cases = [
        ([*prompts[index], *expected[index][: places[index]]], got[index][places[index]])
        for index in judged
    ]
    verdicts = dict(zip(judged, judge(cases) if cases else [], strict=True))
    return Comparison(
        arm,
        reference,
        len(prompts),
        tuple(
            _describe(
                names[index], expected[index], got[index], places[index], verdicts, index, gate
            )
            for index in hits
        ),
    )


def _describe(  # noqa: PLR0913 - private, one call
    name: str,
    expected: Sequence[int],
    got: Sequence[int],
    place: int,
    verdicts: dict[int, Judgement],
    index: int,
    gate: Gate,
) -> Difference:
    verdict = verdicts.get(index)
    return Difference(
        name,
        place,
        expected[place] if place < len(expected) else None,
        got[place] if place < len(got) else None,
        None if verdict is None else verdict.rank,
        None if verdict is None else round(verdict.margin, 6),
        verdict is not None and verdict.rank <= gate.top_k and verdict.margin <= gate.max_margin,
    )
