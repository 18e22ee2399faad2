"""Reading weights: every tensor is accounted for, in every way it may be stored."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from draft_folders import (
    Config,
    Tensors,
    deepspec_config,
    make_tensors,
    quantize_tensors,
    speculators_config,
    write_folder,
    write_index,
    write_shards,
    zlab_config,
)
from mlx.utils import tree_flatten

from vllm_dspark.checkpoints.draft import load_drafter, read_draft_config
from vllm_dspark.checkpoints.export import export_drafter, split_for_export
from vllm_dspark.drafter.drafter import Drafter
from vllm_dspark.errors import CheckpointError, SettingsError

Q_PROJ = "layers.1.self_attn.q_proj"


def load(folder: Path, quantization: str | None = None, **options: Any) -> Drafter:
    return load_drafter(folder, read_draft_config(folder), mx.float32, quantization, **options)


def reload(tmp_path: Path, config: Config, tensors: Tensors, **options: Any) -> Drafter:
    return load(write_folder(tmp_path, config, tensors), **options)


def parameters(drafter: Drafter) -> Tensors:
    return dict(tree_flatten(drafter.parameters()))


def same(left: Tensors, right: Tensors) -> bool:
    return left.keys() == right.keys() and all(
        mx.array_equal(left[name], right[name]).item() for name in left
    )


VARIANTS = [
    deepspec_config(),
    deepspec_config(markov_head_type="gated"),
    deepspec_config(markov_head_type="rnn", enable_confidence_head=False),
    deepspec_config(confidence_head_with_markov=False),
    deepspec_config(markov_rank=0, confidence_head_with_markov=False),
    deepspec_config(attention_bias=True),
    speculators_config(),
    speculators_config(draft_vocab_size=15),
    speculators_config(speculators_model_type="dflash"),
    zlab_config(),
]


@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize("config", VARIANTS)
def test_a_loaded_draft_gives_back_exactly_what_was_stored(
    tmp_path: Path, config: Config, tables: bool
) -> None:
    tensors = make_tensors(config, tables=tables)
    assert same(split_for_export(reload(tmp_path, config, tensors)), tensors)


def test_q_k_and_v_are_stacked_in_that_order(tmp_path: Path) -> None:
    tensors = make_tensors(deepspec_config())
    attention = reload(tmp_path, deepspec_config(), tensors).backbone.layers[1].self_attn
    names = [f"layers.1.self_attn.{name}_proj.weight" for name in "qkv"]
    assert mx.array_equal(
        attention.qkv_proj.weight, mx.concatenate([tensors[name] for name in names])
    )


@pytest.mark.parametrize("stored", [mx.bfloat16, mx.float16, mx.float32])
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16, mx.float32])
def test_weights_are_cast_to_the_compute_dtype(
    tmp_path: Path, stored: mx.Dtype, dtype: mx.Dtype
) -> None:
    folder = write_folder(
        tmp_path, deepspec_config(), make_tensors(deepspec_config(), dtype=stored)
    )
    drafter = load_drafter(folder, read_draft_config(folder), dtype)
    kept_wide = {"confidence_head": mx.float32}
    if dtype == mx.float16:
        kept_wide.update({"backbone.fc": mx.float32, "backbone.hidden_norm": mx.float32})
    for name, array in parameters(drafter).items():
        wide = [value for prefix, value in kept_wide.items() if name.startswith(prefix)]
        assert array.dtype == (wide[0] if wide else dtype), name
    fused = drafter.fuse([mx.full((2, 64), 6e4, dtype=dtype)] * 2)
    assert fused.dtype == dtype
    assert mx.isfinite(fused).all().item()


def test_shards_read_like_one_file(tmp_path: Path) -> None:
    tensors = make_tensors(deepspec_config())
    write_shards(tmp_path, deepspec_config(), tensors)
    assert same(split_for_export(load(tmp_path)), tensors)


def test_an_index_that_disagrees_with_its_shards_is_refused(tmp_path: Path) -> None:
    tensors = make_tensors(deepspec_config())
    weight_map = write_shards(tmp_path, deepspec_config(), tensors)
    write_index(tmp_path, {**weight_map, "ghost.weight": weight_map["fc.weight"]})
    with pytest.raises(CheckpointError, match=r"ghost\.weight"):
        load(tmp_path)
    unlisted = {name: shard for name, shard in weight_map.items() if name != "fc.weight"}
    write_index(tmp_path, unlisted)
    with pytest.raises(CheckpointError, match=r"fc\.weight"):
        load(tmp_path)
    write_index(tmp_path, {**weight_map, "fc.weight": "model-00003-of-00003.safetensors"})
    with pytest.raises(CheckpointError, match="00003"):
        load(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    tensors = make_tensors(deepspec_config())
    write_folder(tmp_path, deepspec_config(), tensors)
    mx.save_safetensors(str(tmp_path / "more.safetensors"), {"fc.weight": tensors["fc.weight"]})
    with pytest.raises(CheckpointError, match=r"fc\.weight is in both"):
        load(tmp_path)


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    write_folder(tmp_path, deepspec_config(), make_tensors(deepspec_config()))
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load(tmp_path)


def test_a_header_without_its_fields_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, deepspec_config(), {"x": mx.zeros(1)})
    header = b'{"fc.weight":{"shape":[1]}}'
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointError, match="damaged header"):
        load(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, deepspec_config(), {"x": mx.zeros(1)})
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors"):
        load(tmp_path)


ALL_NAMES = sorted(make_tensors(deepspec_config(markov_head_type="gated")))


@pytest.mark.parametrize("name", ALL_NAMES)
def test_every_tensor_is_missed(tmp_path: Path, name: str) -> None:
    config = deepspec_config(markov_head_type="gated")
    tensors = make_tensors(config)
    del tensors[name]
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        reload(tmp_path, config, tensors)


def poisoned(value: float) -> Callable[[mx.array], mx.array]:
    def poison(array: mx.array) -> mx.array:
        flat = array.reshape(-1)
        flat[flat.size - 1] = value
        return flat.reshape(array.shape)

    return poison


FAULTS: dict[str, tuple[Callable[[mx.array], mx.array], str]] = {
    "transposed": (lambda array: array.T, "shape"),
    "longer": (lambda array: mx.concatenate([array, array]), "shape"),
    "integers": (lambda array: array.astype(mx.int32), "stored as I32"),
    "nan": (poisoned(float("nan")), "not finite"),
    "inf": (poisoned(float("-inf")), "not finite"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", [f"{Q_PROJ}.weight", "fc.weight", "markov_head.markov_w1.weight"])
def test_a_damaged_tensor_is_named(tmp_path: Path, name: str, fault: str) -> None:
    config = deepspec_config(head_dim=32)
    damage, words = FAULTS[fault]
    tensors = make_tensors(config)
    tensors[name] = damage(tensors[name])
    with pytest.raises(CheckpointError, match=words) as raised:
        reload(tmp_path, config, tensors)
    assert name in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"markov_head_type": "vanilla"}, "markov_head.gate_proj.weight"),
        ({"enable_confidence_head": False}, "confidence_head.proj.weight"),
        (
            {"num_hidden_layers": 1, "layer_types": ["full_attention"]},
            "layers.1.mlp.up_proj.weight",
        ),
        ({"markov_rank": 0}, "markov_head.markov_w1.weight"),
    ],
)
def test_a_config_that_forgets_a_part_leaves_an_extra_tensor(
    tmp_path: Path, changes: dict[str, Any], name: str
) -> None:
    tensors = make_tensors(deepspec_config(markov_head_type="gated"))
    with pytest.raises(CheckpointError, match=f"{name} is not a part"):
        reload(tmp_path, deepspec_config(**{"markov_head_type": "gated", **changes}), tensors)


@pytest.mark.parametrize("name", ["mask_embedding.weight", "layers.0.self_attn.sinks", "model.fc"])
def test_an_unknown_tensor_is_refused(tmp_path: Path, name: str) -> None:
    tensors = {**make_tensors(deepspec_config()), name: mx.zeros((64,))}
    with pytest.raises(CheckpointError, match=f"{name} is not a part"):
        reload(tmp_path, deepspec_config(), tensors)


def test_many_problems_are_counted(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="and .* more"):
        reload(tmp_path, deepspec_config(), {"fc.weight": mx.zeros((64, 128))})


def test_a_number_that_overflows_the_compute_dtype_is_refused(tmp_path: Path) -> None:
    tensors = make_tensors(deepspec_config())
    tensors["norm.weight"] = mx.full((64,), 1e5)
    folder = write_folder(tmp_path, deepspec_config(), tensors)
    with pytest.raises(CheckpointError, match=r"norm\.weight.*wider dtype"):
        load_drafter(folder, read_draft_config(folder), mx.float16)


def reduced(**tensors: mx.array) -> tuple[Config, Tensors]:
    config = speculators_config(draft_vocab_size=15)
    return config, {**make_tensors(config), **tensors}


def test_a_reduced_vocabulary_keeps_its_offsets(tmp_path: Path) -> None:
    drafter = reload(tmp_path, *reduced())
    assert drafter.to_target_ids(mx.arange(15)).tolist() == list(range(0, 30, 2))


@pytest.mark.parametrize("name", ["d2t", "lm_head.weight"])
def test_a_reduced_vocabulary_needs_its_head_and_offsets(tmp_path: Path, name: str) -> None:
    config, tensors = reduced()
    del tensors[name]
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        reload(tmp_path, config, tensors)


@pytest.mark.parametrize(
    "offsets",
    [
        [2 * index for index in range(15)],  # absolute even ids as offsets: 42 > 39
        [0] * 14 + [-15],
        [0] * 14 + [-1],  # 13 twice
    ],
)
def test_offsets_that_are_not_one_to_one_are_refused(tmp_path: Path, offsets: list[int]) -> None:
    with pytest.raises(CheckpointError, match="d2t must give"):
        reload(tmp_path, *reduced(d2t=mx.array(offsets, dtype=mx.int64)))


def test_a_mask_that_disagrees_with_the_offsets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="t2d marks 40"):
        reload(tmp_path, *reduced(t2d=mx.ones((40,), dtype=mx.bool_)))


def test_the_mask_is_optional_and_zero_offsets_are_the_identity(tmp_path: Path) -> None:
    config, tensors = reduced(d2t=mx.zeros((15,), dtype=mx.int64))
    del tensors["t2d"]
    assert reload(tmp_path, config, tensors).draft_to_target is None


def test_rows_that_pad_the_draft_vocabulary_are_cut(tmp_path: Path) -> None:
    config = speculators_config(draft_vocab_size=48)
    drafter = reload(tmp_path, config, make_tensors(config, tables=True))
    assert drafter.lm_head.weight.shape == (40, 64)
    assert drafter.markov_head.markov_w2.weight.shape == (40, 8)


def test_another_hidden_size_than_the_target_needs_own_tables(tmp_path: Path) -> None:
    config = speculators_config(target_hidden_size=80)
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight is missing"):
        reload(tmp_path / "a", config, make_tensors(config))
    drafter = reload(tmp_path / "b", config, make_tensors(config, tables=True))
    assert drafter.backbone.fc.weight.shape == (64, 160)


def test_tables_equal_to_the_targets_are_shared_and_others_kept(tmp_path: Path) -> None:
    tensors = make_tensors(deepspec_config(), tables=True)
    tables = {
        "embed_tokens.weight": tensors["embed_tokens.weight"],
        "lm_head.weight": tensors["lm_head.weight"] + 1,
    }
    drafter = reload(tmp_path, deepspec_config(), tensors, target_tables=tables)
    assert drafter.embed_tokens is None
    assert mx.array_equal(drafter.lm_head.weight, tensors["lm_head.weight"])


@pytest.mark.parametrize(("name", "bits"), [("q4", 4), ("q8", 8)])
def test_conversion_packs_the_backbone_and_own_head_only(
    tmp_path: Path, name: str, bits: int
) -> None:
    tensors = make_tensors(deepspec_config(), tables=True)
    drafter = reload(tmp_path, deepspec_config(), tensors, quantization=name)
    packed = {key.removesuffix(".scales") for key in parameters(drafter) if "scales" in key}
    layers = [f"backbone.layers.{index}." for index in range(2)]
    parts = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
    assert packed == {"lm_head", *(layer + part for layer in layers for part in parts)}
    head = drafter.lm_head
    assert (head.bits, head.group_size) == (bits, 64)
    unpacked = mx.dequantize(head.weight, head.scales, head.biases, group_size=64, bits=bits)
    assert mx.allclose(unpacked, tensors["lm_head.weight"], atol=1 / 2**bits)
    with pytest.raises(CheckpointError, match="is quantised"):
        split_for_export(drafter)


@pytest.mark.parametrize(
    ("config", "name", "words"),
    [
        (deepspec_config(), "q5", "must be one of"),
        (deepspec_config(hidden_size=96, head_dim=16), "q4", "96 inputs"),
        (deepspec_config(intermediate_size=100), "q8", "100 inputs"),
        (deepspec_config(head_dim=8), "q4", "32 inputs"),
        (deepspec_config(quantization={"bits": 4, "group_size": 64}), "q4", "already"),
    ],
)
def test_a_conversion_that_cannot_be_is_refused_before_weights(
    tmp_path: Path, config: Config, name: str, words: str
) -> None:
    folder = write_folder(tmp_path, config, {"x": mx.zeros(1)})
    (folder / "model.safetensors").unlink()
    with pytest.raises(SettingsError, match=words):
        load(folder, name)


@pytest.mark.parametrize(("group_size", "bits"), [(64, 4), (32, 8), (64, 6)])
def test_a_draft_packed_by_mlx_computes_as_its_unpacked_weights(
    tmp_path: Path, group_size: int, bits: int
) -> None:
    config = deepspec_config(markov_rank=64)
    packed = quantize_tensors(make_tensors(config, tables=True), group_size=group_size, bits=bits)
    dense = dict(packed)
    for name in [name for name in packed if name.endswith(".scales")]:
        prefix = name.removesuffix(".scales")
        parts = [dense.pop(f"{prefix}.{part}") for part in ("weight", "scales", "biases")]
        dense[f"{prefix}.weight"] = mx.dequantize(*parts, group_size=group_size, bits=bits)
    stored = {**config, "quantization": {"group_size": group_size, "bits": bits}}
    first = reload(tmp_path / "packed", stored, packed)
    second = reload(tmp_path / "dense", config, dense)
    rows, anchors = mx.random.normal((2, 4, 64)), mx.array([1, 2])
    for top_k in (None, 5):
        drafts = [one.propose(rows, anchors, None, top_k=top_k) for one in (first, second)]
        assert drafts[0].tokens.tolist() == drafts[1].tokens.tolist()
        assert mx.allclose(drafts[0].confidence_logits, drafts[1].confidence_logits, atol=1e-4)
    taps = [mx.random.normal((3, 64)) for _ in range(2)]
    keys = [one.context_kv(one.fuse(taps), mx.arange(3))[1][0] for one in (first, second)]
    assert mx.allclose(keys[0], keys[1], atol=1e-4)


def test_a_packed_draft_may_keep_single_matrices_dense_or_otherwise(tmp_path: Path) -> None:
    config = deepspec_config()
    q4 = quantize_tensors(make_tensors(config), group_size=64, bits=4)
    wide = {f"{Q_PROJ}.weight": mx.random.normal((64, 64))}
    for name in [name for name in q4 if name.startswith(Q_PROJ)]:
        del q4[name]
    forms = {
        "dense": (False, wide),
        "8 bit": ({"group_size": 64, "bits": 8}, quantize_tensors(wide, group_size=64, bits=8)),
    }
    for name, (override, tensors) in forms.items():
        stored = {**config, "quantization": {"group_size": 64, "bits": 4, Q_PROJ: override}}
        drafter = reload(tmp_path / name, stored, {**q4, **tensors})
        assert not drafter.backbone.layers[1].self_attn.qkv_proj.is_quantized
        assert drafter.backbone.layers[0].self_attn.qkv_proj.is_quantized


@pytest.mark.parametrize("part", ["scales", "biases", "weight"])
def test_a_packed_matrix_without_one_of_its_parts_is_refused(tmp_path: Path, part: str) -> None:
    config = deepspec_config(quantization={"group_size": 64, "bits": 4})
    packed = quantize_tensors(make_tensors(deepspec_config()), group_size=64, bits=4)
    del packed[f"{Q_PROJ}.{part}"]
    with pytest.raises(CheckpointError, match=Q_PROJ):
        reload(tmp_path, config, packed)


def test_packed_weights_that_the_config_does_not_announce_are_refused(tmp_path: Path) -> None:
    packed = quantize_tensors(make_tensors(deepspec_config()), group_size=64, bits=4)
    with pytest.raises(CheckpointError, match="scales is not a part"):
        reload(tmp_path, deepspec_config(), packed)


EXPORTABLE = [
    (deepspec_config(target_layer_ids=[-1, 3, 5]), "deepspec"),
    (deepspec_config(markov_head_type="gated"), "speculators"),
    (deepspec_config(markov_rank=0, enable_confidence_head=False), "deepspec"),
    (speculators_config(draft_vocab_size=15, markov_head_type="rnn"), "speculators"),
    (speculators_config({"layer_types": ["full_attention", "sliding_attention"],
                         "sliding_window": 24}, sample_from_anchor=False,
                        speculators_config=...), "speculators"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "layout"), EXPORTABLE)
def test_an_exported_draft_reads_back_the_same(tmp_path: Path, config: Config, layout: str) -> None:
    first = reload(tmp_path / "in", config, make_tensors(config))
    export_drafter(tmp_path / "out", first, layout=layout, dtype=mx.float32)
    second = load(tmp_path / "out")
    assert same(parameters(first), parameters(second))
    free_of_format = [
        {name: getattr(one.config, name) for name in one.config.__dataclass_fields__}
        for one in (first, second)
    ]
    for fields in free_of_format:
        fields.pop("format")
        fields.pop("num_target_layers")
    assert free_of_format[0] == free_of_format[1]
    ids = mx.arange(first.config.draft_vocab_size)
    assert first.to_target_ids(ids).tolist() == second.to_target_ids(ids).tolist()


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        (deepspec_config(), "gguf"),
        (zlab_config(), "deepspec"),
        (speculators_config(), "deepspec"),
        (speculators_config(draft_vocab_size=15), "deepspec"),
        (deepspec_config(target_layer_ids=[1, 5]), "speculators"),
    ],
)
def test_a_layout_that_cannot_describe_the_draft_is_refused(
    tmp_path: Path, config: Config, layout: str
) -> None:
    drafter = reload(tmp_path / "in", config, make_tensors(config))
    with pytest.raises(SettingsError):
        export_drafter(tmp_path / "out", drafter, layout=layout)
