"""Our figures on their way from the engine process to /metrics."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from vllm_dspark.planner.costs import CostTable
from vllm_dspark.runner.drafting import DraftPolicy
from vllm_dspark.runner.planning import DraftPlanner

pytestmark = pytest.mark.vllm


@pytest.fixture
def policy() -> DraftPolicy:
    table = CostTable((1,), (1,), (64,), (((1.0,),),), (1.0,))
    planner = DraftPlanner(table, num_drafts=7)
    planner.lengths.update([7, 7, 2])
    policy = DraftPolicy(planner=planner, expected_tokens=7.5, expected_rounds=3)
    policy.reasons["near_limit"] = 4
    return policy


def collected(config: SimpleNamespace) -> dict[tuple[str, ...], float]:
    from vllm_dspark.plugin.counters import DraftCollector

    return {
        (sample.name, *sample.labels.values()): sample.value
        for metric in DraftCollector(config).collect()
        for sample in metric.samples
    }


def test_what_the_worker_counts_is_what_metrics_show(
    policy: DraftPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm_dspark.plugin import counters

    monkeypatch.setattr(counters.tempfile, "gettempdir", lambda: str(tmp_path))
    parallel = SimpleNamespace(data_parallel_size=2)
    config = SimpleNamespace(instance_id="one", parallel_config=parallel)
    assert collected(config) == {}
    file = counters.CounterFile(counters.counter_path("one", 1))
    file.update(policy, is_final=True)
    found = collected(config)
    assert found["vllm:dspark_not_drafted_total", "1", "near_limit"] == 4
    assert found["vllm:dspark_planned_length_total", "1", "7"] == 2
    assert found["vllm:dspark_planned_length_total", "1", "2"] == 1
    assert found["vllm:dspark_expected_acceptance_length", "1"] == 2.5
    assert found["vllm:dspark_costs_distrusted", "1"] == 0
    file.remove()
    assert collected(config) == {}


def test_a_half_written_file_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm_dspark.plugin import counters

    monkeypatch.setattr(counters.tempfile, "gettempdir", lambda: str(tmp_path))
    counters.counter_path("one", 0).write_text(json.dumps({"x": 1})[:-1])
    config = SimpleNamespace(
        instance_id="one", parallel_config=SimpleNamespace(data_parallel_size=1)
    )
    assert collected(config) == {}
