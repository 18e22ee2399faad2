"""A fitted draft as something to hand out: small files, and a card that says what it is."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from vllm_dspark.checkpoints.target import read_tensors

MAX_FILE_BYTES = 15 * 1000**2
INDEX = "model.safetensors.index.json"


def write_shards(source: Path, folder: Path, max_bytes: int = MAX_FILE_BYTES) -> list[str]:
    """Copy a draft's folder, its weights cut into files of at most ``max_bytes``.

    A single tensor that is larger gets a file of its own.

    Returns:
        The names of the weight files.
    """
    tensors = read_tensors(source)
    groups: list[dict[str, mx.array]] = [{}]
    for name in sorted(tensors):
        size = sum(array.nbytes for array in groups[-1].values())
        if groups[-1] and size + tensors[name].nbytes > max_bytes:
            groups.append({})
        groups[-1][name] = tensors[name]
    names = [
        f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        for number in range(1, len(groups) + 1)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("model*.safetensors*"):
        old.unlink()
    for name, group in zip(names, groups, strict=True):
        mx.save_safetensors(str(folder / name), group, metadata={"format": "pt"})
    index = {
        "metadata": {"total_size": sum(array.nbytes for array in tensors.values())},
        "weight_map": {
            key: name for name, group in zip(names, groups, strict=True) for key in group
        },
    }
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    shutil.copyfile(source / "config.json", folder / "config.json")
    return names


CARD = """---
license: {license}
library_name: vllm-dspark
tags: [speculative-decoding, dspark]
---
# DSpark draft for {target}

Made by `vllm-dspark train`. Serve it beside its target:

    vllm serve {target} --speculative-config '{{"method": "dspark", "model": "{folder}"}}'

| | |
|---|---|
| Layers, Markov head, block | {layers}, {markov}, {block} slots |
| Taps (layer outputs) | {taps} |
| Steps, rows per step, blocks per row | {num_steps}, {batch_rows}, {num_anchors} |
| Optimiser, peak rate, seed | {optimiser}, {rate}, {seed} |
| Rows known at the end | {rows_known:.0f} |
| Acceptance length on held-out greedy rows | {length:.2f} |
| ... by position | {by_position} |

Data: conversations that the target wrote itself, questions included; see `settings.json` and
`log.jsonl` of the run. Embedding and output head are the target's and are not stored.

Limits: the draft speeds up this target only. It never changes the target's text, only how fast it
comes. It was trained on streams of {row_length} tokens in the styles of its training prompts; far
longer contexts and other languages are accepted less.
"""


def write_card(
    folder: Path, target: str, settings: Mapping[str, Any], last: Mapping[str, Any], row_length: int
) -> None:
    """Write README.md beside a draft.

    Args:
        target: its name.
        settings: of the run, by name; last: the log's last line with an evaluation.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    by_position = last.get("held_out_by_position", [])
    text = CARD.format(
        license="apache-2.0",
        target=target,
        folder=folder.name,
        layers=config["num_hidden_layers"],
        markov=f"{config.get('markov_head_type', 'none')} of rank {config['markov_rank']}",
        block=config["block_size"],
        taps=", ".join(str(tap) for tap in config["target_layer_ids"]),
        rate=settings["learning_rate"] or "default",
        rows_known=last.get("rows_known", 0),
        length=last.get("held_out_length", 0.0),
        by_position=" ".join(f"{share:.3f}" for share in by_position),
        row_length=row_length,
        **{
            name: settings[name]
            for name in ("num_steps", "batch_rows", "num_anchors", "optimiser", "seed")
        },
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
