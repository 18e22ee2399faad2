"""Full recompute of recorded rounds: dense attention, no cache, every round of a case at once."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from vllm_dspark.checkpoints.draft import load_drafter, read_draft_config
from vllm_dspark.checkpoints.target import load_target
from vllm_dspark.drafter.config import LayerView
from vllm_dspark.drafter.drafter import Draft, Drafter
from vllm_dspark.models.decoder import Decoder
from vllm_dspark.types import Seen

CONFORMANCE = Path(__file__).parent.parent / "conformance"
SETS = sorted(path.parent.name for path in CONFORMANCE.glob("*/golden.json"))


@dataclass(frozen=True)
class Recording:
    """One conformance set with its networks."""

    drafter: Drafter
    target: Decoder
    top_k: int | None
    cases: list[dict[str, Any]]
    arrays: dict[str, mx.array]


def load_recording(name: str) -> Recording:
    """Load a set and the target beside it, in float32."""
    folder = CONFORMANCE / name
    golden = json.loads((folder / "golden.json").read_text())
    drafter = load_drafter(folder / "draft", read_draft_config(folder / "draft"), mx.float32)
    _, target = load_target(CONFORMANCE / "target", mx.float32)
    arrays = mx.load(str(folder / "golden.safetensors"))
    return Recording(drafter, target, golden.get("draft_topk"), golden["cases"], arrays)


def causal_attend(_: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    """Attention of one sequence without a cache: q, k, v [N, heads, D]."""
    out = mx.fast.scaled_dot_product_attention(
        q.swapaxes(0, 1)[None], k.swapaxes(0, 1)[None], v.swapaxes(0, 1)[None],
        scale=q.shape[-1] ** -0.5, mask="causal",
    )  # fmt: skip
    return out[0].swapaxes(0, 1)


def run_target(target: Decoder, token_ids: list[int], taps: tuple[int, ...]) -> Seen:
    """Run the target over one whole sequence."""
    ids = mx.array(token_ids, dtype=mx.int32)
    return target.forward(ids, mx.arange(len(token_ids)), causal_attend, taps)


def visible(view: LayerView, anchors: mx.array, num_context: int, num_slots: int) -> mx.array:
    """What block slots may see: [R, 1, S, num_context + S] bool."""
    columns = mx.arange(num_context)
    sees = columns < anchors[:, None]
    if view.window is not None:
        sees = sees & (columns >= anchors[:, None] - view.window)
    context = mx.broadcast_to(sees[:, None], (anchors.shape[0], num_slots, num_context))
    slots = mx.arange(num_slots)
    own = (slots[:, None] >= slots) if view.is_causal else mx.ones((num_slots, num_slots), mx.bool_)
    own = mx.broadcast_to(own, (anchors.shape[0], num_slots, num_slots))
    return mx.concatenate([context, own], axis=-1)[:, None]


def dense_attend(
    drafter: Drafter, taps: tuple[mx.array, ...], positions: mx.array
) -> Callable[..., mx.array]:
    """Attention of blocks at ``positions`` [R] over one sequence's taps, by dense masks."""
    context = drafter.context_kv(drafter.fuse(taps), mx.arange(taps[0].shape[0]))

    def attend(layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        num_rows, num_slots = q.shape[:2]
        past_k, past_v = (mx.broadcast_to(past, (num_rows, *past.shape)) for past in context[layer])
        mask = visible(drafter.config.layers[layer], positions, past_k.shape[1], num_slots)
        out = mx.fast.scaled_dot_product_attention(
            q.swapaxes(1, 2),
            mx.concatenate([past_k, k], axis=1).swapaxes(1, 2),
            mx.concatenate([past_v, v], axis=1).swapaxes(1, 2),
            scale=q.shape[-1] ** -0.5,
            mask=mask,
        )
        return out.swapaxes(1, 2)

    return attend


def redraft(
    recording: Recording, case: dict[str, Any], num_drafts: int | None = None, **options: Any
) -> tuple[mx.array, Draft]:
    """Run the blocks of every recorded round of a case.

    Returns:
        Block hidden states [R, S, d], and the drafts.
    """
    drafter, target, config = recording.drafter, recording.target, recording.drafter.config
    seen = run_target(target, case["prompt_ids"] + case["output_ids"], config.tap_states)
    positions = mx.array([item["start"] for item in case["rounds"]], dtype=mx.int32)
    anchors = mx.array([item["anchor"] for item in case["rounds"]], dtype=mx.int32)
    attend = dense_attend(drafter, seen.taps, positions)
    slots = None if num_drafts is None else config.slots_for(num_drafts)
    hidden = drafter.block(target.embed, anchors, positions, attend, num_slots=slots)
    draft = drafter.propose(
        hidden, anchors, target.unembed, num_drafts=num_drafts, top_k=recording.top_k, **options
    )
    return hidden, draft
