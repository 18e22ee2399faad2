"""Recorded rounds of a set against the checkpoint loader, the paged cache and the runner.

Every round verifies the recorded drafts, whatever was proposed here, so that rounds stay aligned
and each is judged on its own.
"""

from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from vllm_dspark.checkpoints.draft import read_draft_config
from vllm_dspark.parity.golden_sets import GoldenCase, GoldenRound, GoldenSet
from vllm_dspark.parity.recording import Recorded, RecordingDrafter, record
from vllm_dspark.runner.build import DraftSettings, build_runner, load
from vllm_dspark.runner.schedule import Admission, Grammar, Outcome, Schedule, Turn
from vllm_dspark.runner.step import Runner
from vllm_dspark.sampling.params import Sampling

TOLERANCE = 1e-3
TIE_MARGIN = 1e-3
BLOCK_SIZE = 16
REQUEST = "case"
BLOCK_ARRAYS = ("block_hidden", "base_logits", "corrected_logits")
PROMPT_ARRAYS = ("prompt_features", "prompt_logits_last")


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where ours is not the recorded number.

    Attributes:
        place: case and round.
        what: which number.
        ours, golden: both, as text.
        margin: how far the golden token's logit lies below the best; None for other numbers.
        is_fault: False for a token that a near-tie explains.
    """

    place: str
    what: str
    ours: str
    golden: str
    margin: float | None = None
    is_fault: bool = True

    def __str__(self) -> str:
        text = f"{self.place}: {self.what} {self.ours}, golden {self.golden}"
        if self.margin is not None:
            text += f"; margin {self.margin:.2e}"
        return text if self.is_fault else f"{text} (near-tie)"


@dataclass(slots=True)
class SetReport:
    """How one set fared.

    Attributes:
        num_rounds: rounds compared.
        num_proposals: drafts that equal the recorded ones.
        num_arrays: recorded arrays compared.
        confidence_error, array_error: largest absolute differences.
        differences: faults and near-ties, in order.
        unknown_arrays: recorded arrays of kinds that are not compared.
    """

    name: str
    num_drafts: int
    top_k: int | None
    num_cases: int = 0
    num_rounds: int = 0
    num_accepted: int = 0
    num_proposals: int = 0
    num_tokens: int = 0
    num_arrays: int = 0
    confidence_error: float = 0.0
    array_error: float = 0.0
    differences: list[Difference] = field(default_factory=list)
    unknown_arrays: tuple[str, ...] = ()

    @property
    def faults(self) -> list[Difference]:
        return [one for one in self.differences if one.is_fault]

    @property
    def num_ties(self) -> int:
        return len(self.differences) - len(self.faults)


def check_set(golden: GoldenSet) -> SetReport:
    """Run every case of a set in float32 and compare.

    Raises:
        CheckpointError, SettingsError: target and draft cannot be loaded together.
    """
    report = SetReport(golden.name, golden.num_drafts, golden.top_k)
    trained = read_draft_config(golden.draft).num_drafts
    if trained < golden.num_drafts:
        report.differences.append(
            Difference("draft", "drafts in a round", str(trained), str(golden.num_drafts))
        )
        return report
    settings = DraftSettings(
        folder=golden.draft, num_drafts=golden.num_drafts, top_k=golden.top_k
    )
    recorded = record(load(golden.target, "float32", settings))
    arrays = {} if golden.arrays is None else dict(mx.load(str(golden.arrays)))
    num_blocks = -(-golden.num_positions // BLOCK_SIZE)
    runner = build_runner(recorded.loaded, num_blocks=2 * num_blocks + 1, block_size=BLOCK_SIZE)
    for number, case in enumerate(golden.cases):
        check = _CaseCheck(report, recorded, arrays, number, has_ties=golden.arrays is None)
        _run_case(runner, case, check, _blocks(number, num_blocks))
    is_known = {name: name.endswith((*BLOCK_ARRAYS, *PROMPT_ARRAYS)) for name in sorted(arrays)}
    report.unknown_arrays = tuple(name for name in is_known if not is_known[name])
    missed = ", ".join(name for name in is_known if is_known[name])
    if missed:
        report.differences.append(Difference("arrays", "never computed:", missed, "has them"))
    return report


def _blocks(number: int, count: int) -> list[int]:
    """Block table of a case: consecutive pages for even cases, scattered ones for odd."""
    if number % 2 == 0:
        return list(range(1, count + 1))
    scattered = np.random.default_rng(number).permutation(2 * count)[:count]
    return [int(block) + 1 for block in scattered]


def _run_case(runner: Runner, case: GoldenCase, check: "_CaseCheck", blocks: list[int]) -> None:
    """Prefill, verify every recorded round, and compare what came of each."""
    prompt = list(case.prompt_ids)
    admission = Admission(
        request_id=REQUEST,
        token_ids=prompt,
        num_prompt=len(prompt),
        num_computed=0,
        blocks=(blocks,),
        sampling=Sampling(temperature=0.0),
    )
    check.report.num_cases += 1
    outcome = _step(
        runner, Schedule(admissions=(admission,), turns=(Turn(REQUEST, len(prompt)),))
    )
    check.prompt_arrays()
    expected = case.output_ids[:1]
    for index, item in enumerate(case.rounds):
        if not check.emitted(index - 1, outcome, expected):
            break
        request = runner.table[REQUEST]
        check.state(index, item, request.num_computed, request.token_ids[-1])
        check.proposal(index, item, outcome.drafts, request.confidence_logits)
        turn = Turn(REQUEST, 1 + len(item.draft), len(item.draft), item.draft)
        outcome = _step(runner, Schedule(turns=(turn,)))
        expected = (*item.draft[: item.accepted], item.next_token)
    else:
        if check.emitted(len(case.rounds) - 1, outcome, expected):
            emitted = runner.table[REQUEST].token_ids[len(prompt) :]
            check.output(emitted[: len(case.output_ids)], case.output_ids)
    runner.begin(Schedule(forgotten=frozenset([REQUEST])))
    runner.finish(Grammar())


def _step(runner: Runner, schedule: Schedule) -> Outcome:
    runner.begin(schedule)
    return runner.finish(Grammar()).outcomes[REQUEST]


class _CaseCheck:
    """Compares one case; what it finds goes into the report.

    Args:
        arrays: recorded arrays by name; those compared are removed.
        has_ties: whether a near-tie excuses a token.
    """

    def __init__(
        self,
        report: SetReport,
        recorded: Recorded,
        arrays: dict[str, mx.array],
        number: int,
        *,
        has_ties: bool,
    ) -> None:
        self.report = report
        self._recorded = recorded
        self._arrays = arrays
        self._number = number
        self._has_ties = has_ties

    def emitted(self, index: int, outcome: Outcome, expected: tuple[int, ...]) -> bool:
        """Compare a verdict: accepted drafts and the next token; False ends the case."""
        ours = outcome.token_ids
        self.report.num_tokens += len(ours)
        if index >= 0:
            self.report.num_rounds += 1
            self.report.num_accepted += len(ours) - 1
        if ours == expected:
            return True
        at = _first_difference(ours, expected)
        logits = self._recorded.target.logits(at - outcome.num_verified - 1)
        margin = margin_of(logits, expected[at]) if at < min(len(ours), len(expected)) else None
        what = "prompt's next token" if index < 0 else "accepted drafts and next token"
        self._add(index, what, str(list(ours)), str(list(expected)), margin)
        return False

    def state(self, index: int, item: GoldenRound, start: int, anchor: int) -> None:
        """Compare where a round starts."""
        if (start, anchor) != (item.start, item.anchor):
            ours, golden = f"{anchor} at {start}", f"{item.anchor} at {item.start}"
            self._add(index, "anchor", ours, golden)

    def proposal(
        self,
        index: int,
        item: GoldenRound,
        drafts: tuple[int, ...],
        confidences: np.ndarray | None,
    ) -> None:
        """Compare a block's drafts, its confidences, and its recorded arrays."""
        at = _first_difference(drafts, item.draft)
        self.report.num_proposals += at
        if drafts != item.draft:
            margin = self._draft_margin(at, item.draft[at]) if at < len(drafts) else None
            self._add(index, "drafts", str(list(drafts)), str(list(item.draft)), margin)
        self._confidences(index, item, confidences, at + 1)
        for kind in BLOCK_ARRAYS:
            name = f"p{self._number}.r{index}.{kind}"
            golden = self._arrays.get(name)
            if golden is not None:
                self._array(index, name, _block_array(self._recorded.drafter, kind, golden))

    def _draft_margin(self, at: int, token: int) -> float:
        """How far a target token id lies below the draft that was chosen at ``at``."""
        drafter = self._recorded.drafter
        assert drafter.draft is not None and drafter.draft.corrected_logits is not None
        logits = drafter.draft.corrected_logits[0, at]
        ids = drafter.to_target_ids(mx.arange(logits.shape[0])).tolist()
        return margin_of(logits, ids.index(token)) if token in ids else float("inf")

    def _confidences(
        self, index: int, item: GoldenRound, ours: np.ndarray | None, count: int
    ) -> None:
        """Compare the confidences whose previous draft is the recorded one."""
        if ours is None or item.confidence_logits is None:
            if (ours is None) != (item.confidence_logits is None):
                said = ["none" if one is None else "some" for one in (ours, item.confidence_logits)]
                self._add(index, "confidences", *said)
            return
        golden = np.array(item.confidence_logits)[:count]
        error = float(np.abs(np.asarray(ours)[: len(golden)] - golden).max())
        self.report.confidence_error = max(self.report.confidence_error, error)
        if not error <= TOLERANCE:
            self._add(index, "confidences", _numbers(ours[: len(golden)]), _numbers(golden))

    def prompt_arrays(self) -> None:
        """Compare the recorded arrays of the prompt's forward."""
        target, drafter = self._recorded.target, self._recorded.drafter
        assert target.seen is not None and drafter.fused is not None
        name = f"p{self._number}.prompt_features"
        golden = self._arrays.get(name)
        taps = mx.concatenate(list(target.seen.taps), axis=-1)
        is_fused = golden is not None and golden.shape == drafter.fused.shape != taps.shape
        self._array(-1, name, drafter.fused if is_fused else taps)
        self._array(-1, f"p{self._number}.prompt_logits_last", target.logits(-1))

    def output(self, ours: list[int], golden: tuple[int, ...]) -> None:
        """Compare the whole output."""
        if tuple(ours) != golden:
            at = _first_difference(ours, golden)
            self._add(None, f"output from token {at}", str(ours[at:]), str(list(golden[at:])))

    def _array(self, index: int, name: str, ours: mx.array) -> None:
        """Compare with the recorded array of that name, where there is one."""
        golden = self._arrays.pop(name, None)
        if golden is None:
            return
        self.report.num_arrays += 1
        if name.endswith(("base_logits", "corrected_logits")):
            golden = golden[..., : ours.shape[-1]]  # rows that pad a draft's head are no ids
        if ours.shape != golden.shape:
            self._add(index, name, str(ours.shape), str(golden.shape))
            return
        error = largest_error(ours, golden)
        self.report.array_error = max(self.report.array_error, error)
        if not error <= TOLERANCE:
            self._add(index, name, f"off by {error:.2e}", f"within {TOLERANCE:g}")

    def _add(
        self, index: int | None, what: str, ours: str, golden: str, margin: float | None = None
    ) -> None:
        place = f"case {self._number}"
        if index is not None:
            place += " prompt" if index < 0 else f" round {index}"
        is_tie = self._has_ties and margin is not None and margin <= TIE_MARGIN
        self.report.differences.append(Difference(place, what, ours, golden, margin, not is_tie))


