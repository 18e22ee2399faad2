"""`vllm-dspark parity conformance` passes the seven sets and sees planted faults."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from vllm_dspark.cli import main as cli
from vllm_dspark.drafter.drafter import Drafter
from vllm_dspark.parity.conformance import Difference, largest_error, margin_of
from vllm_dspark.runner.propose import BlockProposer

CONFORMANCE = Path(__file__).parents[1] / "conformance"
SETS = sorted(path.parent.name for path in CONFORMANCE.glob("*/golden.json"))


def conformance(*arguments: str | Path) -> int:
    return cli.main(["parity", "conformance", *map(str, arguments)])


@pytest.fixture
def small_set(tmp_path: Path) -> Callable[[str], Path]:
    """Copies a set, cut to its first case and without arrays."""

    def copy(name: str) -> Path:
        folder = tmp_path / name
        shutil.copytree(CONFORMANCE / name / "draft", folder / "draft")
        golden = json.loads((CONFORMANCE / name / "golden.json").read_text())
        golden["cases"] = golden["cases"][:1]
        (folder / "golden.json").write_text(json.dumps(golden))
        (tmp_path / "target").symlink_to(CONFORMANCE / "target")
        return folder

    return copy


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_all_seven_sets_are_equal(capsys: pytest.CaptureFixture[str]) -> None:
    assert conformance(CONFORMANCE) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:8]] == SETS
    assert all(line.endswith("equal") for line in lines[1:8])
    assert json.loads(lines[-1]) == {"sets": 7, "equal": 7}


def test_a_set_finds_the_target_beside_it(small_set: Callable[[str], Path]) -> None:
    folder = small_set("deepspec-gated-k5")
    assert conformance(folder) == 0
    (folder.parent / "target").unlink()
    assert conformance(folder) == 2
    assert conformance(folder, "--target", CONFORMANCE / "target") == 0


def test_top_k_comes_from_the_set_else_the_option_else_the_name(
    small_set: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = small_set("speculators-topk8-k5")
    golden = json.loads((folder / "golden.json").read_text())
    assert conformance(folder, "--top-k", "3") == 0
    del golden["draft_topk"]
    (folder / "golden.json").write_text(json.dumps(golden))
    assert conformance(folder) == 0
    assert conformance(folder, "--top-k", "8") == 0
    assert conformance(folder, "--top-k", "1") == 1
    assert "drafts [" in capsys.readouterr().out


def test_taps_shifted_by_one_are_seen(small_set: Callable[[str], Path]) -> None:
    folder = small_set("deepspec-vanilla-k7")
    config = folder / "draft" / "config.json"
    taps = json.loads(config.read_text())["target_layer_ids"]
    edit_json(config, target_layer_ids=[tap + 1 for tap in taps])
    assert conformance(folder) == 1


@pytest.mark.parametrize(
    ("name", "is_anchor", "num_drafts"),
    [("speculators-anchor-k5", False, 4), ("speculators-fillin-sliding-k5", True, 6)],
)
def test_the_other_slot_layout_is_seen(
    small_set: Callable[[str], Path], name: str, is_anchor: bool, num_drafts: int
) -> None:
    folder = small_set(name)
    config = folder / "draft" / "config.json"
    own = json.loads(config.read_text())["speculators_config"]
    own["proposal_methods"][0]["speculative_tokens"] = num_drafts
    edit_json(config, sample_from_anchor=is_anchor, speculators_config=own)
    assert conformance(folder) == 1


def test_offsets_read_as_ids_are_seen(
    small_set: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small_set("speculators-reduced-vocab-k4")
    assert conformance(folder) == 0
    monkeypatch.setattr(
        Drafter, "to_target_ids", lambda self, ids: self.draft_to_target[ids].astype(mx.int32)
    )
    assert conformance(folder) == 1


@pytest.mark.parametrize("name", ["deepspec-gated-k5", "speculators-anchor-k5"])
def test_one_changed_weight_is_seen(small_set: Callable[[str], Path], name: str) -> None:
    folder = small_set(name)
    path = folder / "draft" / "model.safetensors"
    weights = dict(mx.load(str(path)))
    key = next(key for key in sorted(weights) if key.endswith("v_proj.weight"))
    weights[key] = weights[key].at[0].add(0.5)
    mx.save_safetensors(str(path), weights)
    assert conformance(folder) == 1


def test_a_changed_confidence_logit_and_a_changed_array_are_seen(tmp_path: Path) -> None:
    folder = tmp_path / "deepspec-gated-k5"
    shutil.copytree(CONFORMANCE / folder.name, folder)
    arrays = dict(mx.load(str(folder / "golden.safetensors")))
    arrays["p1.r0.base_logits"] = arrays["p1.r0.base_logits"] + 2e-3
    mx.save_safetensors(str(folder / "golden.safetensors"), arrays)
    assert conformance(folder, "--target", CONFORMANCE / "target") == 1
    arrays["p1.r0.base_logits"] = arrays["p1.r0.base_logits"] - 2e-3
    mx.save_safetensors(str(folder / "golden.safetensors"), arrays)
    golden = json.loads((folder / "golden.json").read_text())
    golden["cases"][7]["rounds"][1]["confidence_logits"][3] += 2e-3
    (folder / "golden.json").write_text(json.dumps(golden))
    assert conformance(folder, "--target", CONFORMANCE / "target") == 1


def test_an_array_of_another_kind_is_named_and_one_never_reached_is_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "deepspec-gated-k5"
    shutil.copytree(CONFORMANCE / folder.name, folder)
    arrays = dict(mx.load(str(folder / "golden.safetensors")))
    mx.save_safetensors(
        str(folder / "golden.safetensors"), arrays | {"p0.r0.entropy": mx.zeros(5)}
    )
    assert conformance(folder, "--target", CONFORMANCE / "target") == 0
    assert "not compared: p0.r0.entropy" in capsys.readouterr().out
    mx.save_safetensors(
        str(folder / "golden.safetensors"), arrays | {"p0.r99.base_logits": mx.zeros((5, 512))}
    )
    assert conformance(folder, "--target", CONFORMANCE / "target") == 1


@pytest.mark.parametrize("field", ["accepted", "next_token", "start", "anchor"])
def test_every_number_of_a_round_is_compared(
    small_set: Callable[[str], Path], field: str
) -> None:
    folder = small_set("deepspec-gated-k5")
    golden = json.loads((folder / "golden.json").read_text())
    golden["cases"][0]["rounds"][1][field] += 1
    (folder / "golden.json").write_text(json.dumps(golden))
    assert conformance(folder) == 1


def test_a_cache_that_skips_a_row_is_seen(
    small_set: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    absorb = BlockProposer.absorb

    def skip_decode_steps(self: BlockProposer, seen: Any, batch: Any, layout: Any) -> None:
        if batch.num_rows > 10:
            absorb(self, seen, batch, layout)

    folder = small_set("deepspec-vanilla-k7")
    monkeypatch.setattr(BlockProposer, "absorb", skip_decode_steps)
    assert conformance(folder) == 1


@pytest.mark.parametrize("content", ["{", "[]", '{"cases": []}', '{"cases": [{"prompt_ids": 3}]}'])
def test_a_malformed_file_is_one_sentence(
    small_set: Callable[[str], Path], capsys: pytest.CaptureFixture[str], content: str
) -> None:
    folder = small_set("deepspec-gated-k5")
    (folder / "golden.json").write_text(content)
    assert conformance(folder) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert str(folder) in error


def test_a_folder_without_sets_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conformance(tmp_path) == 2
    assert "golden.json" in capsys.readouterr().err


def test_a_near_tie_says_its_margin_and_is_no_fault() -> None:
    assert margin_of(mx.array([1.0, 3.0, 2.5]), 2) == pytest.approx(0.5)
    tie = Difference("case 0 round 1", "drafts", "[1]", "[2]", margin=2e-6, is_fault=False)
    assert str(tie) == (
        "case 0 round 1: drafts [1], golden [2]; margin 2.00e-06 (near-tie)"
    )


def test_an_infinity_on_one_side_is_an_infinite_error() -> None:
    ours, golden = mx.array([1.0, -mx.inf]), mx.array([1.5, -mx.inf])
    assert largest_error(ours, golden) == 0.5
    assert largest_error(mx.array([1.0, 2.0]), golden) == float("inf")
