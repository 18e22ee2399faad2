"""Muon for the backbone's matrices, AdamW for everything else, as functions of flat dictionaries.

A fused matrix (q, k, v; gate, up) is orthogonalised by its parts, which are what the checkpoint
stores, and equal-shaped parts of all layers go through Newton-Schulz as one batch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx

from vllm_dspark.drafter.config import DraftConfig
from vllm_dspark.training.settings import FitSettings

Arrays = dict[str, mx.array]
MUON_MOMENTUM = 0.95
ADAM_BETAS, ADAM_EPS = (0.9, 0.999), 1e-8
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan's quintic, five iterations
NUM_ITERATIONS = 5
MATCHED_RMS = 0.2  # of an AdamW step, so that one learning rate serves both


@dataclass(frozen=True, slots=True)
class Part:
    """Rows start..stop-1 of a parameter: one matrix of the checkpoint."""

    name: str
    start: int
    stop: int
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, the shorter side first, as Newton-Schulz takes them."""
        rows = self.stop - self.start
        return min(rows, self.columns), max(rows, self.columns)


def muon_parts(params: Mapping[str, mx.array], config: DraftConfig) -> list[Part]:
    """The matrices of the backbone, fused ones cut into their parts, in order."""
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    inner = config.intermediate_size
    cuts = {"qkv_proj": (q, q + kv), "gate_up_proj": (inner,)}
    parts = []
    for name, array in params.items():
        if not name.startswith("backbone.") or array.ndim != 2:
            continue
        inside = cuts.get(name.split(".")[-2], ())
        edges = (0, *inside, array.shape[0])
        parts += [
            Part(name, start, stop, array.shape[1])
            for start, stop in zip(edges, edges[1:], strict=False)
        ]
    return parts


def orthogonalised(x: mx.array) -> mx.array:
    """Replace singular values by about one: x [n, a, b], a <= b, any float type."""
    a, b, c = NEWTON_SCHULZ
    norm = mx.sqrt(x.astype(mx.float32).square().sum(axis=(-2, -1), keepdims=True))
    x = (x / (norm + 1e-7)).astype(x.dtype)
    for _ in range(NUM_ITERATIONS):
        square = x @ x.swapaxes(-1, -2)
        x = a * x + (b * square + c * (square @ square)) @ x
    return x


def learning_rate(step: int, settings: FitSettings) -> float:
    """Rate of step 0, 1, ...: a linear rise over the warm-up, then a cosine to zero."""
    warmup = max(1, math.ceil(settings.warmup_share * settings.num_steps))
    if step < warmup:
        return settings.peak_rate * (step + 1) / warmup
    done = (step - warmup) / max(1, settings.num_steps - warmup)
    return settings.peak_rate * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


class Optimiser:
    """Turns parameters, moments and gradients into the next parameters and moments.

    Args:
        params: float32 masters by name; only names and shapes are kept.
        config: of the draft, tells where fused matrices are cut.
        dtype: that Newton-Schulz computes in; bfloat16 on a GPU.
    """

    def __init__(
        self,
        params: Mapping[str, mx.array],
        config: DraftConfig,
        settings: FitSettings,
        dtype: mx.Dtype,
    ) -> None:
        self._settings = settings
        self._dtype = dtype
        parts = muon_parts(params, config) if settings.optimiser == "muon" else []
        self._groups: dict[tuple[int, int], list[Part]] = {}
        for part in parts:
            self._groups.setdefault(part.shape, []).append(part)
        self._muon = list(dict.fromkeys(part.name for part in parts))
        self._adam = [name for name in params if name not in set(self._muon)]

    def start(self, params: Mapping[str, mx.array]) -> Arrays:
        """Moments before the first step, all zero."""
        moments = {f"m.{name}": mx.zeros(array.shape) for name, array in params.items()}
        return moments | {f"v.{name}": mx.zeros(params[name].shape) for name in self._adam}

    def update(
        self, params: Arrays, moments: Arrays, grads: Arrays, rate: mx.array, step: mx.array
    ) -> tuple[Arrays, Arrays, mx.array]:
        """Take one step.

        Args:
            grads: float32, by the same names.
            rate: scalar float32; step: scalar float32, 1 for the first.

        Returns:
            New parameters, new moments, and the gradient's norm before clipping.
        """
        grads, norm = clipped(grads, self._settings.max_norm)
        new, kept = dict(params), dict(moments)
        for name in self._adam:
            new[name] = self._adamw(name, params[name], grads[name], kept, rate, step)
        for name, direction in self._muon_directions(grads, kept).items():
            decayed = params[name] * (1 - rate * self._settings.weight_decay)
            new[name] = decayed - rate * direction
        return new, kept, norm

    def _adamw(  # noqa: PLR0913 - one parameter's whole state
        self,
        name: str,
        param: mx.array,
        grad: mx.array,
        kept: Arrays,
        rate: mx.array,
        step: mx.array,
    ) -> mx.array:
        first, second = ADAM_BETAS
        m = first * kept[f"m.{name}"] + (1 - first) * grad
        v = second * kept[f"v.{name}"] + (1 - second) * grad.square()
        kept[f"m.{name}"], kept[f"v.{name}"] = m, v
        unbiased_m, unbiased_v = m / (1 - first**step), v / (1 - second**step)
        decayed = param * (1 - rate * self._settings.weight_decay)
        return decayed - rate * unbiased_m / (mx.sqrt(unbiased_v) + ADAM_EPS)

    def _muon_directions(self, grads: Arrays, kept: Arrays) -> Arrays:
        """Orthogonal steps, scaled to the size of AdamW's; writes the new momenta into kept."""
        nesterov = {}
        for name in self._muon:
            m = MUON_MOMENTUM * kept[f"m.{name}"] + (1 - MUON_MOMENTUM) * grads[name]
            kept[f"m.{name}"] = m
            nesterov[name] = MUON_MOMENTUM * m + (1 - MUON_MOMENTUM) * grads[name]
        done: dict[Part, mx.array] = {}
        for shape, parts in self._groups.items():
            scale = MATCHED_RMS * math.sqrt(shape[1])
            pieces = [nesterov[part.name][part.start : part.stop] for part in parts]
            is_tall = [piece.shape[0] > piece.shape[1] for piece in pieces]
            flat = [x.T if tall else x for x, tall in zip(pieces, is_tall, strict=True)]
            steps = orthogonalised(mx.stack(flat).astype(self._dtype))
            for index, (part, tall) in enumerate(zip(parts, is_tall, strict=True)):
                piece = steps[index].astype(mx.float32) * scale
                done[part] = piece.T if tall else piece
        joined: dict[str, list[mx.array]] = {name: [] for name in self._muon}
        for part in sorted(done, key=lambda part: (part.name, part.start)):
            joined[part.name].append(done[part])
        return {name: mx.concatenate(pieces) for name, pieces in joined.items()}


def clipped(grads: Arrays, max_norm: float) -> tuple[Arrays, mx.array]:
    """Scale gradients down to a global norm, and return the norm that they had."""
    norm = mx.sqrt(sum(grad.square().sum() for grad in grads.values()))
    scale = mx.minimum(max_norm / (norm + 1e-6), 1.0)
    return {name: grad * scale for name, grad in grads.items()}, norm
