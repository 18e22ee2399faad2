"""Settings -> loaded networks -> a runner that can take a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from vllm_dspark import __version__
from vllm_dspark.blas import load_blas
from vllm_dspark.cache.pool import KVPool
from vllm_dspark.checkpoints.draft import (
    check_fits_target,
    load_drafter,
    read_draft_config,
    target_facts,
)
from vllm_dspark.checkpoints.target import check_causal_draft, load_target, read_target
from vllm_dspark.drafter.config import resolve_top_k
from vllm_dspark.drafter.drafter import Drafter
from vllm_dspark.models.config import TargetConfig
from vllm_dspark.models.decoder import Decoder
from vllm_dspark.ops import cpu
from vllm_dspark.ops.select import Mix, default_max_gathered, default_mix_name, make_mix
from vllm_dspark.planner.costs import CostTable
from vllm_dspark.runner.causal_proposer import CausalProposer
from vllm_dspark.runner.cost_cache import CostKey, describe_weights, read_costs, write_costs
from vllm_dspark.runner.drafting import NO_CONTEXT_LIMIT, DraftPolicy
from vllm_dspark.runner.lookup_proposer import LookupProposer
from vllm_dspark.runner.measure import measure_costs
from vllm_dspark.runner.planning import DraftPlanner
from vllm_dspark.runner.propose import BlockProposer, Proposer
from vllm_dspark.runner.step import Runner
from vllm_dspark.types import AttentionShape

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSettings:
    """How a block draft is loaded and run.

    Attributes:
        folder: the checkpoint.
        num_drafts: K; None is the trained number.
        top_k: ``dspark_draft_topk``; overrides the checkpoint's.
        quantization: None, "q4" or "q8": the form its matrices are converted to.
        draws: drafts of sampled requests are drawn, not picked.
        window: context positions that the draft attends to; None is the checkpoint's own.
    """

    folder: Path
    num_drafts: int | None = None
    top_k: object = None
    quantization: str | None = None
    draws: bool = False
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalSettings:
    """How an ordinary small model is loaded and run as a draft.

    Attributes:
        folder: the model, of a target family.
        num_drafts: K.
    """

    folder: Path
    num_drafts: int


AnyDraftSettings = DraftSettings | CausalSettings | LookupProposer
"""One kind per method; a lookup has nothing to load, so it is its own setting."""


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A block draft on the device, with its settings resolved."""

    drafter: Drafter
    num_drafts: int
    top_k: int | None
    draws: bool = False
    window: int | None = None

    @property
    def attention(self) -> AttentionShape:
        return self.drafter.config.attention


@dataclass(frozen=True, slots=True)
class LoadedCausal:
    """A causal draft model on the device."""

    config: TargetConfig
    model: Decoder
    num_drafts: int

    @property
    def attention(self) -> AttentionShape:
        return self.config.attention


@dataclass(frozen=True, slots=True)
class Loaded:
    """Networks on the device.

    Attributes:
        dtype: compute type, also that of keys and values.
        draft: network that drafts, with pages of its own layers.
        lookup: source of drafts without a network.
    """

    config: TargetConfig
    target: Decoder
    dtype: mx.Dtype
    draft: LoadedDraft | LoadedCausal | None = None
    lookup: LookupProposer | None = None


def load(folder: Path, dtype_name: str, draft: AnyDraftSettings | None = None) -> Loaded:
    """Read a target and its draft.

    Args:
        folder: the target.
        dtype_name: one of DTYPES.
        draft: None serves the target alone.

    Raises:
        CheckpointError, SettingsError: before any weights are read when the two do not fit.
    """
    dtype = DTYPES[dtype_name]
    match draft:
        case DraftSettings():
            return _load_block_pair(folder, dtype, draft)
        case CausalSettings():
            check_causal_draft(read_target(draft.folder), read_target(folder))
            config, target = load_target(folder, dtype)
            loaded = LoadedCausal(*load_target(draft.folder, dtype), draft.num_drafts)
            return Loaded(config, target, dtype, loaded)
    config, target = load_target(folder, dtype)
    return Loaded(config, target, dtype, lookup=draft)


