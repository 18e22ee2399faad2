"""Fit a draft: a resumable loop around one compiled step."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from vllm_dspark.drafter.drafter import Drafter
from vllm_dspark.training.blocks import draw_anchors, valid_anchors
from vllm_dspark.training.device import compiled, is_gpu
from vllm_dspark.training.evaluate import Rounds, greedy_rounds
from vllm_dspark.training.feed import RowFeed
from vllm_dspark.training.frozen import FrozenTarget
from vllm_dspark.training.network import Batch, losses_of, parameters_of, set_parameters
from vllm_dspark.training.optimiser import Arrays, Optimiser, learning_rate
from vllm_dspark.training.settings import FitSettings, LossWeights
from vllm_dspark.training.state import RunFolder, TrainState
from vllm_dspark.types import Seen

METRICS = ("total", "cross_entropy", "l1", "confidence", "norm", "length")


@dataclass(frozen=True, slots=True)
class Told:
    """What the loop says about a step; ``rounds`` only where it evaluated."""

    step: int
    metrics: dict[str, float]
    rounds: Rounds | None = None


class Trainer:
    """One run: a drafter, a frozen target, rows, and a folder that it can be resumed from.

    Args:
        drafter: with its first weights; those of the last save replace them on resuming.
        target: frozen, in the compute type.
        feed: gives the rows.
        folder: of the run.
        terms: of the loss.
    """

    def __init__(
        self,
        drafter: Drafter,
        target: FrozenTarget,
        feed: RowFeed,
        folder: RunFolder,
        settings: FitSettings,
        *,
        terms: LossWeights,
    ) -> None:
        self._drafter, self._target, self._feed = drafter, target, feed
        self._folder, self._settings, self._terms = folder, settings, terms
        masters = {name: array.astype(mx.float32) for name, array in parameters_of(drafter).items()}
        narrow = mx.bfloat16 if is_gpu() else mx.float32
        self._optimiser = Optimiser(masters, drafter.config, settings, narrow)
        saved = folder.load_last()
        self.state = saved or TrainState(
            step=0, best=0.0, params=masters, moments=self._optimiser.start(masters)
        )
        self._see = compiled(self._features)
        self._grads = compiled(self._loss_and_grads)
        self._update = compiled(self._optimiser.update)

    def run(self, num_steps: int | None = None) -> Iterator[Told]:
        """Train to the last step of the settings, or ``num_steps`` further; one item per report.

        Weights are saved every ``save_every`` steps and at the end.
        """
        settings, last = self._settings, self._settings.num_steps
        stop = last if num_steps is None else min(last, self.state.step + num_steps)
        started, since = time.perf_counter(), self.state.step
        pending: list[Arrays] = []
        while self.state.step < stop:
            pending.append(self._step())
            step = self.state.step
            if step % settings.log_every == 0 or step == stop:
                metrics = _mean(pending)
                seconds = time.perf_counter() - started
                done = (step - since) * settings.batch_rows * self._feed.row_length
                metrics |= {"rate": learning_rate(step - 1, settings), "seconds": seconds}
                metrics["tokens_per_second"] = done / max(seconds, 1e-9)
                metrics["rows_known"] = self._feed.num_rows
                pending, since, started = [], step, time.perf_counter()
                rounds = None
                if step % settings.evaluate_every == 0 or step == last:
                    rounds = self._evaluate()
                yield self._tell(Told(step, metrics, rounds))
                started = time.perf_counter() if rounds is not None else started
            if step % settings.save_every == 0 or step == stop:
                self._folder.save_last(self.state, self._feed.place)

    def _tell(self, told: Told) -> Told:
        entry: dict[str, Any] = {"step": told.step, **told.metrics}
        if told.rounds is not None:
            entry["held_out_length"] = told.rounds.length
            entry["held_out_by_position"] = told.rounds.by_position()
        self._folder.log(entry)
        return told

    def _evaluate(self) -> Rounds:
        """Measure acceptance; keep the weights if they are the best so far."""
        set_parameters(self._drafter, self.state.params, self._target.dtype)
        rounds = greedy_rounds(self._drafter, self._target, self._feed.held_out)
        if rounds.length > self.state.best:
            self.state.best = rounds.length
            self._folder.save_best(self._drafter)
        return rounds

    def _step(self) -> Arrays:
        """Queue one step on the device; returns its metrics, unevaluated."""
        state, settings = self.state, self._settings
        rows = self._feed.take(settings.batch_rows)
        rng = np.random.default_rng((settings.seed, state.step))
        anchors, is_real = draw_anchors(valid_anchors(rows.mask), settings.num_anchors, rng)
        tokens = mx.array(rows.tokens)
        batch = (tokens, mx.array(rows.mask), mx.array(anchors), mx.array(is_real))
        grads, metrics = self._grads(state.params, batch, self._see(tokens))
        rate = mx.array(learning_rate(state.step, settings))
        state.params, state.moments, norm = self._update(
            state.params, state.moments, grads, rate, mx.array(float(state.step + 1))
        )
        state.step += 1
        metrics["norm"] = norm
        mx.async_eval(metrics, state.params, state.moments)
        return metrics

    def _features(self, tokens: mx.array) -> tuple[mx.array, tuple[mx.array, ...]]:
        seen = self._target.see(tokens, self._drafter.config.tap_states)
        return seen.hidden, seen.taps

    def _loss_and_grads(
        self,
        params: Arrays,
        batch: tuple[mx.array, ...],
        states: tuple[mx.array, tuple[mx.array, ...]],
    ) -> tuple[Arrays, Arrays]:
        """Gradients in float32 by name, and scalars to report."""

        def loss(params: Arrays) -> tuple[mx.array, Arrays]:
            set_parameters(self._drafter, params, self._target.dtype)
            losses, blocks = losses_of(
                self._drafter, self._target, Batch(*batch), Seen(*states), self._terms,
                self._settings.loss_rows,
            )  # fmt: skip
            kept = mx.cumprod(losses.accept.reshape(blocks.mask.shape), axis=-1)
            whole = blocks.mask[..., -1]
            length = 1 + (kept.sum(axis=-1) * whole).sum() / mx.maximum(whole.sum(), 1)
            return losses.total, {
                "total": losses.total, "cross_entropy": losses.cross_entropy, "l1": losses.l1,
                "confidence": losses.confidence, "length": length,
            }  # fmt: skip

        (_, metrics), grads = mx.value_and_grad(loss)(params)
        return grads, metrics


def _mean(pending: list[Arrays]) -> dict[str, float]:
    """Wait for the device, and average what the steps since the last report said."""
    return {
        name: float(mx.stack([metrics[name] for metrics in pending]).mean().item())
        for name in METRICS
    }
