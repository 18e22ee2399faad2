"""What a block drafter is: one frozen description for every checkpoint format.

Reading a particular format's ``config.json`` is left to ``checkpoints``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from vllm_dspark.errors import CheckpointError, SettingsError
from vllm_dspark.nn.rotary import Rotary, make_rotary
from vllm_dspark.types import AttentionShape

FORMATS = ("deepspec", "speculators", "dflash")
MARKOV_KINDS = ("none", "vanilla", "gated", "rnn")
CONFIDENCE_KINDS = ("none", "hidden", "hidden+markov")
QUANT_BITS = (2, 3, 4, 5, 6, 8)
QUANT_GROUPS = (32, 64, 128)


@dataclass(frozen=True, slots=True)
class LayerView:
    """What the slots of a block may see in one draft layer.

    Attributes:
        window: every slot sees the context positions [a - window, a - 1], a being the
            anchor's position; None means the whole context.
        is_causal: slot k sees slots 0..k of its block; otherwise it sees all of them.
    """

    window: int | None = None
    is_causal: bool = False

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise CheckpointError(
                f"the draft's sliding window is {self.window}, must be at least 1; "
                "use null for layers that see the whole context"
            )


@dataclass(frozen=True, slots=True)
class Quantization:
    """MLX's affine quantised form of a matrix.

    Attributes:
        group_size: input elements that share a scale; 32, 64 or 128.
        bits: per weight; 2, 3, 4, 5, 6 or 8.
    """

    group_size: int
    bits: int

    def __post_init__(self) -> None:
        if self.group_size not in QUANT_GROUPS or self.bits not in QUANT_BITS:
            raise CheckpointError(
                f"quantization is {self.bits} bits in groups of {self.group_size}; MLX has bits "
                f"{QUANT_BITS} and groups {QUANT_GROUPS}: convert the draft again"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """Everything that serving and training must know about a drafter, free of formats.

    Attributes:
        format: where it came from: ``deepspec``, ``speculators`` or ``dflash``.
        hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim,
            rms_norm_eps, attention_bias: the draft layers.
        target_hidden_size: features in one tapped state of the target.
        vocab_size: the target's token ids; W1 and the embedding have this many rows.
        draft_vocab_size: rows of the draft's head and of W2.
        rope_theta, rope_scaling: as in the target's config; positions are absolute.
        num_slots: trained width of a block, the anchor included.
        predicts_from_anchor: the K-slot layout; slot 0 predicts the token after the anchor.
            False means the fill-in layout: slot j >= 1 predicts its own position.
        mask_token_id: embedded in every slot after the anchor.
        tap_states: indices j of the target states h_j, h_0 being the embedding output and
            h_{j+1} the output of layer j; strictly increasing. With a target of N layers, N + 1
            is h_N after the final norm.
        markov_kind, markov_rank: the sequential head; rank 0 with kind ``none``.
        confidence_kind: ``none``, ``hidden`` or ``hidden+markov``.
        layers: one view per draft layer.
        top_k: the checkpoint's ``dspark_draft_topk``.
        confidence_temperatures: calibration, one per draft, that divides the confidence logits
            before a planner reads them; empty without calibration.
        max_position_embeddings: positions that the draft was made for.
        num_target_layers: the target's depth, where the checkpoint says it.
        quantization: of a draft that is stored quantised.
        quantization_overrides: per tensor prefix; None keeps that matrix dense.
    """

    format: str
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None = None
    num_slots: int
    predicts_from_anchor: bool
    mask_token_id: int
    tap_states: tuple[int, ...]
    markov_kind: str
    markov_rank: int
    confidence_kind: str
    layers: tuple[LayerView, ...]
    attention_bias: bool = False
    top_k: int | None = None
    confidence_temperatures: tuple[float, ...] = ()
    max_position_embeddings: int
    num_target_layers: int | None = None
    quantization: Quantization | None = None
    quantization_overrides: Mapping[str, Quantization | None] | None = None

    def __post_init__(self) -> None:
        broken = list(_broken_rules(self))
        if broken:
            raise CheckpointError("the draft's config cannot be used: " + "; ".join(broken))
        self.make_rotary()

    @property
    def num_drafts(self) -> int:
        """Drafts of a full-width block."""
        return self.num_slots if self.predicts_from_anchor else self.num_slots - 1

    @property
    def first_draft_slot(self) -> int:
        """The slot whose row gives the first draft."""
        return 0 if self.predicts_from_anchor else 1

    @property
    def attention(self) -> AttentionShape:
        """What a KV cache must know about the draft layers."""
        return AttentionShape(self.num_layers, self.num_heads, self.num_kv_heads, self.head_dim)

    @property
    def num_draft_logits(self) -> int:
        """Ids the head may pick from; rows that pad a head past the target's ids are cut."""
        return min(self.draft_vocab_size, self.vocab_size)

    @property
    def is_reduced_vocab(self) -> bool:
        return self.draft_vocab_size < self.vocab_size

    @property
    def is_causal(self) -> bool:
        """Whether a narrower block gives the same first slots."""
        return all(view.is_causal for view in self.layers)

    def slots_for(self, num_drafts: int) -> int:
        """How many slots a block must run to give ``num_drafts`` drafts exactly.

        Raises:
            SettingsError: unless 1 <= num_drafts <= self.num_drafts.
        """
        if not 1 <= num_drafts <= self.num_drafts:
            raise SettingsError(
                f"{num_drafts} drafts were asked for; this draft was trained for 1 to "
                f"{self.num_drafts}: set num_speculative_tokens in that range"
            )
        return num_drafts + self.first_draft_slot if self.is_causal else self.num_slots

    def make_rotary(self) -> Rotary:
        """Build the rotary embedding of the draft's heads.

        Raises:
            CheckpointError: the scaling is unknown or lacks a number.
        """
        try:
            return make_rotary(self.head_dim, self.rope_theta, self.rope_scaling)
        except (KeyError, TypeError, ZeroDivisionError) as error:
            raise CheckpointError(
                f"the draft's rope scaling {dict(self.rope_scaling or {})} is incomplete "
                f"({error!r}); give all of its numbers or remove it"
            ) from error

    def quantization_of(self, prefix: str) -> Quantization | None:
        """How the matrix ``prefix`` is stored in the checkpoint; None is dense."""
        overrides = self.quantization_overrides or {}
        return overrides.get(prefix, self.quantization)


