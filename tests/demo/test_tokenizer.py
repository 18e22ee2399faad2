"""The written tokenizer is the GGUF's."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from vllm_dspark.demo.tokenizer import read_vocabulary
from vllm_dspark.errors import CheckpointError

# llama.cpp tells pre-tokenizers apart by the ids they give this text; see its converter.
PROBE_TEXT = (
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n🚀 (normal) 😶\u200d🌫️ (multiple emojis "
    "concatenated) ✅ 🦙🦙 3 33 333 3333 33333 333333 3333333 33333333 3.3 3..3 3...3 "
    "កាន់តែពិសេសអាច😁 ?我想在apple工作1314151天～ ------======= нещо на Български "
    "''''''```````\"\"\"\"......!!!!!!?????? I've been 'told he's there, 'RE you sure? "
    "'M not sure I'll make it, 'D you like some tea? We'Ve a'lL"
)
SMOLLM_HASH = "855059429035d75a914d1eda9f10a876752e281a054a7a3d421ef0533e5b6249"

TRICKY_TEXTS = [
    "",
    " ",
    "\n\n\t  \r\n x",
    "trailing spaces   ",
    "1234567890 3.14159 1e-5 0xFF 2024-11-29",
    "naïve café Ünïcödé ﬁ ﬀ Å",
    "漢字かな交じり文 한국어 العربية עברית हिन्दी",
    "👩\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 \u200b\ufeff",
    "def f(x: int) -> str:\n\treturn f'{x!r}'  # 100%\n",
    '{"a": [1, 2.5, null], "b": "\\u00e9"}',
    "it's IT'S we'll they've I'd I'm you're",
    "a" * 300,
    "\x00\x01\x7f",
    PROBE_TEXT,
]


@pytest.fixture(scope="module")
def tokenizer(demo_dir: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(demo_dir)


@pytest.fixture(scope="module")
def written(demo_dir: Path) -> dict[str, Any]:
    return json.loads((demo_dir / "tokenizer.json").read_text())


def test_the_vocabulary_is_the_ggufs(tokenizer, fields) -> None:
    tokens = fields["tokenizer.ggml.tokens"]
    assert tokenizer.convert_ids_to_tokens(list(range(len(tokens)))) == tokens
    assert len(tokenizer) == len(tokens)


def test_the_merges_are_the_ggufs_in_the_same_order(written, fields) -> None:
    merges = [" ".join(pair) for pair in written["model"]["merges"]]
    assert merges == fields["tokenizer.ggml.merges"]


def test_the_special_tokens_are_the_ggufs_control_tokens(written, fields) -> None:
    control = [i for i, kind in enumerate(fields["tokenizer.ggml.token_type"]) if kind == 3]
    assert [token["id"] for token in written["added_tokens"] if token["special"]] == control


@pytest.mark.parametrize("text", TRICKY_TEXTS)
def test_a_text_comes_back_unchanged(tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_llama_cpp_would_recognise_the_pre_tokenizer(tokenizer) -> None:
    ids = tokenizer.encode(PROBE_TEXT)
    assert hashlib.sha256(str(ids).encode()).hexdigest() == SMOLLM_HASH


def test_every_digit_is_a_token(tokenizer) -> None:
    assert tokenizer.tokenize("a 2024 x") == ["a", "Ġ", "2", "0", "2", "4", "Ġx"]


def test_a_special_token_in_the_text_is_one_id(tokenizer) -> None:
    assert tokenizer.encode("<|im_start|>user<|im_end|>") == [1, *tokenizer.encode("user"), 2]


def test_no_token_is_added_to_a_text(tokenizer) -> None:
    assert tokenizer.encode("The") == [tokenizer.convert_tokens_to_ids("The")]


def test_the_chat_template_is_the_ggufs(tokenizer, fields) -> None:
    assert tokenizer.chat_template == fields["tokenizer.chat_template"]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_an_answer_ends_at_im_end(tokenizer, demo_dir: Path) -> None:
    generation = json.loads((demo_dir / "generation_config.json").read_text())
    assert tokenizer.eos_token == "<|im_end|>"
    assert generation["eos_token_id"] == tokenizer.eos_token_id == 2


def test_another_pre_tokenizer_is_refused() -> None:
    with pytest.raises(CheckpointError, match="smollm"):
        read_vocabulary({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe"})
