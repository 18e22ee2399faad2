"""Settings -> loaded networks -> a runner that can take a step."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from vllm_dspark.cache.pool import KVPool
from vllm_dspark.checkpoints.target import load_target
from vllm_dspark.models.config import TargetConfig
from vllm_dspark.models.decoder import Decoder
from vllm_dspark.ops.select import default_mix_name, make_mix
from vllm_dspark.runner.step import Runner

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


@dataclass(frozen=True, slots=True)
class Loaded:
    """Networks on the device.

    Attributes:
        dtype: compute type, also that of keys and values.
    """

    config: TargetConfig
    target: Decoder
    dtype: mx.Dtype


def load(folder: Path, dtype_name: str) -> Loaded:
    """Read a target; ``dtype_name`` is one of DTYPES."""
    dtype = DTYPES[dtype_name]
    config, target = load_target(folder, dtype)
    return Loaded(config, target, dtype)


def build_runner(
    loaded: Loaded, *, num_blocks: int, block_size: int, logprobs_mode: str = "raw_logprobs"
) -> Runner:
    """Allocate the pages and return a finished runner."""
    pool = KVPool(
        loaded.config.attention, num_blocks=num_blocks, block_size=block_size, dtype=loaded.dtype
    )
    mx.eval(pool.arrays)
    mix = make_mix(default_mix_name())
    return Runner(loaded.target, pool, mix=mix, logprobs_mode=logprobs_mode)


RunnerFactory = Callable[..., Runner]
