"""Time the parts of a step in process, beside what memory bandwidth and mlx_lm allow."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from vllm_dspark.bench.floor import Floor, measure_bandwidth
from vllm_dspark.bench.scene import (
    BLOCK_SIZE,
    admissions,
    make_runner,
    random_ids,
    requests_at,
    run,
    tables,
)
from vllm_dspark.bench.timing import Ratio, Spread, interleave_ms, once_ms, time_ms
from vllm_dspark.cache.attend import BlockAttend
from vllm_dspark.cache.layout import make_context_layout
from vllm_dspark.cache.pool import KVPool
from vllm_dspark.ops.select import default_mix_name, make_mix
from vllm_dspark.runner.build import DraftSettings, Loaded, LoadedDraft, load
from vllm_dspark.runner.schedule import Schedule, Turn
from vllm_dspark.runner.step import Runner


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """What ``bench steps`` measures.

    Attributes:
        draft: None measures the target alone.
        requests, contexts: sizes of the steps.
        drafts: numbers of drafts per request to verify; empty is 1, half of K, and K.
        prefills: prompt lengths.
    """

    model: Path
    draft: Path | None = None
    dtype: str = "float32"
    requests: tuple[int, ...] = (1, 4, 8)
    contexts: tuple[int, ...] = (128, 1024)
    drafts: tuple[int, ...] = ()
    prefills: tuple[int, ...] = (128, 512)
    repeats: int = 10
    with_mlx_lm: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """One decode step with drafts to verify, in parts; milliseconds, medians.

    Attributes:
        drafts: drafts verified per request; the block always has the trained width.
        rows: token rows that the target computes.
        target_ms: a target-only step of the same requests.
        verify_ms: a target-only step with these rows.
        absorb_ms, block_ms, markov_ms: the draft's parts, each alone.
        total_ms: the whole step as served; total_low_ms, total_high_ms its extremes.
        floor_ms, target_floor_ms: bytes that must be read over the measured bandwidth.
        break_even: tokens per step at which drafting is as fast as target-only.
        floor_break_even: the same if both steps ran at their floors.
    """

    requests: int
    drafts: int
    context: int
    rows: int
    target_ms: float
    verify_ms: float
    absorb_ms: float
    block_ms: float
    markov_ms: float
    total_ms: float
    total_low_ms: float
    total_high_ms: float
    floor_ms: float
    target_floor_ms: float

    @property
    def break_even(self) -> float:
        return self.total_ms / self.target_ms

    @property
    def floor_break_even(self) -> float:
        return self.floor_ms / self.target_floor_ms

    def to_json(self) -> dict[str, float]:
        found = {**asdict(self), "break_even": self.break_even}
        found["floor_break_even"] = self.floor_break_even
        return {name: round(value, 3) for name, value in found.items()}


def measure_steps(settings: StepSettings) -> dict[str, Any]:
    """Measure everything; returns the body of the result."""
    draft = None if settings.draft is None else DraftSettings(folder=settings.draft)
    pair = load(settings.model, settings.dtype, draft)
    alone = Loaded(pair.config, pair.target, pair.dtype)
    floor = Floor.of(pair, measure_bandwidth())
    found: dict[str, Any] = {
        "bandwidth_gb_s": round(floor.bandwidth / 1e9, 1),
        "target_bytes": floor.target,
        "draft_bytes": floor.draft,
        "targets": list(_target_rows(alone, floor, settings)),
        "prefills": list(_prefill_rows(pair, alone, settings)),
    }
    if isinstance(pair.draft, LoadedDraft):
        found["steps"] = [one.to_json() for one in _step_rows(pair, alone, floor, settings)]
    if settings.with_mlx_lm:
        found["mlx_lm"] = compare_with_mlx_lm(alone, settings)
    return found


def _max_length(context: int, settings: StepSettings, num_rows: int = 1) -> int:
    """Tokens a request can grow to while its steps are timed."""
    return context + (settings.repeats + 8) * num_rows + BLOCK_SIZE


def _time_steps(
    loaded: Loaded, num_requests: int, context: int, num_drafts: int, settings: StepSettings
) -> Spread:
    length = _max_length(context, settings, num_drafts + 1)
    runner = make_runner(loaded, num_requests, length)
    vocab = loaded.config.vocab_size
    with requests_at(runner, num_requests, context, vocab_size=vocab, max_length=length) as scene:
        return time_ms(lambda: scene.step(num_drafts), repeats=settings.repeats)


def _target_rows(alone: Loaded, floor: Floor, settings: StepSettings) -> Iterator[dict[str, float]]:
    """Target-only decode steps."""
    for num_requests in settings.requests:
        for context in settings.contexts:
            spread = _time_steps(alone, num_requests, context, 0, settings)
            least = floor.ms(alone, num_requests * context, drafts=False)
            yield {
                "requests": num_requests,
                "context": context,
                "ms": round(spread.median, 3),
                "low_ms": round(spread.low, 3),
                "high_ms": round(spread.high, 3),
                "floor_ms": round(least, 3),
                "tokens_per_s": round(num_requests / spread.median * 1e3, 2),
            }


def _prefill_rows(
    pair: Loaded, alone: Loaded, settings: StepSettings
) -> Iterator[dict[str, float]]:
    """Prompts in one chunk, without and with the draft."""
    for length in settings.prefills:
        row: dict[str, float] = {"rows": length}
        for name, loaded in (("target_ms", alone), ("total_ms", pair)):
            if loaded is pair and pair.draft is None:
                continue
            runner = make_runner(loaded, 1, length + BLOCK_SIZE)
            spread = time_ms(
                lambda one=runner, size=length: prefill(one, random_ids(size, 1000)),
                repeats=max(3, settings.repeats // 3),
                warmups=1,
            )
            row[name] = round(spread.median, 3)
        yield row


def prefill(runner: Runner, prompt: Sequence[int], num_requests: int = 1) -> list[int]:
    """Compute prompts in one chunk each, forget them, and return the first tokens."""
    admitted = admissions([prompt] * num_requests, 0, len(prompt) + BLOCK_SIZE)
    turns = tuple(Turn(one.request_id, len(prompt)) for one in admitted)
    result = run(runner, Schedule(admissions=admitted, turns=turns))
    run(runner, Schedule(forgotten=frozenset(one.request_id for one in admitted)))
    return [outcome.token_ids[0] for outcome in result.outcomes.values()]


def _step_rows(
    pair: Loaded, alone: Loaded, floor: Floor, settings: StepSettings
) -> Iterator[StepTiming]:
    """Decode steps with drafts, in parts."""
    assert isinstance(pair.draft, LoadedDraft)
    most = pair.draft.num_drafts
    counts = settings.drafts or tuple(sorted({1, (most + 1) // 2, most}))
    for num_requests in settings.requests:
        for context in settings.contexts:
            parts = DraftParts(pair, num_requests, context)
            for count in counts:
                yield _time_step(pair, alone, floor, parts, count, settings)


def _time_step(  # noqa: PLR0913 - private, all of one row
    pair: Loaded,
    alone: Loaded,
    floor: Floor,
    parts: "DraftParts",
    count: int,
    settings: StepSettings,
) -> StepTiming:
    """Time the parts in turns, so that their sum can be compared with the whole."""
    num_requests, context = parts.num_requests, parts.context
    length = _max_length(context, settings, count + 1)
    options = {"vocab_size": pair.config.vocab_size, "max_length": length}
    with (
        requests_at(
            make_runner(alone, num_requests, length), num_requests, context, **options
        ) as target,
        requests_at(
            make_runner(alone, num_requests, length), num_requests, context, **options
        ) as verify,
        requests_at(
            make_runner(pair, num_requests, length), num_requests, context, **options
        ) as whole,
    ):
        times = interleave_ms(
            [
                target.step,
                lambda: verify.step(count),
                parts.absorber(count + 1),
                parts.block,
                parts.markov,
                lambda: whole.step(count),
            ],
            repeats=settings.repeats,
        )
    return StepTiming(
        requests=num_requests,
        drafts=count,
        context=context,
        rows=num_requests * (count + 1),
        target_ms=times[0].median,
        verify_ms=times[1].median,
        absorb_ms=times[2].median,
        block_ms=times[3].median,
        markov_ms=times[4].median,
        total_ms=times[5].median,
        total_low_ms=times[5].low,
        total_high_ms=times[5].high,
        floor_ms=floor.ms(pair, num_requests * context, drafts=True),
        target_floor_ms=floor.ms(alone, num_requests * context, drafts=False),
    )


class DraftParts:
    """The draft's parts, each callable alone, for R requests at one context length."""

    def __init__(self, pair: Loaded, num_requests: int, context: int) -> None:
        assert isinstance(pair.draft, LoadedDraft)
        self.num_requests = num_requests
        self.context = context
        self._pair = pair
        self._draft = pair.draft
        self._config = pair.draft.drafter.config
        self._slots = self._config.slots_for(pair.draft.num_drafts)
        length = context + BLOCK_SIZE
        self._tables = [np.asarray(one, np.int32) for one in tables(num_requests, length)]
        self._pool = KVPool(
            pair.draft.attention,
            num_blocks=num_requests * len(self._tables[0]) + 1,
            block_size=BLOCK_SIZE,
            dtype=pair.dtype,
        )
        self._anchors = mx.array(random_ids(num_requests, 1000), mx.int32)
        self._positions = mx.full((num_requests,), context, mx.int32)
        self._hidden = mx.random.normal((num_requests, self._slots, self._hidden_size))
        mx.eval(self._pool.arrays, self._hidden, self._anchors, self._positions)

    @property
    def _hidden_size(self) -> int:
        return self._pair.config.hidden_size

    def block(self) -> None:
        """The backbone over one block per request."""
        layout = make_context_layout(self._tables, [self.context] * len(self._tables), BLOCK_SIZE)
        attend = BlockAttend(
            self._pool,
            layout,
            make_mix(default_mix_name()),
            lengths=self._positions,
            layers=[(view.window, view.is_causal) for view in self._config.layers],
            num_slots=self._slots,
        )
        mx.eval(
            self._draft.drafter.block(
                self._pair.target.embed,
                self._anchors,
                self._positions,
                attend,
                num_slots=self._slots,
            )
        )

    def markov(self) -> None:
        """Head, Markov walk and confidence of a block."""
        draft = self._draft.drafter.propose(
            self._hidden.astype(self._pair.dtype),
            self._anchors,
            self._pair.target.unembed,
            num_drafts=self._draft.num_drafts,
            top_k=self._draft.top_k,
        )
        mx.eval([one for one in (draft.tokens, draft.confidence_logits) if one is not None])

    def absorber(self, rows: int) -> Callable[[], None]:
        """Projection of the taps of ``rows`` rows per request to keys and values."""
        count = rows * self.num_requests
        taps = [
            mx.random.normal((count, self._hidden_size)).astype(self._pair.dtype)
            for _ in self._config.tap_states
        ]
        positions = mx.arange(count, dtype=mx.int32)
        mx.eval(taps, positions)
        drafter = self._draft.drafter
        return lambda: mx.eval(drafter.context_kv(drafter.fuse(taps), positions))


