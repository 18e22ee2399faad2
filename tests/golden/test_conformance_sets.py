"""The drafter reproduces every recorded round of the seven conformance sets in float32."""

import functools
from typing import Any

import mlx.core as mx
import pytest
from reference_rounds import SETS, Recording, load_recording, redraft, run_target

from vllm_dspark.verify.greedy import verify_greedy

TOLERANCE = 1e-3


@functools.cache
def recording_of(name: str) -> Recording:
    return load_recording(name)


@pytest.fixture(params=SETS)
def recording(request: pytest.FixtureRequest) -> Recording:
    return recording_of(request.param)


def test_all_seven_sets_are_here() -> None:
    assert len(SETS) == 7


def test_every_round_gives_the_recorded_drafts_and_confidences(recording: Recording) -> None:
    for case in recording.cases:
        _, draft = redraft(recording, case)
        assert draft.tokens.tolist() == [item["draft"] for item in case["rounds"]]
        expected = [item["confidence_logits"] for item in case["rounds"]]
        if expected[0] is None:
            assert draft.confidence_logits is None
        else:
            assert mx.abs(draft.confidence_logits - mx.array(expected)).max().item() < TOLERANCE


def test_logits_and_hidden_states_equal_the_recorded_arrays(recording: Recording) -> None:
    checked = 0
    for number, case in enumerate(recording.cases[:2]):
        hidden, draft = redraft(recording, case, keep_logits=True)
        ours = {
            "block_hidden": hidden,
            "base_logits": draft.base_logits,
            "corrected_logits": draft.corrected_logits,
        }
        for name, array in ours.items():
            for row in range(array.shape[0]):
                golden = recording.arrays.get(f"p{number}.r{row}.{name}")
                if golden is not None:
                    checked += 1
                    assert is_near(array[row], golden)
    assert checked >= 8


def is_near(ours: mx.array, golden: mx.array) -> bool:
    """Within tolerance, and minus infinity exactly where the golden array has it."""
    if not mx.array_equal(mx.isinf(ours), mx.isinf(golden)).item():
        return False
    difference = mx.where(mx.isinf(golden), 0.0, ours - golden)
    return mx.abs(difference).max().item() < TOLERANCE


@pytest.mark.parametrize("name", [name for name in SETS if name.startswith("deepspec")])
def test_prompt_features_and_logits_equal_the_recorded_arrays(name: str) -> None:
    recording = recording_of(name)
    for number, case in enumerate(recording.cases[:2]):
        golden = recording.arrays[f"p{number}.prompt_features"]
        seen = run_target(recording.target, case["prompt_ids"], recording.drafter.config.tap_states)
        assert is_near(mx.concatenate(list(seen.taps), axis=-1), golden)
        logits = recording.target.unembed(seen.hidden[-1])
        assert is_near(logits, recording.arrays[f"p{number}.prompt_logits_last"])


def choices_after(recording: Recording, case: dict[str, Any], item: dict[str, Any]) -> mx.array:
    """The target's argmax at the anchor and at each recorded draft: [K + 1]."""
    known = (case["prompt_ids"] + case["output_ids"])[: item["start"]]
    seen = run_target(recording.target, [*known, item["anchor"], *item["draft"]], ())
    rows = seen.hidden[-1 - len(item["draft"]) :]
    return recording.target.unembed(rows).argmax(axis=-1).astype(mx.int32)


def test_verification_accepts_what_was_recorded(recording: Recording) -> None:
    for case in recording.cases[:4]:
        rounds = case["rounds"]
        drafts = mx.array([item["draft"] for item in rounds], dtype=mx.int32)
        choices = mx.stack([choices_after(recording, case, item) for item in rounds])
        lengths = mx.full((len(rounds),), drafts.shape[1], dtype=mx.int32)
        accepted, next_tokens = verify_greedy(drafts, lengths, choices)
        assert accepted.tolist() == [item["accepted"] for item in rounds]
        assert next_tokens.tolist() == [item["next_token"] for item in rounds]


def test_fewer_drafts_are_the_first_ones_of_the_full_block(recording: Recording) -> None:
    case = recording.cases[0]
    _, draft = redraft(recording, case, num_drafts=2)
    assert draft.tokens.tolist() == [item["draft"][:2] for item in case["rounds"]]
