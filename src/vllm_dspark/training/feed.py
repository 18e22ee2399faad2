"""The order in which rows are trained on, exact after a stop, also while shards still appear."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vllm_dspark.errors import CheckpointError
from vllm_dspark.training.shards import Rows, list_shards, read_shard


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run is in its rows; stored with the weights.

    Attributes:
        turn: passes begun before this one.
        cursor: rows of this pass already given.
        num_old, num_all: rows known before this pass and at its start.
    """

    turn: int = 0
    cursor: int = 0
    num_old: int = 0
    num_all: int = 0


class RowFeed:
    """Gives batches of rows for ever.

    A pass takes every row that is new since the last pass, and as many older ones, drawn anew, in
    random order; with nothing new, a pass takes all rows.

    Args:
        folder: of shards.
        num_held_out: first rows of the first shard, kept out of training.
        seed: with a place, it decides everything that follows.
        place: to go on from.
    """

    def __init__(
        self, folder: Path, *, num_held_out: int, seed: int, place: Place | None = None
    ) -> None:
        self._folder = folder
        self._seed = seed
        self._shards: list[Rows] = []
        self._starts: list[int] = [0]
        self._rescan()
        if not self._shards:
            raise CheckpointError(f"{folder} has no rows yet; make them with train data")
        first = self._shards[0]
        if num_held_out >= len(first):
            raise CheckpointError(
                f"held_out_rows is {num_held_out}, but the first shard has {len(first)} rows; hold "
                "out fewer"
            )
        self.held_out = first[:num_held_out]
        self._num_held_out = num_held_out
        self.place = place or Place()
        self._order = self._make_order() if self.place.num_all else np.zeros(0, dtype=np.int64)

    @property
    def row_length(self) -> int:
        """Tokens per row."""
        return self.held_out.tokens.shape[1]

    @property
    def num_rows(self) -> int:
        """Rows known now, held-out ones included."""
        return self._starts[-1]

    def take(self, count: int) -> Rows:
        """The next ``count`` rows."""
        picked: list[np.ndarray] = []
        missing = count
        while missing:
            if self.place.cursor == len(self._order):
                self._next_pass()
            stop = min(self.place.cursor + missing, len(self._order))
            picked.append(self._order[self.place.cursor : stop])
            missing -= stop - self.place.cursor
            place = self.place
            self.place = Place(place.turn, stop, place.num_old, place.num_all)
        return self._gather(np.concatenate(picked))

    def _next_pass(self) -> None:
        self._rescan()
        turn = self.place.turn + bool(self.place.num_all)
        self.place = Place(turn, 0, self.place.num_all or self._num_held_out, self._starts[-1])
        self._order = self._make_order()

    def _make_order(self) -> np.ndarray:
        place, first = self.place, self._num_held_out
        while self._starts[-1] < place.num_all:  # resumed on a folder that is still growing
            time.sleep(1)
            self._rescan()
        rng = np.random.default_rng((self._seed, place.turn))
        old, new = np.arange(first, place.num_old), np.arange(place.num_old, place.num_all)
        if not len(new):
            return rng.permutation(np.arange(first, place.num_all))
        some = rng.choice(old, size=min(len(old), len(new)), replace=False)
        return rng.permutation(np.concatenate([new, some]))

    def _rescan(self) -> None:
        for path in list_shards(self._folder)[len(self._shards) :]:
            rows = read_shard(path)
            if self._shards and rows.tokens.shape[1] != self._shards[0].tokens.shape[1]:
                raise CheckpointError(
                    f"{path} has rows of {rows.tokens.shape[1]} tokens, the first shard of "
                    f"{self._shards[0].tokens.shape[1]}; make them with the same row_length"
                )
            self._shards.append(rows)
            self._starts.append(self._starts[-1] + len(rows))

    def _gather(self, ids: np.ndarray) -> Rows:
        shard_ids = np.searchsorted(self._starts, ids, side="right") - 1
        parts = [self._shards[s] for s in shard_ids]
        inside = ids - np.asarray(self._starts)[shard_ids]
        return Rows(
            np.stack([part.tokens[i] for part, i in zip(parts, inside, strict=True)]),
            np.stack([part.mask[i] for part, i in zip(parts, inside, strict=True)]),
            np.array([part.is_greedy[i] for part, i in zip(parts, inside, strict=True)]),
        )
