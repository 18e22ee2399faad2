"""Let the target write conversations: B streams in lock-step, one token of each per step.

No padding, no ragged batch: every stream is at the same position. Where a turn ends, a script
(the fixed role headers, perhaps the opening words of the next question) is fed in instead of
what was sampled.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from vllm_dspark.errors import ShapeError
from vllm_dspark.training.device import compiled
from vllm_dspark.training.frozen import FrozenTarget

USER, ASSISTANT = 0, 1
MIN_P = 0.05  # questions are sampled at temperature 1 without tokens below this share of the best
MAX_TURNS = 32  # follow-up scripts drawn per stream; the last one repeats
AHEAD = 4  # steps that may be queued on the device


@dataclass(frozen=True, slots=True)
class Scripts:
    """Token sequences that are fed in, padded to one length.

    A script starts with the end-of-turn token; it is skipped where the model wrote one itself.

    Attributes:
        tokens: [F, L] int32; lengths: [F] int32.
        roles: [F] int32, whose turn it is after the script.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    roles: np.ndarray

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.lengths) == len(self.roles):
            raise ShapeError(
                f"{len(self.tokens)} scripts, {len(self.lengths)} lengths and "
                f"{len(self.roles)} roles; give one of each per script"
            )


def pack_scripts(scripts: list[tuple[list[int], int]]) -> Scripts:
    """Pad (tokens, role after them) pairs to one array."""
    lengths = [len(tokens) for tokens, _ in scripts]
    table = np.zeros((len(scripts), max([1, *lengths])), dtype=np.int32)
    for row, (tokens, _) in zip(table, scripts, strict=True):
        row[: len(tokens)] = tokens
    roles = [role for _, role in scripts]
    return Scripts(table, np.array(lengths, np.int32), np.array(roles, np.int32))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the streams of one shard do.

    Attributes:
        scripts: all scripts of the shard.
        first: [B] int32, script that each stream starts with (its first token is fed too).
        to_answer: script that follows a question.
        follow_ups: [B, M] int32, scripts that follow the first, second, ... answer.
        answer_temperature: [B] float32, 0 is greedy.
        max_lengths: [B, 2] int32, longest question and longest answer.
        end_id: token that ends a turn; -1 where there are no turns.
        row_length: tokens of a stream.
        seed: of the sampling.
    """

    scripts: Scripts
    first: np.ndarray
    to_answer: int
    follow_ups: np.ndarray
    answer_temperature: np.ndarray
    max_lengths: np.ndarray
    end_id: int
    row_length: int
    seed: int


@dataclass(frozen=True, slots=True)
class Streams:
    """Where every stream is; arrays [B].

    Attributes:
        script, offset: the script being fed, and how much of it has been.
        role: whose turn it is once the script is through.
        turn_length: tokens written in this turn.
        num_answers: answers finished.
    """

    script: mx.array
    offset: mx.array
    role: mx.array
    turn_length: mx.array
    num_answers: mx.array


State = tuple[mx.array, ...]
Advance = Callable[[mx.array, State, mx.array], tuple[mx.array, mx.array, State]]


def make_advance(plan: Plan) -> Advance:
    """Compile the step from logits to the next token of every stream.

    Returns:
        (logits [B, V], state, random key) -> (token [B] int32, is it an answer's [B] uint8,
        state); the state is the fields of :class:`Streams`.
    """
    table, lengths, roles = (
        mx.array(x) for x in (plan.scripts.tokens, plan.scripts.lengths, plan.scripts.roles)
    )
    follow_ups, limits = mx.array(plan.follow_ups), mx.array(plan.max_lengths)
    warmth = mx.array(plan.answer_temperature)
    rows = mx.arange(len(plan.first))

    def advance(logits: mx.array, state: State, key: mx.array) -> tuple[mx.array, mx.array, State]:
        now = Streams(*state)
        is_answer = now.role == ASSISTANT
        sampled = _sample(logits, is_answer, warmth, key)
        is_scripted = now.offset < lengths[now.script]
        scripted = table[now.script, mx.minimum(now.offset, table.shape[1] - 1)]
        token = mx.where(is_scripted, scripted, sampled)
        turn_length = mx.where(is_scripted, 0, now.turn_length + 1)
        has_ended = ~is_scripted & (token == plan.end_id)
        is_cut = ~is_scripted & (turn_length >= limits[rows, now.role]) & ~has_ended
        is_over = has_ended | is_cut
        turn = mx.minimum(now.num_answers, follow_ups.shape[1] - 1)
        following = mx.where(is_answer, follow_ups[rows, turn], plan.to_answer)
        script = mx.where(is_over, following, now.script)
        after = Streams(
            script=script,
            offset=mx.where(
                is_over, has_ended.astype(mx.int32), now.offset + is_scripted.astype(mx.int32)
            ),
            role=mx.where(is_over, roles[script], now.role),
            turn_length=mx.where(is_over, 0, turn_length),
            num_answers=now.num_answers + (is_over & is_answer).astype(mx.int32),
        )
        is_target = (is_answer & ~is_scripted).astype(mx.uint8)
        return token, is_target, _fields(after)

    return compiled(advance)


def _fields(streams: Streams) -> State:
    return (
        streams.script, streams.offset, streams.role, streams.turn_length, streams.num_answers
    )  # fmt: skip


def _sample(logits: mx.array, is_answer: mx.array, warmth: mx.array, key: mx.array) -> mx.array:
    """Draw tokens [B] int32: answers at their own temperature, questions at 1 with min-p."""
    logits = logits.astype(mx.float32)
    floor = logits.max(axis=-1, keepdims=True) + float(np.log(MIN_P))
    is_kept = is_answer[:, None] | (logits >= floor)
    scale = mx.where(is_answer, warmth, 1.0)[:, None]
    noise = mx.random.gumbel(logits.shape, key=key)
    return mx.where(is_kept, logits + scale * noise, -mx.inf).argmax(axis=-1).astype(mx.int32)


class DecodeAttend:
    """Attention of one new token per stream over the stream's earlier ones.

    Args:
        shape: (streams, kv heads, tokens, D) of each layer's keys and values.
    """

    def __init__(self, num_layers: int, shape: tuple[int, int, int, int], dtype: mx.Dtype) -> None:
        self._keys = [mx.zeros(shape, dtype=dtype) for _ in range(num_layers)]
        self._values = [mx.zeros(shape, dtype=dtype) for _ in range(num_layers)]
        self._scale = shape[-1] ** -0.5
        self.position = 0

    def __call__(self, layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        """As :data:`vllm_dspark.types.Attend`, with a row per stream."""
        at = self.position
        self._keys[layer][:, :, at] = k
        self._values[layer][:, :, at] = v
        keys, values = (x[layer][:, :, : at + 1] for x in (self._keys, self._values))
        mixed = mx.fast.scaled_dot_product_attention(q[:, :, None], keys, values, scale=self._scale)
        return mixed[:, :, 0]


def write_streams(
    target: FrozenTarget, plan: Plan, report: Callable[[int], None] = lambda position: None
) -> tuple[np.ndarray, np.ndarray]:
    """Generate one shard's streams.

    Args:
        report: called with the number of tokens per stream so far, now and then.

    Returns:
        Tokens [B, T] int32, and which were written as answers [B, T] uint8.
    """
    config, count = target.config, len(plan.first)
    attend = DecodeAttend(
        config.num_layers,
        (count, config.num_kv_heads, plan.row_length, config.head_dim),
        target.dtype,
    )
    advance = make_advance(plan)
    keys = mx.random.split(mx.random.key(plan.seed), plan.row_length)
    nothing = mx.zeros((count,), dtype=mx.int32)
    token = mx.array(plan.scripts.tokens[plan.first, 0])
    role = mx.array(plan.scripts.roles[plan.first])
    state: State = (mx.array(plan.first), nothing + 1, role, nothing, nothing)
    tokens, answered = [token], [mx.zeros((count,), dtype=mx.uint8)]
    for position in range(plan.row_length - 1):
        attend.position = position
        here = mx.full((count,), position, dtype=mx.int32)
        logits = target.network.unembed(target.network.forward(token, here, attend).hidden)
        token, is_target, state = advance(logits, state, keys[position])
        tokens.append(token)
        answered.append(is_target)
        mx.async_eval(token, is_target, *state)
        if position >= AHEAD:
            mx.eval(tokens[position - AHEAD])
        if position % 16 == 0:
            report(position + 1)
    return np.array(mx.stack(tokens, axis=1)), np.array(mx.stack(answered, axis=1))
