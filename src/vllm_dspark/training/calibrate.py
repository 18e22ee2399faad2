"""Sequential temperature scaling: make the confidences mean what they say.

A slot's survival is the product of the confidences up to it. Each slot gets one temperature, in
order, so that survival agrees with how often the drafts up to that slot were all accepted.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vllm_dspark.checkpoints.draft import (
    check_fits_target,
    load_drafter,
    read_draft_config,
    target_facts,
)
from vllm_dspark.errors import CheckpointError
from vllm_dspark.training.evaluate import Rounds, greedy_rounds
from vllm_dspark.training.frozen import FrozenTarget
from vllm_dspark.training.shards import list_shards, read_shard

KEY = "confidence_temperatures"  # in config.json: one per slot, confidence = sigmoid(logit / T)
GRID = np.geomspace(0.2, 5.0, 161)
NUM_BINS = 20


@dataclass(frozen=True, slots=True)
class Quality:
    """How honest the survival of each slot is; lists of K.

    Attributes:
        ece: expected calibration error, 0..1.
        auroc: chance that an accepted prefix has a higher survival than a rejected one.
    """

    ece: list[float]
    auroc: list[float]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Temperatures, and what they change on rounds that they were not fitted to."""

    temperatures: list[float]
    num_rounds: int
    before: Quality
    after: Quality

    def lines(self) -> list[str]:
        """A table, one line per slot."""
        head = f"{'slot':>4} {'T':>6} {'ECE before':>11} {'ECE after':>10} {'AUROC':>6}"
        rows = zip(
            self.temperatures, self.before.ece, self.after.ece, self.after.auroc, strict=True
        )
        body = [
            f"{slot:>4} {t:>6.3f} {before:>10.1%} {after:>10.1%} {auroc:>6.3f}"
            for slot, (t, before, after, auroc) in enumerate(rows)
        ]
        mean = (
            f"mean ECE {np.mean(self.before.ece):.2%} before, {np.mean(self.after.ece):.2%} after, "
            f"over {self.num_rounds} rounds that were not fitted to"
        )
        return [head, *body, mean]


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * x))


def survivals(logits: np.ndarray, temperatures: list[float]) -> np.ndarray:
    """Products of the confidences: logits [N, K] -> [N, K] in 0..1."""
    return np.cumprod(sigmoid(logits / np.asarray(temperatures)), axis=1)


def expected_calibration_error(chances: np.ndarray, happened: np.ndarray) -> float:
    """Mean distance between what was said and what happened, in 20 equal bins of the chance.

    Args:
        chances: [N] in 0..1; happened: [N] bool.
    """
    if not len(chances):
        return 0.0
    bins = np.minimum((chances * NUM_BINS).astype(int), NUM_BINS - 1)
    counts = np.bincount(bins, minlength=NUM_BINS)
    gaps = np.abs(
        np.bincount(bins, weights=chances, minlength=NUM_BINS)
        - np.bincount(bins, weights=happened.astype(float), minlength=NUM_BINS)
    )
    return float(gaps.sum() / counts.sum())


def auroc(scores: np.ndarray, happened: np.ndarray) -> float:
    """Area under the ROC curve, ties counted half; NaN where only one thing happened."""
    positives = int(happened.sum())
    negatives = len(happened) - positives
    if not positives or not negatives:
        return float("nan")
    values, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    total = ranks[inverse][happened].sum()
    return float((total - positives * (positives + 1) / 2) / (positives * negatives))


def fit_temperatures(logits: np.ndarray, accepted: np.ndarray) -> list[float]:
    """Choose one temperature per slot, left to right, each on top of those before.

    Args:
        logits: [N, K] of rounds with all K slots proposed; accepted: [N] int, drafts kept.
    """
    prefix, temperatures = np.ones(len(logits)), list[float]()
    for slot in range(logits.shape[1]):
        happened = accepted > slot
        errors = [
            expected_calibration_error(prefix * sigmoid(logits[:, slot] / t), happened)
            for t in GRID
        ]
        temperatures.append(float(GRID[int(np.argmin(errors))]))
        prefix = prefix * sigmoid(logits[:, slot] / temperatures[-1])
    return temperatures


def quality(logits: np.ndarray, accepted: np.ndarray, temperatures: list[float]) -> Quality:
    """Measure survivals against what was accepted; arguments as :func:`fit_temperatures`."""
    said = survivals(logits, temperatures)
    slots = range(logits.shape[1])
    return Quality(
        [expected_calibration_error(said[:, k], accepted > k) for k in slots],
        [auroc(said[:, k], accepted > k) for k in slots],
    )


def calibrate_rounds(rounds: Rounds) -> Calibration:
    """Fit on the even rounds, measure on the odd ones.

    Raises:
        CheckpointError: there are too few rounds, or no confidences in them.
    """
    whole = rounds.proposed == rounds.confidence_logits.shape[1]
    logits, accepted = rounds.confidence_logits[whole], rounds.accepted[whole]
    if len(logits) < 40 or np.isnan(logits).any():
        raise CheckpointError(
            f"{len(logits)} rounds with confidences were found and 40 are needed; give more rows, "
            "or a draft with a confidence head"
        )
    temperatures = fit_temperatures(logits[::2], accepted[::2])
    ones = [1.0] * logits.shape[1]
    return Calibration(
        temperatures,
        len(logits[1::2]),
        quality(logits[1::2], accepted[1::2], ones),
        quality(logits[1::2], accepted[1::2], temperatures),
    )


def calibrate_draft(
    target: FrozenTarget, folder: Path, data: Path, *, num_rows: int
) -> Calibration:
    """Calibrate a draft on greedy rows, and write the temperatures into its config.json.

    Args:
        folder: of the draft.
        data: rows; the first ``num_rows`` are used, which a fit with as many held out never saw.

    Raises:
        CheckpointError: the draft does not fit the target, or there are too few rounds.
    """
    config = read_draft_config(folder)
    check_fits_target(config, target_facts(target.config))
    shards = list_shards(data)
    if not shards:
        raise CheckpointError(f"{data} has no rows; make them with train data")
    drafter = load_drafter(folder, config, target.dtype)
    rounds = greedy_rounds(drafter, target, read_shard(shards[0])[:num_rows])
    found = calibrate_rounds(rounds)
    path = folder / "config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content[KEY] = [round(t, 4) for t in found.temperatures]
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return found