def _broken_rules(config: DraftConfig) -> Iterator[str]:
    """Yield one clause for every rule that the config breaks."""
    yield from _broken_sizes(config)
    yield from _broken_choices(config)
    c = config
    if c.num_heads % max(c.num_kv_heads, 1):
        yield f"{c.num_heads} heads cannot share {c.num_kv_heads} key/value heads evenly"
    if c.head_dim % 2:
        yield f"head_dim is {c.head_dim}, must be even for the rotary embedding"
    if len(c.layers) != c.num_layers:
        yield f"{len(c.layers)} layer types are given for {c.num_layers} layers"
    if not 0 <= c.mask_token_id < c.vocab_size:
        yield f"mask_token_id is {c.mask_token_id}, must be a token id below {c.vocab_size}"
    taps = c.tap_states
    if not taps or any(a >= b for a, b in zip(taps, taps[1:], strict=False)) or taps[0] < 0:
        yield f"the tapped states {list(taps)} must be at least one and strictly increasing from 0"
    elif c.num_target_layers is not None and taps[-1] > c.num_target_layers + 1:
        yield f"tapped state {taps[-1]} lies past the target's {c.num_target_layers} layers"
    if not c.predicts_from_anchor and c.num_slots < 2:
        yield f"block_size is {c.num_slots}, a fill-in block needs at least 2"


def _broken_sizes(config: DraftConfig) -> Iterator[str]:
    names = (
        "hidden_size", "target_hidden_size", "intermediate_size", "num_layers", "num_heads",
        "num_kv_heads", "head_dim", "vocab_size", "draft_vocab_size", "num_slots",
        "max_position_embeddings", "rms_norm_eps", "rope_theta",
    )  # fmt: skip
    for name in names:
        value = getattr(config, name)
        if not 0 < value < float("inf"):
            yield f"{name} is {value}, must be above 0"


def _broken_choices(config: DraftConfig) -> Iterator[str]:
    c = config
    for name, value, known in (
        ("format", c.format, FORMATS),
        ("markov_head_type", c.markov_kind, MARKOV_KINDS),
        ("confidence head", c.confidence_kind, CONFIDENCE_KINDS),
    ):
        if value not in known:
            yield f"{name} is {value!r}, must be one of {list(known)}"
    if (c.markov_kind == "none") != (c.markov_rank == 0) or c.markov_rank < 0:
        yield f"markov_rank is {c.markov_rank} with a Markov head of kind {c.markov_kind!r}"
    if c.confidence_kind == "hidden+markov" and c.markov_rank == 0:
        yield "the confidence head reads a Markov embedding, but markov_rank is 0"
    heats = c.confidence_temperatures
    if heats and (len(heats) != c.num_drafts or not all(0 < heat < 1e3 for heat in heats)):
        yield f"confidence_temperatures is {list(heats)}, must be {c.num_drafts} numbers above 0"
    if c.top_k is not None and not 1 <= c.top_k <= max(c.num_draft_logits, 1):
        yield f"dspark_draft_topk is {c.top_k}, must be 1..{c.num_draft_logits}"


def resolve_top_k(explicit: object, checkpoint: int | None, draft_vocab_size: int) -> int | None:
    """Decide how many candidates of each slot the Markov head may choose among.

    Args:
        explicit: the user's value, which wins; None when not given.
        checkpoint: the draft's own ``dspark_draft_topk``, or None.
        draft_vocab_size: ids the draft's head has.

    Returns:
        The count, or None for the dense head (also when it equals the vocabulary).

    Raises:
        SettingsError: not an integer (booleans are not), or outside 1..draft_vocab_size.
    """
    value = checkpoint if explicit is None else explicit
    if value is None:
        return None
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise SettingsError(
            f"dspark_draft_topk is {value!r}, must be an integer; "
            f"give a number from 1 to {draft_vocab_size} or leave it out"
        )
    if not 1 <= value <= draft_vocab_size:
        raise SettingsError(
            f"dspark_draft_topk is {value}, must be 1..{draft_vocab_size}, the draft's "
            "vocabulary; give a number in that range or leave it out"
        )
    return None if value == draft_vocab_size else int(value)
