"""Draft models and prompt lookup through the runner: the target's text, and the same drafts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from tiny_models import TARGET, write_llama

from vllm_dspark.checkpoints.target import load_target
from vllm_dspark.errors import CheckpointError
from vllm_dspark.runner.build import AnyDraftSettings, CausalSettings, build_runner, load
from vllm_dspark.runner.lookup_proposer import LookupProposer, ngram_drafts
from vllm_dspark.runner.schedule import Admission, Grammar, Outcome, Schedule, Turn
from vllm_dspark.runner.step import Runner
from vllm_dspark.sampling.params import Sampling

BLOCK_SIZE = 4
NUM_BLOCKS = 128
NUM_DRAFTS = 3
PROMPT = list(range(20, 51))


def make_runner(draft: AnyDraftSettings | None) -> Runner:
    loaded = load(TARGET, "float32", draft)
    return build_runner(loaded, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)


def causal(folder: Path, num_drafts: int = NUM_DRAFTS) -> CausalSettings:
    return CausalSettings(folder=folder, num_drafts=num_drafts)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"))


@dataclass
class Client:
    """One request of a runner, driven as the scheduler would.

    Attributes:
        drafts: what was proposed, by the number of tokens known then.
        accepted: drafts accepted in each verify step.
    """

    runner: Runner
    name: str
    token_ids: list[int]
    blocks: list[int]
    last: Outcome = Outcome()

    def __post_init__(self) -> None:
        self.token_ids = list(self.token_ids)
        self.num_prompt = len(self.token_ids)
        self.drafts: dict[int, tuple[int, ...]] = {}
        self.accepted: list[int] = []

    @property
    def output(self) -> list[int]:
        return self.token_ids[self.num_prompt :]

    def admit(self, num_computed: int = 0) -> Admission:
        return Admission(
            request_id=self.name,
            token_ids=list(self.token_ids),
            num_prompt=self.num_prompt,
            num_computed=num_computed,
            blocks=(self.blocks,),
            sampling=Sampling(temperature=0.0),
        )

    def turn(self) -> Turn:
        drafts = self.last.drafts
        return Turn(self.name, 1 + len(drafts), len(drafts), drafts)

    def take(self, outcome: Outcome) -> None:
        if outcome.num_verified:
            self.accepted.append(len(outcome.token_ids) - 1)
        self.token_ids.extend(outcome.token_ids)
        self.last = outcome
        if outcome.token_ids:
            self.drafts[len(self.token_ids)] = outcome.drafts


def run(runner: Runner, schedule: Schedule, clients: Sequence[Client]) -> None:
    runner.begin(schedule)
    outcomes = runner.finish(Grammar()).outcomes
    for client in clients:
        client.take(outcomes[client.name])


def prefill(client: Client, *, num_computed: int = 0, chunk: int = 1 << 20) -> None:
    """Compute all known tokens, ``chunk`` rows a step."""
    admissions: tuple[Admission, ...] = (client.admit(num_computed),)
    known = len(client.token_ids)
    for start in range(num_computed, known, chunk):
        rows = min(chunk, known - start)
        turns = (Turn(client.name, rows),)
        run(client.runner, Schedule(admissions=admissions, turns=turns), [client])
        admissions = ()


def decode(clients: Sequence[Client], num_tokens: int) -> None:
    """Run verify steps, all clients together, until each has num_tokens outputs."""
    while any(len(client.output) < num_tokens for client in clients):
        turns = tuple(client.turn() for client in clients)
        run(clients[0].runner, Schedule(turns=turns), clients)


def scattered(seed: int, count: int = 24) -> Iterator[list[int]]:
    """Disjoint block tables in no order."""
    order = [int(block) for block in np.random.default_rng(seed).permutation(NUM_BLOCKS - 1) + 1]
    for start in range(0, len(order) - count, count):
        yield order[start : start + count]


def alone(num_tokens: int = 32, prompt: Sequence[int] = PROMPT) -> list[int]:
    client = Client(make_runner(None), "a", list(prompt), list(range(1, 100)))
    prefill(client)
    decode([client], num_tokens)
    return client.output[:num_tokens]


def test_the_target_as_its_own_draft_model_is_always_right() -> None:
    runner = make_runner(causal(TARGET))
    clients = [
        Client(runner, str(index), PROMPT[: 9 + 7 * index], blocks)
        for index, blocks in enumerate(scattered(0, 24))
        if index < 3
    ]
    for client in clients:
        prefill(client)
    decode(clients, 32)
    for client in clients:
        assert client.output[:32] == alone(prompt=client.token_ids[: client.num_prompt])
        assert set(client.accepted) == {NUM_DRAFTS}


def test_a_lone_request_with_adjacent_blocks_is_drafted_from_a_view() -> None:
    client = Client(make_runner(causal(TARGET)), "a", PROMPT, list(range(1, 100)))
    prefill(client)
    decode([client], 32)
    assert client.output[:32] == alone()
    assert set(client.accepted) == {NUM_DRAFTS}


def test_a_draft_model_with_other_heads_does_not_change_the_text(llama: Path) -> None:
    client = Client(make_runner(causal(llama)), "a", PROMPT, next(scattered(1)))
    prefill(client)
    decode([client], 32)
    assert client.output[:32] == alone()
    assert 0 in client.accepted


def dense_attend(_: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    """Attention of one whole sequence without pages: q, k, v [N, heads, D]."""
    q, k, v = (one.swapaxes(0, 1)[None] for one in (q, k, v))
    scale = q.shape[-1] ** -0.5
    out = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal")
    return out[0].swapaxes(0, 1)


@pytest.fixture(scope="module")
def cold_drafts(llama: Path) -> dict[int, tuple[int, ...]]:
    """What the draft model says after each number of known tokens, without any cache."""
    _, model = load_target(llama, mx.float32)
    known = [*PROMPT, *alone(28)]
    drafts = {}
    for count in range(len(PROMPT) + 1, len(known) + 1):
        token_ids = known[:count]
        for _ in range(NUM_DRAFTS):
            rows = mx.array(token_ids, mx.int32)
            hidden = model.forward(rows, mx.arange(len(token_ids)), dense_attend).hidden
            token_ids.append(int(model.unembed(hidden[-1]).argmax().item()))
        drafts[count] = tuple(token_ids[count:])
    assert len(set(drafts.values())) > 5
    return drafts


def check_same(client: Client, cold_drafts: dict[int, tuple[int, ...]]) -> None:
    decode([client], 24)
    shared = client.drafts.keys() & cold_drafts.keys()
    assert len(shared) >= 8
    assert {key: client.drafts[key] for key in shared} == {key: cold_drafts[key] for key in shared}


@pytest.mark.parametrize("chunk", [1, 3, 16, 64])
def test_drafts_after_a_chunked_prefill_are_the_same(
    llama: Path, cold_drafts: dict[int, tuple[int, ...]], chunk: int
) -> None:
    client = Client(make_runner(causal(llama)), "a", PROMPT, next(scattered(2)))
    prefill(client, chunk=chunk)
    check_same(client, cold_drafts)


@pytest.mark.parametrize("num_shared", [1, 4, 7])
def test_drafts_after_a_prefix_hit_are_the_same(
    llama: Path, cold_drafts: dict[int, tuple[int, ...]], num_shared: int
) -> None:
    runner = make_runner(causal(llama))
    mine, others = list(scattered(3))[:2]
    first = Client(runner, "first", PROMPT, others)
    prefill(first, chunk=5)
    decode([first], 4)
    second = Client(runner, "second", PROMPT, others[:num_shared] + mine)
    prefill(second, num_computed=num_shared * BLOCK_SIZE)
    check_same(second, cold_drafts)


def test_drafts_after_preemption_are_the_same(
    llama: Path, cold_drafts: dict[int, tuple[int, ...]]
) -> None:
    runner = make_runner(causal(llama))
    before, after, noise = list(scattered(4))[:3]
    client = Client(runner, "a", PROMPT, before)
    prefill(client)
    decode([client], 7)
    other = Client(runner, "b", list(reversed(PROMPT)), noise)
    run(runner, Schedule(forgotten=frozenset(["a"])), [])
    prefill(other)
    client.blocks = after
    prefill(client, chunk=8)
    check_same(client, cold_drafts)


@pytest.mark.parametrize("blocks", [[9, 5, 7], [5, 6, 7]], ids=["scattered", "adjacent"])
def test_rows_without_a_block_are_written_to_the_null_block_only(
    llama: Path, blocks: list[int]
) -> None:
    runner = make_runner(causal(llama))
    pages = runner._proposer._pool
    client = Client(runner, "a", PROMPT[:12], blocks)  # the anchor has no slot
    before = [np.array(array) for array in pages.arrays]
    prefill(client)
    assert len(client.last.drafts) == NUM_DRAFTS
    owned = np.concatenate([np.arange(4) + 4 * block for block in (0, *blocks)])
    for array, old in zip(pages.arrays, before, strict=True):
        changed = np.flatnonzero(np.any(np.array(array) != old, axis=(0, 2)))
        assert set(changed) <= set(owned)
        assert set(changed) & set(range(4)) == {0, 1, 2}


def test_a_step_with_a_draft_model_waits_once(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(make_runner(causal(llama)), "a", PROMPT, list(range(1, 100)))
    prefill(client)
    calls, original = [], mx.eval
    monkeypatch.setattr(mx, "eval", lambda *args: (calls.append(1), original(*args)))
    decode([client], len(client.output) + 1)
    assert len(calls) == 1


def test_a_draft_model_with_another_vocabulary_is_refused_before_weights(tmp_path: Path) -> None:
    folder = write_llama(tmp_path, vocab_size=500)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="500 in the draft model and 512"):
        load(TARGET, "float32", causal(folder))


def test_lookup_drafts_repeated_text_and_does_not_change_it() -> None:
    prompt = PROMPT[:8] * 4
    expected = alone(prompt=prompt)
    repeated = prompt + expected + prompt
    lookup = LookupProposer(min_n=2, max_n=4, num_drafts=NUM_DRAFTS)
    client = Client(make_runner(lookup), "a", repeated, list(range(1, 100)))
    prefill(client)
    decode([client], 32)
    assert client.output[:32] == alone(prompt=repeated)
    assert sum(client.accepted) > 0
    assert len(client.accepted) < 32


def test_lookup_proposes_nothing_when_the_last_tokens_are_new() -> None:
    client = Client(make_runner(LookupProposer(2, 4, NUM_DRAFTS)), "a", PROMPT[:9], [1, 2, 3, 4])
    prefill(client)
    assert client.last.drafts == ()


def brute_force(ids: list[int], min_n: int, max_n: int, k: int) -> tuple[int, ...]:
    for n in range(max_n, min_n - 1, -1):
        for start in range(len(ids) - n):
            if ids[start : start + n] == ids[-n:]:
                return tuple(ids[start + n : start + n + k])
    return ()


@pytest.mark.parametrize("min_n, max_n", [(1, 1), (1, 3), (2, 5), (4, 4)])
def test_ngram_drafts_equal_a_search_by_hand(min_n: int, max_n: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        ids = [int(one) for one in rng.integers(0, 3, rng.integers(1, 14))]
        assert ngram_drafts(ids, min_n, max_n, 4) == brute_force(ids, min_n, max_n, 4)
