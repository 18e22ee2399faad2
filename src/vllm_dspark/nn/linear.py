"""Linear layers and embeddings, dense or quantised, that can share and slice their rows."""

import mlx.core as mx
import mlx.nn as nn

from vllm_dspark.errors import CheckpointError

TILE_ROWS = 8  # OpenBLAS multiplies few rows in tiles of 8 or 4


class Linear(nn.Module):
    """y = x W^T + b, with W dense or in MLX's affine quantised form.

    Attributes:
        weight: [out, in] in a float type, or [out, in * bits / 32] uint32 when quantised.
        scales, biases: [out, in / group_size], only when quantised.
        bias: [out], only when the layer has one.
    """

    def __init__(
        self,
        weight: mx.array,
        bias: mx.array | None = None,
        *,
        scales: mx.array | None = None,
        biases: mx.array | None = None,
        group_size: int = 64,
        bits: int = 4,
    ) -> None:
        super().__init__()
        self.weight = weight
        if bias is not None:
            self.bias = bias
        if scales is not None:
            self.scales = scales
            self.biases = biases
        self.group_size = group_size
        self.bits = bits
        self._fills_rows = False

    @property
    def is_quantized(self) -> bool:
        return "scales" in self

    def __call__(self, x: mx.array) -> mx.array:
        """Apply the layer to x [..., in] -> [..., out]."""
        if self.is_quantized:
            y = mx.quantized_matmul(
                x,
                self.weight,
                self.scales,
                self.biases,
                transpose=True,
                group_size=self.group_size,
                bits=self.bits,
            )
            return y + self.bias if "bias" in self else y
        if self._fills_rows:
            return self._multiply_filled(x)
        if "bias" in self:
            return mx.addmm(self.bias, x, self.weight.T)
        return x @ self.weight.T

    def _multiply_filled(self, x: mx.array) -> mx.array:
        """Like a plain product, with 5 to 7 rows filled up with zeros to 8, and 13 to 15 to 16."""
        flat = x.reshape(-1, x.shape[-1])
        num_rows = flat.shape[0]
        missing = -num_rows % TILE_ROWS
        if missing and num_rows < 2 * TILE_ROWS and missing < TILE_ROWS / 2:
            flat = mx.pad(flat, [(0, missing), (0, 0)])
        y = (flat @ self.weight.T)[:num_rows]
        y = y.reshape(*x.shape[:-1], y.shape[-1])
        return y + self.bias if "bias" in self else y

    def lay_input_major(self, *, fills_rows: bool = True) -> None:
        """Store a dense weight so that a product reads it along its outputs.

        The shape stays [out, in]. OpenBLAS multiplies few rows by such a matrix about 1.4 times
        faster (SmolLM2's sizes, 1 to 16 rows, one thread of an AMD EPYC); GPUs do not care. It
        works in tiles: 5 rows take a quarter longer than 8, and 13 longer than 16, so those are
        filled up (not where the input is short: 64 columns multiply faster as they are).
        """
        if not self.is_quantized:
            self.weight = mx.contiguous(self.weight.T).T
            self._fills_rows = fills_rows

    def rows(self, start: int, stop: int) -> "Linear":
        """Return the layer that computes outputs start..stop-1 from views of this one's arrays."""
        cut = {name: self[name][start:stop] for name in ("scales", "biases") if name in self}
        bias = self.bias[start:stop] if "bias" in self else None
        return Linear(
            self.weight[start:stop], bias, group_size=self.group_size, bits=self.bits, **cut
        )

    def quantized(self, *, group_size: int, bits: int) -> "Linear":
        """Return this layer in affine quantised form; the input size divides by group_size."""
        weight, scales, biases = mx.quantize(self.weight, group_size=group_size, bits=bits)
        bias = self.bias if "bias" in self else None
        return Linear(weight, bias, scales=scales, biases=biases, group_size=group_size, bits=bits)


class Embedding(Linear):
    """A table of rows that can be looked up, and used as an output head when tied."""

    def lookup(self, ids: mx.array) -> mx.array:
        """Read rows: ids [...] int32 -> [..., in]."""
        if not self.is_quantized:
            return self.weight[ids]
        return mx.dequantize(
            self.weight[ids],
            self.scales[ids],
            self.biases[ids],
            group_size=self.group_size,
            bits=self.bits,
        )


def joined(layers: list[Linear]) -> Linear:
    """Stack the outputs of layers with the same input and format into one layer.

    Raises:
        CheckpointError: when they are quantised in different ways.
    """
    first = layers[0]
    formats = [(one.bits, one.group_size) if one.is_quantized else "none" for one in layers]
    if len(set(formats)) > 1:
        raise CheckpointError(
            "layers that are computed together (q, k and v, or gate and up) are quantised in "
            f"different ways, (bits, group size) {formats}: convert the model with "
            "mlx_lm.convert -q and one setting for all layers"
        )
    cut = {
        name: mx.concatenate([layer[name] for layer in layers])
        for name in ("scales", "biases")
        if name in first
    }
    bias = mx.concatenate([layer.bias for layer in layers]) if "bias" in first else None
    weight = mx.concatenate([layer.weight for layer in layers])
    return Linear(weight, bias, group_size=first.group_size, bits=first.bits, **cut)
