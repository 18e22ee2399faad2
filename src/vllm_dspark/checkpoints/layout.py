"""Names and shapes of a draft's tensors; the same in every format."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vllm_dspark.checkpoints.shards import StoredTensor
from vllm_dspark.drafter.config import DraftConfig
from vllm_dspark.errors import CheckpointError

MAX_NAMED = 8  # problems listed in one message


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """One linear layer or table of a checkpoint.

    Attributes:
        rows, columns: [out, in] of a layer, [ids, size] of a table.
        has_bias: a vector of ``rows`` numbers is stored with it.
        is_optional: the checkpoint may leave it out, the target's is used then.
        is_backbone: converted by quantisation at load.
    """

    rows: int
    columns: int
    has_bias: bool = False
    is_optional: bool = False
    is_backbone: bool = False


def matrices(config: DraftConfig) -> dict[str, MatrixShape]:
    """Every matrix of a draft, by its prefix (without ``.weight``)."""
    c = config
    hidden, inner, rank = c.hidden_size, c.intermediate_size, c.markov_rank
    shapes = {
        "fc": MatrixShape(hidden, len(c.tap_states) * c.target_hidden_size),
        "embed_tokens": MatrixShape(c.vocab_size, hidden, is_optional=True),
        "lm_head": MatrixShape(
            c.draft_vocab_size, hidden, is_optional=not c.is_reduced_vocab, is_backbone=True
        ),
    }
    q_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    for index in range(c.num_layers):
        for name, rows, columns in (
            ("self_attn.q_proj", q_size, hidden),
            ("self_attn.k_proj", kv_size, hidden),
            ("self_attn.v_proj", kv_size, hidden),
            ("self_attn.o_proj", hidden, q_size),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            has_bias = c.attention_bias and name.startswith("self_attn")
            shapes[f"layers.{index}.{name}"] = MatrixShape(
                rows, columns, has_bias, is_backbone=True
            )
    if c.markov_kind != "none":
        shapes["markov_head.markov_w1"] = MatrixShape(c.vocab_size, rank)
        shapes["markov_head.markov_w2"] = MatrixShape(c.draft_vocab_size, rank)
    if c.markov_kind == "gated":
        shapes["markov_head.gate_proj"] = MatrixShape(rank, hidden + rank, has_bias=True)
    if c.markov_kind == "rnn":
        shapes["markov_head.joint_proj"] = MatrixShape(3 * rank, 2 * rank + hidden, has_bias=True)
    if c.confidence_kind != "none":
        columns = hidden + (rank if c.confidence_kind == "hidden+markov" else 0)
        shapes["confidence_head.proj"] = MatrixShape(1, columns, has_bias=True)
    return shapes


def norms(config: DraftConfig) -> dict[str, int]:
    """Length of every norm's weight, by its full name."""
    lengths = {"hidden_norm.weight": config.hidden_size, "norm.weight": config.hidden_size}
    for index in range(config.num_layers):
        prefix = f"layers.{index}"
        lengths[f"{prefix}.input_layernorm.weight"] = config.hidden_size
        lengths[f"{prefix}.post_attention_layernorm.weight"] = config.hidden_size
        lengths[f"{prefix}.self_attn.q_norm.weight"] = config.head_dim
        lengths[f"{prefix}.self_attn.k_norm.weight"] = config.head_dim
    return lengths


def check_stored(config: DraftConfig, stored: Mapping[str, StoredTensor]) -> None:
    """Compare what is stored with what the config asks for, before any tensor is read.

    Raises:
        CheckpointError: naming the tensors that are missing, extra or of another shape or type.
    """
    expected = dict(_expected(config, stored))
    problems = [f"{name} is missing" for name in sorted(set(expected) - set(stored))]
    extra = sorted(set(stored) - set(expected))
    problems += [f"{name} is not a part of this draft" for name in extra]
    for name in sorted(set(stored) & set(expected)):
        shape, kinds = expected[name]
        tensor = stored[name]
        if tensor.shape != shape:
            problems.append(f"{name} has shape {list(tensor.shape)}, expected {list(shape)}")
        elif tensor.dtype not in kinds:
            problems.append(f"{name} is stored as {tensor.dtype}, expected {' or '.join(kinds)}")
    if problems:
        more = len(problems) - MAX_NAMED
        listed = "; ".join(problems[:MAX_NAMED]) + (f"; and {more} more" if more > 0 else "")
        raise CheckpointError(
            f"the draft's tensors do not fit its config.json: {listed}; export or download it again"
        )


FLOATS = ("F32", "F16", "BF16")
Expectation = tuple[tuple[int, ...], tuple[str, ...]]


def _expected(
    config: DraftConfig, stored: Mapping[str, StoredTensor]
) -> Iterator[tuple[str, Expectation]]:
    """Name, shape and types of every tensor, given which optional ones are there."""
    for prefix, matrix in matrices(config).items():
        is_stored = f"{prefix}.weight" in stored or f"{prefix}.scales" in stored
        if matrix.is_optional and not is_stored and config.hidden_size == config.target_hidden_size:
            continue
        yield from _expected_matrix(config, prefix, matrix, f"{prefix}.scales" in stored)
    for name, length in norms(config).items():
        yield name, ((length,), FLOATS)
    if config.is_reduced_vocab or "d2t" in stored:
        yield "d2t", ((config.draft_vocab_size,), ("I64", "I32"))
    if "t2d" in stored:
        yield "t2d", ((config.vocab_size,), ("BOOL", "U8"))


def _expected_matrix(
    config: DraftConfig, prefix: str, matrix: MatrixShape, is_quantized: bool
) -> Iterator[tuple[str, Expectation]]:
    if matrix.has_bias:
        yield f"{prefix}.bias", ((matrix.rows,), FLOATS)
    form = config.quantization_of(prefix)
    if not is_quantized or form is None:
        yield f"{prefix}.weight", ((matrix.rows, matrix.columns), FLOATS)
        return
    groups = (matrix.rows, matrix.columns // form.group_size)
    yield f"{prefix}.weight", ((matrix.rows, matrix.columns * form.bits // 32), ("U32",))
    yield f"{prefix}.scales", (groups, FLOATS)
    yield f"{prefix}.biases", (groups, FLOATS)
