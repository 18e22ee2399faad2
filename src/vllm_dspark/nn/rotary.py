"""Rotary position embedding, split-half form, with the scalings that targets use."""

import math
from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from vllm_dspark.errors import CheckpointError

Tables = tuple[mx.array, mx.array]


class Rotary:
    """Turns positions into cosine and sine tables once a step, and applies them.

    Args:
        inverse_frequencies: [D/2] float32, radians per position of each pair.
        attention_factor: scale of cosine and sine (yarn's magnitude correction).
    """

    def __init__(self, inverse_frequencies: mx.array, attention_factor: float = 1.0) -> None:
        self._inverse_frequencies = inverse_frequencies
        self._attention_factor = attention_factor

    def tables(self, positions: mx.array, dtype: mx.Dtype = mx.float32) -> Tables:
        """What ``apply`` multiplies by: positions [...] -> two of [..., 1, D].

        The first is the cosine of every pair at both of its places, the second the sine, negative
        at the first place. The middle axis is there to broadcast over heads.
        """
        theta = positions.astype(mx.float32)[..., None, None] * self._inverse_frequencies
        cos, sin = mx.cos(theta), mx.sin(theta)
        if self._attention_factor != 1.0:
            cos, sin = cos * self._attention_factor, sin * self._attention_factor
        wide_cos = mx.concatenate([cos, cos], axis=-1)
        wide_sin = mx.concatenate([-sin, sin], axis=-1)
        return wide_cos.astype(dtype), wide_sin.astype(dtype)

    @staticmethod
    def apply(x: mx.array, tables: Tables) -> mx.array:
        """Rotate x [..., heads, D]; pairs are (i, i + D/2).

        Swapping the halves and multiplying whole rows is a quarter of the cost, on a CPU, of
        rotating the halves apart.
        """
        cos, sin = tables
        first, second = mx.split(x, 2, axis=-1)
        return x * cos + mx.concatenate([second, first], axis=-1) * sin


def base_frequencies(head_dim: int, theta: float) -> mx.array:
    """theta ** (-2 i / head_dim) for i = 0..head_dim/2-1, as [head_dim/2] float32."""
    half = head_dim // 2
    return mx.exp(mx.arange(half, dtype=mx.float32) * (-math.log(theta) / half))


def make_rotary(head_dim: int, theta: float, scaling: Mapping[str, Any] | None) -> Rotary:
    """Build the rotary embedding that a config.json describes.

    Args:
        head_dim: D, even.
        theta: base of the geometric series.
        scaling: the config's ``rope_scaling`` or ``rope_parameters``; None means unscaled.

    Raises:
        CheckpointError: for a scaling type that is not implemented.
    """
    scaling = scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    plain = base_frequencies(head_dim, theta)
    if kind == "default":
        return Rotary(plain)
    if kind == "linear":
        return Rotary(plain / scaling["factor"])
    if kind == "llama3":
        return Rotary(_llama3(plain, scaling))
    if kind == "yarn":
        return _yarn(plain, head_dim, theta, scaling)
    raise CheckpointError(
        f"rope scaling type is {kind!r}; this build has default, linear, llama3 and yarn: "
        "use a checkpoint with one of these"
    )


def _llama3(plain: mx.array, scaling: Mapping[str, Any]) -> mx.array:
    """Llama 3's rule: long waves slowed by ``factor``, short ones kept, a ramp between."""
    factor = scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    original = scaling["original_max_position_embeddings"]
    wavelength = 2 * math.pi / plain
    smooth = (original / wavelength - low) / (high - low)
    ramp = (1 - smooth) * plain / factor + smooth * plain
    slowed = mx.where(wavelength > original / low, plain / factor, ramp)
    return mx.where(wavelength < original / high, plain, slowed)


def _yarn(plain: mx.array, head_dim: int, theta: float, scaling: Mapping[str, Any]) -> Rotary:
    """YaRN (Peng et al. 2023): interpolate slow pairs, keep fast ones, scale the magnitude."""
    factor = scaling["factor"]
    original = scaling["original_max_position_embeddings"]

    def pair_of(num_rotations: float) -> float:
        return head_dim * math.log(original / (num_rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_of(scaling.get("beta_fast", 32)), pair_of(scaling.get("beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    span = max(high - low, 0.001)
    ramp = mx.clip((mx.arange(head_dim // 2, dtype=mx.float32) - low) / span, 0, 1)
    frequencies = plain / factor * ramp + plain * (1 - ramp)
    return Rotary(frequencies, _yarn_attention_factor(factor, scaling))


def _yarn_attention_factor(factor: float, scaling: Mapping[str, Any]) -> float:
    """The magnitude correction: given, from mscale pairs, or 0.1 ln(factor) + 1."""
    if scaling.get("attention_factor") is not None:
        return scaling["attention_factor"]

    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    mscale, all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if mscale and all_dim:
        return magnitude(mscale) / magnitude(all_dim)
    return magnitude(1.0)
