"""Which rows a request contributes to a step."""

import numpy as np
import pytest

from vllm_dspark.errors import StateError
from vllm_dspark.runner.pack import make_span, pack
from vllm_dspark.runner.requests import RequestTable
from vllm_dspark.runner.schedule import Admission, Schedule, Turn
from vllm_dspark.sampling.params import Sampling


def table_of(**known: tuple[list[int], int]) -> RequestTable:
    """A table of requests by id: all tokens, and how many of them are computed."""
    table = RequestTable()
    table.follow(
        Schedule(
            admissions=tuple(
                Admission(
                    request_id=name,
                    token_ids=tokens,
                    num_prompt=len(tokens),
                    num_computed=computed,
                    blocks=([1, 2, 3],),
                    sampling=Sampling(),
                )
                for name, (tokens, computed) in known.items()
            )
        )
    )
    return table


def test_rows_are_packed_with_the_shortest_spans_first() -> None:
    table = table_of(a=([10, 11, 12, 13], 0), b=([20, 21, 22], 2), c=([30, 31], 1))
    batch = pack(table, [Turn("a", 4), Turn("b", 1), Turn("c", 1)])
    assert [span.request.request_id for span in batch.spans] == ["b", "c", "a"]
    assert batch.token_ids.tolist() == [22, 31, 10, 11, 12, 13]
    assert batch.positions.tolist() == [2, 1, 0, 1, 2, 3]
    assert batch.logit_rows == [0, 1, 5]
    assert batch.num_rows == 6


def test_an_unfinished_prompt_has_no_logits_row() -> None:
    table = table_of(a=([1, 2, 3, 4], 0))
    batch = pack(table, [Turn("a", 3)])
    assert not batch.spans[0].is_final
    assert batch.logit_rows == []


def test_a_chunk_starts_where_the_last_one_ended() -> None:
    table = table_of(a=([1, 2, 3, 4], 3))
    span = make_span(table["a"], Turn("a", 1))
    assert (span.start, span.num_known, span.is_final) == (3, 1, True)
    assert span.pages(0).start == 3
    assert np.array_equal(span.pages(0).blocks, [1, 2, 3])


def test_drafts_follow_the_last_known_token() -> None:
    table = table_of(a=([1, 2, 3], 2))
    batch = pack(table, [Turn("a", 3, 2, (7, 8))])
    assert batch.token_ids.tolist() == [3, 7, 8]
    assert batch.positions.tolist() == [2, 3, 4]
    assert batch.logit_rows == [0, 1, 2]


def test_placeholder_drafts_of_an_admission_add_no_rows() -> None:
    table = table_of(a=([1, 2, 3], 2))
    batch = pack(table, [Turn("a", 5, 4)])
    assert batch.token_ids.tolist() == [3]
    assert batch.logit_rows == [0]


def test_a_turn_without_known_tokens_is_a_bug_that_is_told() -> None:
    table = table_of(a=([1, 2, 3], 3))
    with pytest.raises(StateError, match="3 tokens of which 3 are computed"):
        make_span(table["a"], Turn("a", 1))
