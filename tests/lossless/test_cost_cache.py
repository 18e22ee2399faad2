"""Measured costs on disk, the measuring itself, and how doctor shows them."""

from dataclasses import replace
from pathlib import Path

import pytest
from driver import CONFORMANCE, NUM_BLOCKS, VANILLA, make_runner, pair

from vllm_dspark.cli.cost_tables import describe_costs
from vllm_dspark.planner.costs import CostTable
from vllm_dspark.runner.build import add_planner
from vllm_dspark.runner.cost_cache import CostKey, describe_weights, read_costs, write_costs
from vllm_dspark.runner.measure import measure_costs, row_counts

TABLE = CostTable((1,), (1, 8), (64,), (((10.0, 12.5),),), (3.0,))
KEY = CostKey(
    device="cpu", blas="a.so", mlx_version="1", package_version="1", dtype="float32", target="t",
    draft="d", weights=(("model.safetensors", 1, 2),), num_drafts=7, block_size=16,
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_written_table_is_read_back_equal() -> None:
    write_costs(KEY, TABLE)
    assert read_costs(KEY) == TABLE


@pytest.mark.parametrize(
    "change",
    [{"dtype": "bfloat16"}, {"weights": (("model.safetensors", 1, 3),)}, {"num_drafts": 4},
     {"package_version": "2"}, {"mlx_version": "2"}, {"device": "gpu"}, {"blas": "b.so"},
     {"draft": "e"}],
)  # fmt: skip
def test_another_pair_version_or_machine_has_another_table(change: dict) -> None:
    write_costs(KEY, TABLE)
    assert read_costs(replace(KEY, **change)) is None


@pytest.mark.parametrize("text", ["", "{}", '{"table": {"requests": [2, 1]}}', "[1]"])
def test_a_damaged_file_is_measured_again(text: str) -> None:
    write_costs(KEY, TABLE)
    KEY.path.write_text(text)
    assert read_costs(KEY) is None


def test_doctor_shows_every_cell() -> None:
    assert "no step costs measured yet" in describe_costs()[0]
    write_costs(KEY, TABLE)
    shown = "\n".join(describe_costs())
    for value in ("10.0", "12.5", "3.0", "K = 7", "float32"):
        assert value in shown


def test_measuring_covers_both_ends_and_leaves_no_request() -> None:
    runner = make_runner()
    table = measure_costs(
        runner, num_blocks=NUM_BLOCKS, block_size=16, num_drafts=7, budget_s=0.5
    )
    assert row_counts(7) == (1, 2, 4, 8)
    assert table.requests[0] == table.rows[0] == 1
    assert all(value > 0 for plane in table.verify_ms for line in plane for value in line)
    assert len(runner.table) == 0


def test_a_second_start_reads_what_the_first_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [CONFORMANCE / "target", CONFORMANCE / VANILLA / "draft"]
    assert len(describe_weights(folders)) == 2
    options = {"folders": folders, "num_blocks": NUM_BLOCKS, "block_size": 16}
    runner = make_runner()
    first = add_planner(runner, pair(), **options)
    assert runner.policy.reasons == {}  # made-up requests are not counted
    monkeypatch.setattr("vllm_dspark.runner.build.measure_costs", None)
    assert add_planner(make_runner(), pair(), **options) == first
