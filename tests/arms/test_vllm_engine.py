"""What an arm asks of vLLM's engine."""

from typing import Any

import pytest

from vllm_dspark.arms.spec import Ask
from vllm_dspark.arms.vllm_engine import ClosedLoop


class Engine:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def add_request(self, name: str, prompt: dict, params: Any) -> None:
        self.sent.append(params)


@pytest.mark.vllm
def test_a_schema_and_a_seed_reach_the_sampling_parameters() -> None:
    engine = Engine()
    asks = [Ask((1, 2), 8, schema='{"type": "integer"}', ignore_eos=False), Ask((1,), 8, 0.7, 5)]
    loop = ClosedLoop(engine, asks, 1, "x")
    for index, ask in enumerate(asks):
        loop._send(str(index), ask)
    formed, sampled = engine.sent
    assert formed.structured_outputs.json == '{"type": "integer"}'
    assert not formed.ignore_eos
    assert (sampled.temperature, sampled.seed, sampled.structured_outputs) == (0.7, 5, None)