def compare_with_mlx_lm(alone: Loaded, settings: StepSettings) -> dict[str, Any]:
    """Plain mlx_lm beside us: decode of one client, eight of ours, prompts; interleaved."""
    from vllm_dspark.bench.plain_mlx_lm import PlainModel

    plain = PlainModel(settings.model)
    prompt, tokens, rounds = random_ids(128, 1000), 24, max(3, settings.repeats // 3)
    prompts = {rows: random_ids(rows, 1000) for rows in settings.prefills}
    longest = max([len(prompt) + tokens + BLOCK_SIZE, *settings.prefills]) + BLOCK_SIZE
    runner = make_runner(alone, 8, longest)
    ours, theirs, eight = [], [], []
    reads: dict[int, tuple[list[float], list[float]]] = {rows: ([], []) for rows in prompts}
    for _ in range(rounds + 1):
        ours.append(_decode_rate(runner, alone, prompt, tokens, 1, longest))
        theirs.append(plain.decode_rate(prompt, tokens))
        eight.append(_decode_rate(runner, alone, prompt, tokens, 8, longest))
        for rows, ids in prompts.items():
            reads[rows][0].append(rows / once_ms(lambda one=ids: prefill(runner, one)) * 1e3)
            reads[rows][1].append(plain.prefill_rate(ids))
    found = {
        "decode_tokens_per_s": Spread.of(ours[1:]).to_json(),
        "mlx_lm_decode_tokens_per_s": Spread.of(theirs[1:]).to_json(),
        "decode_ratio": Ratio.of(ours[1:], theirs[1:]).to_json(),
        "eight_tokens_per_s": Spread.of(eight[1:]).to_json(),
        "eight_over_one": Ratio.of(eight[1:], ours[1:]).to_json(),
        "prefill": [],
    }
    for rows, (left, right) in reads.items():
        found["prefill"].append(
            {
                "rows": rows,
                "tokens_per_s": Spread.of(left[1:]).to_json(),
                "mlx_lm_tokens_per_s": Spread.of(right[1:]).to_json(),
                "ratio": Ratio.of(left[1:], right[1:]).to_json(),
            }
        )
    return found


def _decode_rate(  # noqa: PLR0913 - private, all of one measurement
    runner: Runner,
    alone: Loaded,
    prompt: Sequence[int],
    tokens: int,
    num_requests: int,
    max_length: int,
) -> float:
    """Tokens per second of all requests together."""
    vocab = alone.config.vocab_size
    with requests_at(
        runner, num_requests, len(prompt), vocab_size=vocab, max_length=max_length
    ) as scene:
        took = once_ms(lambda: [scene.step() for _ in range(tokens)])
    return num_requests * tokens / took * 1e3
