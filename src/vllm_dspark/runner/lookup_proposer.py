"""Drafts looked up in what a request has said already (vLLM's method ``ngram``); no arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vllm_dspark.runner.requests import Request


@dataclass(frozen=True, slots=True)
class LookupProposer:
    """Continues a request as it went on where its last tokens stood before.

    Attributes:
        min_n, max_n: shortest and longest run of last tokens that is looked up.
        num_drafts: K.
    """

    min_n: int
    max_n: int
    num_drafts: int

    def lookup(self, request: Request) -> tuple[int, ...]:
        """Drafts after the request's newest token; none where its last tokens are new."""
        return ngram_drafts(request.token_ids, self.min_n, self.max_n, self.num_drafts)


def ngram_drafts(token_ids: Sequence[int], min_n: int, max_n: int, k: int) -> tuple[int, ...]:
    """Tokens that followed an earlier occurrence of the last n tokens.

    As in vLLM, the longest n of min_n..max_n counts and, of its occurrences, the first.

    Returns:
        Up to k tokens.
    """
    ids = np.asarray(token_ids)
    ends = np.arange(len(ids) - 1)  # indices at which an occurrence may end
    follower = None
    for n in range(1, max_n + 1):
        ends = ends[ends >= n - 1]
        if len(ends) == 0:
            break
        ends = ends[ids[ends - n + 1] == ids[-n]]
        if len(ends) and n >= min_n:
            follower = int(ends[0]) + 1
    return () if follower is None else tuple(token_ids[follower : follower + k])
