"""Answer one question twice, target alone and with drafts, side by side in the terminal.

Both answers are computed in this process, greedily, from the same weights; each column moves at its
own speed. The last lines give tokens per second, the acceptance of every round, and whether the two
texts are equal.
"""

import argparse
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_dspark.errors import SettingsError

if TYPE_CHECKING:
    from vllm_dspark.arms.race import Lane

MODEL = Path("models/SmolLM2-135M-Instruct")
DRAFT = Path("pairs/SmolLM2-135M-Instruct-DSpark")
QUESTION = "What is the capital of France, and what is it famous for?"
GAP = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("question", nargs="?", default=QUESTION, help="default: %(default)s")
    parser.add_argument("--model", type=Path, default=MODEL, help="default: %(default)s")
    parser.add_argument("--draft", type=Path, default=DRAFT, help="default: %(default)s")
    parser.add_argument("--max-tokens", type=int, default=128, help="default: %(default)s")
    parser.add_argument("--dtype", default="float32", help="compute type; default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Run the race; 1 if the two answers differ."""
    from vllm_dspark.blas import load_blas

    if args.max_tokens < 2:
        raise SettingsError(f"--max-tokens is {args.max_tokens}; ask for at least 2")
    for name, folder in (("model", args.model), ("draft", args.draft)):
        if not (folder / "config.json").is_file():
            raise SettingsError(
                f"--{name} {folder} has no config.json; run this in the project's folder after "
                "`make setup`, or name the folder"
            )
    load_blas()
    from vllm_dspark.arms.race import race
    from vllm_dspark.runner.build import DTYPES, DraftSettings, load

    if args.dtype not in DTYPES:
        raise SettingsError(f"--dtype is {args.dtype!r}; choose from {', '.join(DTYPES)}")
    tokenizer, prompt = _encode(args.model, args.question)
    loaded = load(args.model, args.dtype, DraftSettings(folder=args.draft))
    end_ids = frozenset({tokenizer.eos_token_id} - {None})
    screen = Screen(sys.stdout.isatty())
    print(f"> {args.question}\n")
    lanes: tuple[Lane, ...] = ()
    for lanes in race(loaded, prompt, max_tokens=args.max_tokens, end_ids=end_ids):
        screen.show([_column(lane, tokenizer) for lane in lanes])
    screen.finish()
    return _verdict(lanes)


def _encode(folder: Path, question: str) -> tuple[Any, list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer, list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _column(lane: "Lane", tokenizer: Any) -> tuple[str, str]:
    """Heading and text of one answer."""
    length = f", {lane.acceptance_length:.2f} tokens a round" if lane.accepted else ""
    heading = f"{lane.title}: {lane.tokens_per_s:.1f} tokens/s{length}"
    return heading, tokenizer.decode(lane.token_ids, skip_special_tokens=True)


def _verdict(lanes: "tuple[Lane, ...]") -> int:
    alone, drafted = lanes
    ratio = drafted.tokens_per_s / alone.tokens_per_s if alone.tokens_per_s else 0.0
    rounds = " ".join(str(count) for count in drafted.accepted)
    print(f"\naccepted per round: {rounds}")
    print(f"speed: {drafted.tokens_per_s:.1f} / {alone.tokens_per_s:.1f} tokens/s = {ratio:.2f}x")
    if drafted.token_ids == alone.token_ids:
        print(f"equal: all {len(alone.token_ids)} tokens are the same")
        return 0
    pairs = zip(drafted.token_ids, alone.token_ids, strict=False)
    first = next((index for index, (a, b) in enumerate(pairs) if a != b), "the end")
    print(f"NOT EQUAL: the answers part at token {first} (a near-tie of the target, or a bug)")
    return 1


class Screen:
    """Two columns of text, redrawn in place on a terminal and printed once elsewhere."""

    def __init__(self, is_terminal: bool) -> None:
        self._is_terminal = is_terminal
        self._num_lines = 0
        self._lines: list[str] = []

    def show(self, columns: list[tuple[str, str]]) -> None:
        """Draw headings and texts."""
        size = shutil.get_terminal_size()
        width = max((size.columns - GAP) // 2, 20)
        wrapped = [_wrap(heading, text, width) for heading, text in columns]
        height = max(map(len, wrapped))
        if self._is_terminal:
            height = min(height, size.lines - 2)
        self._lines = [
            (" " * GAP).join(
                (rows[index] if index < len(rows) else "").ljust(width) for rows in wrapped
            ).rstrip()
            for index in range(height)
        ]
        if self._is_terminal:
            self._draw()

    def finish(self) -> None:
        """Leave the last picture on the screen."""
        if not self._is_terminal:
            print("\n".join(self._lines))

    def _draw(self) -> None:
        up = f"\x1b[{self._num_lines}A" if self._num_lines else ""
        body = "".join(f"\x1b[2K{line}\n" for line in self._lines)
        sys.stdout.write(up + body)
        sys.stdout.flush()
        self._num_lines = len(self._lines)


def _wrap(heading: str, text: str, width: int) -> list[str]:
    lines = textwrap.wrap(heading, width) + ["-" * width]
    for paragraph in text.splitlines():
        lines += textwrap.wrap(paragraph, width) or [""]
    return lines
