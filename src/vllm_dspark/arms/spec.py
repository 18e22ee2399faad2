"""What crosses the border between a comparison and the processes of its arms."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSpec:
    """One engine and its settings.

    Attributes:
        name: how reports call it.
        engine: "vllm" (this project), "mlx_lm" or "transformers".
        draft: folder of the block draft; "" serves the target alone.
        num_drafts: K; 0 is the trained number.
        synthetic: chance that the first 1..K drafts are all accepted; a draft that knows the
            answers then hits exactly these rates, at the cost of the real network.
        answers: file of recorded answers for ``synthetic``.
        options: further arguments of vLLM's LLM.
    """

    name: str
    engine: str
    model: str
    dtype: str = "float32"
    draft: str = ""
    num_drafts: int = 0
    is_async: bool = False
    prefix_cache: bool = True
    max_model_len: int = 2048
    max_num_seqs: int = 16
    kv_bytes: int = 1 << 29
    synthetic: tuple[float, ...] = ()
    answers: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "ArmSpec":
        return cls(**{**found, "synthetic": tuple(found["synthetic"])})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        temperature: 0 is greedy.
        seed: of its draws; None leaves that to the engine.
        schema: JSON schema of the answer, or "".
    """

    token_ids: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    ignore_eos: bool = True
    schema: str = ""

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Ask":
        return cls(**{**found, "token_ids": tuple(found["token_ids"])})


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back.

    Attributes:
        first_s, done_s: seconds from sending to the first token and to the last.
        num_cached: prompt tokens that a prefix hit provided.
    """

    token_ids: tuple[int, ...]
    first_s: float
    done_s: float
    num_cached: int = 0

    @property
    def per_token_s(self) -> float:
        """Seconds per token after the first, counted in tokens."""
        return (self.done_s - self.first_s) / max(len(self.token_ids) - 1, 1)


@dataclass(frozen=True, slots=True)
class Drafting:
    """Counts of drafting in one run.

    Attributes:
        rounds: requests times steps that verified drafts.
        accepted_at: drafts accepted per position.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_at: tuple[int, ...] = ()

    @property
    def length(self) -> float:
        """Tokens per round, the target's own included; 1 without drafts."""
        return 1.0 + (self.accepted / self.rounds if self.rounds else 0.0)

    @property
    def rates(self) -> list[float]:
        """Share of rounds that accepted drafts 1..n, per position."""
        return [round(count / max(self.rounds, 1), 4) for count in self.accepted_at]

    def since(self, before: "Drafting") -> "Drafting":
        """Counts after an earlier reading of the same ever-growing counters."""
        start = before.accepted_at or (0,) * len(self.accepted_at)
        return Drafting(
            self.rounds - before.rounds,
            self.drafted - before.drafted,
            self.accepted - before.accepted,
            tuple(int(one - two) for one, two in zip(self.accepted_at, start, strict=True)),
        )


@dataclass(frozen=True, slots=True)
class Run:
    """Answers of one run in the order of the requests.

    Attributes:
        seconds: from the first request to the last token.
        leaked_blocks: KV blocks that were free before and are not any more.
    """

    answers: tuple[Answer, ...]
    seconds: float
    drafting: Drafting = Drafting()
    leaked_blocks: int = 0

    @property
    def tokens(self) -> list[tuple[int, ...]]:
        return [answer.token_ids for answer in self.answers]

    @property
    def num_tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self.answers)

    @property
    def num_cached(self) -> int:
        return sum(answer.num_cached for answer in self.answers)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Run":
        answers = tuple(
            Answer(**{**one, "token_ids": tuple(one["token_ids"])}) for one in found["answers"]
        )
        drafting = found["drafting"]
        drafting = Drafting(**{**drafting, "accepted_at": tuple(drafting["accepted_at"])})
        return cls(answers, found["seconds"], drafting, found["leaked_blocks"])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Judgement:
    """How a model that computes the forced prefix sees two candidate tokens.

    Attributes:
        rank: of the token that came, 1 is the most likely.
        margin: logit of the most likely token less that of the token that came.
    """

    rank: int
    margin: float


def asks_for(
    prompts: Sequence[Sequence[int]], max_tokens: int, *, ignore_eos: bool = True
) -> list[Ask]:
    """Greedy requests for several prompts."""
    return [Ask(tuple(ids), max_tokens, ignore_eos=ignore_eos) for ids in prompts]
