"""The table of live requests follows the scheduler."""

import pytest

from vllm_dspark.errors import StateError
from vllm_dspark.runner.requests import RequestTable
from vllm_dspark.runner.schedule import Admission, Schedule
from vllm_dspark.sampling.params import Sampling


def admission(name: str, tokens: list[int], num_prompt: int, blocks: list[int]) -> Admission:
    return Admission(
        request_id=name,
        token_ids=tokens,
        num_prompt=num_prompt,
        num_computed=0,
        blocks=(blocks,),
        sampling=Sampling(),
    )


def test_requests_are_admitted_extended_and_forgotten() -> None:
    table = RequestTable()
    table.follow(Schedule(admissions=(admission("a", [1, 2], 2, [4]),)))
    table.follow(Schedule(new_blocks={"a": ([7, 9],)}))
    assert table["a"].blocks[0].tolist() == [4, 7, 9]
    table.follow(Schedule(forgotten=frozenset({"a", "never seen"})))
    assert len(table) == 0


def test_a_preempted_request_comes_back_in_the_same_step_with_its_outputs() -> None:
    table = RequestTable()
    table.follow(Schedule(admissions=(admission("a", [1, 2], 2, [4]),)))
    again = admission("a", [1, 2, 3], 2, [5])
    table.follow(Schedule(forgotten=frozenset({"a"}), admissions=(again,)))
    assert table["a"].is_resumed
    assert table["a"].num_outputs == 1
    assert table["a"].blocks[0].tolist() == [5]


def test_the_table_keeps_its_own_copy_of_the_tokens() -> None:
    tokens = [1, 2]
    table = RequestTable()
    table.follow(Schedule(admissions=(admission("a", tokens, 2, [4]),)))
    table["a"].token_ids.append(3)
    assert tokens == [1, 2]


def test_an_unknown_request_is_a_bug_that_is_told() -> None:
    with pytest.raises(StateError, match="request b is scheduled but was never admitted"):
        RequestTable()["b"]
