"""Draft weights to 4 or 8 bits at load: which matrices, and when it is refused."""

from vllm_dspark.checkpoints.layout import matrices
from vllm_dspark.drafter.config import DraftConfig, Quantization
from vllm_dspark.errors import SettingsError

CHOICES = {"q4": Quantization(group_size=64, bits=4), "q8": Quantization(group_size=64, bits=8)}


def resolve_quantization(config: DraftConfig, name: str | None) -> Quantization | None:
    """Turn the user's choice into a form; needs no weights.

    The backbone's linear layers and the draft's own head are converted. The fusion layer, norms,
    embeddings, Markov and confidence heads stay as stored.

    Args:
        name: ``q4``, ``q8`` or None.

    Raises:
        SettingsError: an unknown name, a draft that is already quantised, or inputs that do not
            divide into groups of 64.
    """
    if name is None:
        return None
    if name not in CHOICES:
        raise SettingsError(
            f"dspark_draft_quantization is {name!r}, must be one of {sorted(CHOICES)} or left out"
        )
    if config.quantization is not None:
        raise SettingsError(
            f"dspark_draft_quantization is {name!r}, but the draft is stored with "
            f"{config.quantization.bits} bits already; leave the option out"
        )
    form = CHOICES[name]
    for prefix, matrix in matrices(config).items():
        if matrix.is_backbone and matrix.columns % form.group_size:
            raise SettingsError(
                f"{prefix} has {matrix.columns} inputs, which do not divide into groups of "
                f"{form.group_size}; leave dspark_draft_quantization out for this draft"
            )
    return form
