"""What a training run is told; every rule is checked when a setting is made.

No arrays here: the command line reads these classes before MLX is loaded.
"""

from dataclasses import dataclass

from vllm_dspark.errors import SettingsError

MUON_RATE, ADAMW_RATE = 4e-3, 6e-4
OPTIMISERS = ("muon", "adamw")


def require(is_kept: bool, sentence: str) -> None:
    """Raise SettingsError with a sentence unless a rule is kept."""
    if not is_kept:
        raise SettingsError(sentence)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftShape:
    """The draft to make; the defaults are those of DeepSpec's released drafts.

    Attributes:
        num_layers: draft layers, each shaped like one of the target's.
        taps: target layers whose outputs are read, ascending; empty means five, evenly spread.
        block_size: slots of a block, which is also the most drafts of a round.
        markov_kind: ``vanilla``, ``gated``, ``rnn`` or ``none``.
        markov_rank: columns of the Markov tables; not used with ``none``.
        has_confidence: whether the draft predicts its own acceptance.
        mask_token_id: token embedded in the slots after the anchor; one that never occurs.
    """

    num_layers: int = 5
    taps: tuple[int, ...] = ()
    block_size: int = 7
    markov_kind: str = "vanilla"
    markov_rank: int = 256
    has_confidence: bool = True
    mask_token_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """How rows are written by the target.

    Attributes:
        num_shards: files to make.
        rows_per_shard: streams generated side by side, which become one file.
        row_length: tokens of a stream.
        greedy_share: share of the rows whose answers are greedy.
        temperature: of the other rows' answers.
        own_share: share of the rows that start from our own templates rather than from the
            prompts file.
        min_answer, max_answer: an answer is cut at a length drawn between these, per row.
        max_question: a question that the target writes is cut at this length.
        loop_length: tokens of a repetition after which no more blocks start in it; 0 keeps all.
        seed: of prompts and sampling.
    """

    num_shards: int = 8
    rows_per_shard: int = 64
    row_length: int = 512
    greedy_share: float = 0.5
    temperature: float = 0.7
    own_share: float = 1.0
    min_answer: int = 96
    max_answer: int = 384
    max_question: int = 96
    loop_length: int = 32
    seed: int = 42

    def __post_init__(self) -> None:
        for name in ("num_shards", "rows_per_shard", "min_answer", "max_question"):
            value = getattr(self, name)
            require(value >= 1, f"{name} is {value}, must be at least 1")
        require(self.row_length >= 16, f"row_length is {self.row_length}, must be at least 16")
        for name in ("greedy_share", "own_share"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"{name} is {value}, must be from 0 to 1")
        require(
            self.temperature > 0,
            f"temperature is {self.temperature}, must be above 0; greedy_share sets greedy rows",
        )
        require(
            self.max_answer >= self.min_answer,
            f"max_answer is {self.max_answer}, must be at least min_answer ({self.min_answer})",
        )
        require(self.loop_length >= 0, f"loop_length is {self.loop_length}, must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossWeights:
    """Weights of the three terms, and how fast later slots count less."""

    cross_entropy: float = 0.1
    l1: float = 0.9
    confidence: float = 1.0
    decay_slots: float = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """How a draft is fitted.

    Attributes:
        num_steps: of the whole run; the learning rate reaches zero there.
        batch_rows: rows of a step.
        num_anchors: blocks per row, drawn anew each time.
        optimiser: ``muon`` (matrices of the backbone; AdamW for the rest) or ``adamw``.
        learning_rate: peak; None is 4e-3 for muon and 6e-4 for adamw.
        warmup_share: share of the steps with a rising rate.
        max_norm: of the gradient.
        loss_rows: slots whose logits are in memory at once.
        held_out_rows: rows of the first shard kept for evaluation.
        evaluate_every, save_every, log_every: in steps.
        seed: of initial weights, row order and anchors.
    """

    num_steps: int = 2000
    batch_rows: int = 32
    num_anchors: int = 128
    optimiser: str = "muon"
    learning_rate: float | None = None
    warmup_share: float = 0.04
    max_norm: float = 1.0
    weight_decay: float = 0.0
    loss_rows: int = 4096
    held_out_rows: int = 32
    evaluate_every: int = 500
    save_every: int = 500
    log_every: int = 20
    seed: int = 42

    def __post_init__(self) -> None:
        require(
            self.optimiser in OPTIMISERS,
            f"optimiser is {self.optimiser!r}, must be one of {list(OPTIMISERS)}",
        )
        names = (
            "num_steps", "batch_rows", "num_anchors", "loss_rows", "held_out_rows",
            "evaluate_every", "save_every", "log_every",
        )  # fmt: skip
        for name in names:
            value = getattr(self, name)
            require(value >= 1, f"{name} is {value}, must be at least 1")
        require(
            0 <= self.warmup_share < 1, f"warmup_share is {self.warmup_share}, must be from 0 to 1"
        )
        require(
            self.learning_rate is None or self.learning_rate > 0,
            f"learning_rate is {self.learning_rate}, must be above 0",
        )

    @property
    def peak_rate(self) -> float:
        """The learning rate after warm-up."""
        if self.learning_rate is not None:
            return self.learning_rate
        return MUON_RATE if self.optimiser == "muon" else ADAMW_RATE