def _block_array(drafter: RecordingDrafter, kind: str, golden: mx.array) -> mx.array:
    """An array of the block just run, without the request axis.

    Hidden states are recorded of all slots, or of those that draft.
    """
    hidden, draft = drafter.hidden, drafter.draft
    assert hidden is not None and draft is not None
    if kind == "block_hidden":
        has_all = golden.shape[0] == hidden.shape[1]
        return hidden[0] if has_all else drafter.draft_rows(hidden, draft.tokens.shape[1])[0]
    array = draft.base_logits if kind == "base_logits" else draft.corrected_logits
    assert array is not None
    return array[0]


def margin_of(logits: mx.array, token: int) -> float:
    """Distance of a token's logit from the largest of logits [V]."""
    logits = logits.astype(mx.float32)
    return (logits.max() - logits[token]).item()


def largest_error(ours: mx.array, golden: mx.array) -> float:
    """Largest absolute difference; infinite where only one has an infinity."""
    ours, golden = ours.astype(mx.float32), golden.astype(mx.float32)
    if not mx.array_equal(mx.isinf(ours), mx.isinf(golden)).item():
        return float("inf")
    return mx.abs(mx.where(mx.isinf(golden), 0.0, ours - golden)).max().item()


def _first_difference(ours: "tuple[int, ...] | list[int]", golden: tuple[int, ...]) -> int:
    """Index of the first place where two sequences differ; the shorter length if none."""
    pairs = zip(ours, golden, strict=False)
    return next(
        (index for index, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(golden))
    )


def _numbers(values: np.ndarray) -> str:
    return "[" + ", ".join(f"{value:.4f}" for value in values) + "]"
