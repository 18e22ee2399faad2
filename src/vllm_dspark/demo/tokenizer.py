"""A GGUF's vocabulary as Hugging Face tokenizer files.

Only the ``gpt2`` model with the ``smollm`` pre-tokenizer is known: every digit alone,
then the byte-level split of GPT-2.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from vllm_dspark.errors import CheckpointError

CONTROL_TOKEN = 3  # GGUF's number for a token that text never produces


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a GGUF says about its tokenizer.

    Attributes:
        tokens: text of each token, in GPT-2's byte alphabet; the index is the id.
        merges: pairs in order of rank.
        special_ids: control tokens, ascending.
        unknown_id: id used for what has no token.
        bos_id: first token of a text; never added by itself.
        eos_id: token that ends an answer.
        pad_id: token that fills a batch.
        chat_template: Jinja source.
        max_length: positions the model was trained for.
    """

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]
    special_ids: tuple[int, ...]
    unknown_id: int
    bos_id: int
    eos_id: int
    pad_id: int
    chat_template: str
    max_length: int


def read_vocabulary(fields: Mapping[str, Any]) -> Vocabulary:
    """Read the tokenizer's part of a GGUF's fields.

    Args:
        fields: name to value, as ``gguf`` reads them.

    Raises:
        CheckpointError: another kind of tokenizer.
    """
    kind = (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"])
    if kind != ("gpt2", "smollm"):
        raise CheckpointError(f"the GGUF's tokenizer is {kind}, can only read ('gpt2', 'smollm')")
    types = fields["tokenizer.ggml.token_type"]
    pairs = (merge.split(" ") for merge in fields["tokenizer.ggml.merges"])
    return Vocabulary(
        tokens=tuple(fields["tokenizer.ggml.tokens"]),
        merges=tuple((left, right) for left, right in pairs),
        special_ids=tuple(i for i, kind in enumerate(types) if kind == CONTROL_TOKEN),
        unknown_id=fields["tokenizer.ggml.unknown_token_id"],
        bos_id=fields["tokenizer.ggml.bos_token_id"],
        eos_id=fields["tokenizer.ggml.eos_token_id"],
        pad_id=fields["tokenizer.ggml.padding_token_id"],
        chat_template=fields["tokenizer.chat_template"],
        max_length=fields["llama.context_length"],
    )


def build_tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    """Build the tokenizer that turns text into the GGUF's token ids."""
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=list(vocabulary.merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(vocabulary.tokens[i], special=True, normalized=False)
            for i in vocabulary.special_ids
        ]
    )
    return tokenizer


def write_tokenizer(vocabulary: Vocabulary, directory: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``."""
    build_tokenizer(vocabulary).save(str(directory / "tokenizer.json"))
    text = vocabulary.tokens
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "bos_token": text[vocabulary.bos_id],
        "eos_token": text[vocabulary.eos_id],
        "pad_token": text[vocabulary.pad_id],
        "unk_token": text[vocabulary.unknown_id],
        "clean_up_tokenization_spaces": False,
        "model_max_length": vocabulary.max_length,
        "chat_template": vocabulary.chat_template,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
