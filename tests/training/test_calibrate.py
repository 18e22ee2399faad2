"""Sequential temperature scaling on rounds whose truth is known."""

import numpy as np
import pytest

from vllm_dspark.errors import CheckpointError
from vllm_dspark.training.calibrate import (
    auroc,
    calibrate_rounds,
    expected_calibration_error,
    sigmoid,
)
from vllm_dspark.training.evaluate import Rounds


def synthetic(heat: float, count: int = 20000) -> Rounds:
    """Rounds of three slots; the true logits were multiplied by ``heat``."""
    rng = np.random.default_rng(1)
    logits = rng.normal(0.5, 1.5, size=(count, 3))
    kept = rng.random((count, 3)) < sigmoid(logits)
    accepted = np.cumprod(kept, axis=1).sum(axis=1)
    return Rounds(accepted, np.full(count, 3), (logits * heat).astype(np.float32))


def test_the_temperatures_undo_a_known_distortion() -> None:
    found = calibrate_rounds(synthetic(2.5))
    assert found.temperatures == pytest.approx([2.5] * 3, rel=0.15)
    assert max(found.after.ece) < 0.02 < min(found.before.ece)


def test_honest_confidences_stay() -> None:
    found = calibrate_rounds(synthetic(1.0))
    assert found.temperatures == pytest.approx([1.0] * 3, rel=0.15)


def test_scaling_keeps_the_order_of_the_first_slot() -> None:
    found = calibrate_rounds(synthetic(2.5))
    assert found.after.auroc[0] == pytest.approx(found.before.auroc[0], abs=1e-6)


def test_calibration_error_is_the_distance_of_said_and_happened() -> None:
    chances = np.array([0.9, 0.9, 0.9, 0.9, 0.1, 0.1])
    happened = np.array([1, 1, 0, 0, 0, 0], dtype=bool)
    assert expected_calibration_error(chances, happened) == pytest.approx((4 * 0.4 + 2 * 0.1) / 6)


def test_auroc_counts_pairs_and_halves_ties() -> None:
    happened = np.array([True, False, True])
    assert auroc(np.array([0.9, 0.1, 0.1]), happened) == pytest.approx(0.75)


def test_too_few_rounds_are_refused() -> None:
    with pytest.raises(CheckpointError, match="40 are needed"):
        calibrate_rounds(synthetic(1.0, count=10))
