"""The key and value arrays of a stack of layers."""

import mlx.core as mx

from vllm_dspark.types import AttentionShape

Slots = mx.array | slice


class KVPool:
    """Keys and values of every cache slot, one pair of arrays per layer.

    Arrays are head-major, [num_kv_heads, num_slots, head_dim]: consecutive slots of one head are
    then consecutive rows, and a context whose blocks follow each other is a view that a matrix
    product takes without a copy. Slot = block id * block size + offset.
    """

    def __init__(
        self, shape: AttentionShape, *, num_blocks: int, block_size: int, dtype: mx.Dtype
    ) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        self.block_size = block_size
        size = (shape.num_kv_heads, num_blocks * block_size, shape.head_dim)
        self._keys = [mx.zeros(size, dtype) for _ in range(shape.num_layers)]
        self._values = [mx.zeros(size, dtype) for _ in range(shape.num_layers)]

    @property
    def arrays(self) -> list[mx.array]:
        """All arrays, to be evaluated with a step's results."""
        return [*self._keys, *self._values]

    def write(self, layer: int, slots: Slots, k: mx.array, v: mx.array) -> None:
        """Store rows k, v [N, KV, D] at slots ([N] int32, or a range of N slots).

        In place as long as nothing else holds the layer's arrays.
        """
        self._keys[layer][:, slots] = k.swapaxes(0, 1)
        self._values[layer][:, slots] = v.swapaxes(0, 1)

    def view(self, layer: int, start: int, length: int) -> tuple[mx.array, mx.array]:
        """Keys and values of consecutive slots, [1, KV, length, D], without a copy."""
        stop = start + length
        return self._keys[layer][None, :, start:stop], self._values[layer][None, :, start:stop]

    def gather(self, layer: int, blocks: mx.array) -> tuple[mx.array, mx.array]:
        """Keys and values of block tables [R, B] int32, copied to [R, KV, B * block_size, D]."""
        return self._gather(self._keys[layer], blocks), self._gather(self._values[layer], blocks)

    def _gather(self, array: mx.array, blocks: mx.array) -> mx.array:
        kv_heads, _, size = array.shape
        pages = array.reshape(kv_heads, self.num_blocks, self.block_size * size)
        picked = pages[:, blocks.reshape(-1)]
        num_requests = blocks.shape[0]
        return picked.reshape(kv_heads, num_requests, -1, size).swapaxes(0, 1)