def _load_block_pair(folder: Path, dtype: mx.Dtype, draft: DraftSettings) -> Loaded:
    draft_config = read_draft_config(draft.folder)
    check_fits_target(draft_config, target_facts(read_target(folder)))
    num_drafts = draft.num_drafts or draft_config.num_drafts
    draft_config.slots_for(num_drafts)
    top_k = resolve_top_k(draft.top_k, draft_config.top_k, draft_config.num_draft_logits)
    config, target = load_target(folder, dtype)
    drafter = load_drafter(draft.folder, draft_config, dtype, draft.quantization)
    if mx.default_device() == mx.Device(mx.cpu):
        drafter.lay_out_for_cpu(cpu.silu)
        mx.eval(drafter.parameters(), drafter.backbone.joined_arrays)
    loaded = LoadedDraft(drafter, num_drafts, top_k, draft.draws, draft.window)
    return Loaded(config, target, dtype, loaded)


def build_runner(  # noqa: PLR0913 - one argument per setting of vLLM
    loaded: Loaded,
    *,
    num_blocks: int,
    block_size: int,
    max_model_len: int = NO_CONTEXT_LIMIT,
    draft_group: int = 0,
    logprobs_mode: str = "raw_logprobs",
    rejection: str = "standard",
) -> Runner:
    """Allocate the pages and return a finished runner.

    Args:
        num_blocks, block_size: of the pool that vLLM's scheduler hands out.
        max_model_len: context limit.
        draft_group: KV cache group whose block tables the draft layers follow.
        logprobs_mode: vLLM's --logprobs-mode.
        rejection: "standard" or "block": the rule for drafts that were drawn.
    """
    mix = make_mix(default_mix_name())
    pool = KVPool(
        loaded.config.attention, num_blocks=num_blocks, block_size=block_size, dtype=loaded.dtype
    )
    proposer = None
    if loaded.draft is not None:
        proposer = _build_proposer(loaded, loaded.draft, mix, num_blocks, block_size, draft_group)
        mx.eval(proposer.arrays)
    mx.eval(pool.arrays)
    return Runner(
        loaded.target,
        pool,
        mix=mix,
        proposer=proposer,
        lookup=loaded.lookup,
        policy=DraftPolicy(max_model_len, _temperatures(loaded.draft)),
        logprobs_mode=logprobs_mode,
        rejection=rejection,
        max_gathered=default_max_gathered(),
    )


def add_planner(
    runner: Runner, loaded: Loaded, *, folders: Sequence[Path], num_blocks: int, block_size: int
) -> CostTable:
    """Give a fresh runner a planner, measuring step costs unless this machine has done so.

    Args:
        runner: without requests; its pages are written while measuring.
        folders: target and draft.
        num_blocks, block_size: of its pool.

    Returns:
        The cost table that is used.
    """
    assert loaded.draft is not None
    num_drafts = loaded.draft.num_drafts
    key = CostKey(
        device=str(mx.default_device()),
        blas=load_blas().path,
        mlx_version=mx.__version__,
        package_version=__version__,
        dtype=str(loaded.dtype),
        target=str(folders[0]),
        draft=str(folders[1]),
        weights=describe_weights(folders),
        num_drafts=num_drafts,
        block_size=block_size,
    )
    costs = read_costs(key)
    if costs is None:
        costs = measure_costs(
            runner, num_blocks=num_blocks, block_size=block_size, num_drafts=num_drafts
        )
        write_costs(key, costs)
        # Made-up requests are no experience.
        runner.policy = DraftPolicy(runner.policy.max_model_len, _temperatures(loaded.draft))
    runner.policy.planner = DraftPlanner(costs, num_drafts, _temperatures(loaded.draft))
    return costs


def _temperatures(draft: LoadedDraft | LoadedCausal | None) -> tuple[float, ...]:
    if isinstance(draft, LoadedDraft):
        return draft.drafter.config.confidence_temperatures
    return ()


def _build_proposer(  # noqa: PLR0913 - private, all of one call
    loaded: Loaded,
    draft: LoadedDraft | LoadedCausal,
    mix: Mix,
    num_blocks: int,
    block_size: int,
    group: int,
) -> Proposer:
    pool = KVPool(
        draft.attention, num_blocks=num_blocks, block_size=block_size, dtype=loaded.dtype
    )
    if isinstance(draft, LoadedCausal):
        return CausalProposer(
            draft.model, pool, mix=mix, num_drafts=draft.num_drafts, group=group
        )
    return BlockProposer(
        draft.drafter,
        loaded.target,
        pool,
        mix=mix,
        num_drafts=draft.num_drafts,
        top_k=draft.top_k,
        draws=draft.draws,
        window=draft.window,
        group=group,
    )
