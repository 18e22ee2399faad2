"""Race a draft's target alone against the pair, prompt by prompt, greedily, in process.

    python scripts/speed.py TARGET DRAFT [--prompts FILE] [--dtype bfloat16] [--json FILE]

Every prompt is answered by the target alone and by the pair, right after each other, with the same
weights in memory. Tokens/s count tokens up to the end of the turn or the given number; a round's
tokens beyond that are not counted, its time is. Decode leaves the prompt and the first token out.
Outputs that differ are listed with the position of the first difference, and with how far the two
tokens' logits are apart for the target in float32: where that is little, rounding decided.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from acceptance import Answer, run_prompt

from vllm_dspark.bench.record import make_record
from vllm_dspark.runner.build import DraftSettings, Loaded, build_runner, load
from vllm_dspark.training.chat import read_chat_format
from vllm_dspark.training.frozen import FrozenTarget, load_frozen

import mlx.core as mx  # isort: skip

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """One prompt answered twice.

    Attributes:
        tokens: of the two answers, cut at the end of the turn.
        prefill: seconds until the first token; decode: from there on. Target alone, then pair.
        rounds: drafting steps; kept: drafts accepted in them.
        differs_at: first position where the answers differ, None where they are equal.
        margin: float32 logit of the target's token there less that of the pair's.
    """

    id: str
    kind: str
    tokens: tuple[int, int]
    prefill: tuple[float, float]
    decode: tuple[float, float]
    rounds: int
    kept: int
    differs_at: int | None = None
    margin: float | None = None


def cut(output: list[int], num_new: int, end_id: int) -> list[int]:
    """Leave out what comes after the end of the turn or the wanted number."""
    stop = output.index(end_id) + 1 if end_id in output else len(output)
    return output[: min(stop, num_new)]


def first_difference(left: list[int], right: list[int]) -> int | None:
    """Where two answers part; None if they do not."""
    pairs = enumerate(zip(left, right, strict=False))
    return next(
        (at for at, (a, b) in pairs if a != b),
        None if len(left) == len(right) else min(len(left), len(right)),
    )


@cache
def judge(folder: Path) -> FrozenTarget:
    """The target in float32, whatever the race computes in."""
    return load_frozen(folder, mx.float32)


def margin_at(target: FrozenTarget, tokens: list[int], ours: int, theirs: int) -> float:
    """Logit of ``ours`` less that of ``theirs`` after ``tokens``."""
    hidden = target.see(mx.array([tokens])).hidden.reshape(len(tokens), -1)[-1:]
    logits = target.network.unembed(hidden)[0]
    return float((logits[ours] - logits[theirs]).item())


def race(loaded: Loaded, prompts: list[dict], args: argparse.Namespace) -> Iterator[Race]:
    """Answer every prompt both ways, the warm-up prompts twice."""
    chat = read_chat_format(args.target)
    ids = [chat.encode_prompt(entry) for entry in prompts]
    longest = max(len(prompt) for prompt in ids) + args.new_tokens + 2 * BLOCK_SIZE
    num_blocks = -(-longest // BLOCK_SIZE) + 1
    alone = Loaded(loaded.config, loaded.target, loaded.dtype)
    runners = [
        build_runner(one, num_blocks=num_blocks, block_size=BLOCK_SIZE) for one in (alone, loaded)
    ]

    def answer(prompt: list[int]) -> list[Answer]:
        return [run_prompt(one, prompt, args.new_tokens, chat.end_id) for one in runners]

    for prompt in ids[: args.warm_ups]:
        answer(prompt)
    for entry, prompt in zip(prompts, ids, strict=True):
        both = answer(prompt)
        left, right = (cut(one.output, args.new_tokens, chat.end_id) for one in both)
        at = first_difference(left, right)
        known = at is not None and at < min(len(left), len(right))
        yield Race(
            id=entry.get("id", ""),
            kind=entry.get("kind", "all"),
            tokens=(len(left), len(right)),
            prefill=(both[0].first_seconds, both[1].first_seconds),
            decode=(both[0].more_seconds, both[1].more_seconds),
            rounds=len(both[1].accepted),
            kept=sum(both[1].accepted),
            differs_at=at,
            margin=(
                margin_at(judge(args.target), prompt + left[:at], left[at], right[at])
                if known
                else None
            ),
        )


def summarize(name: str, races: list[Race]) -> dict[str, float | int | str]:
    """Rates of a group of prompts, all tokens over all seconds."""
    rates: dict[str, list[float]] = {"decode": [], "whole": []}
    for side in (0, 1):
        tokens = sum(one.tokens[side] for one in races)
        decode = sum(one.decode[side] for one in races)
        rates["decode"].append((tokens - len(races)) / max(decode, 1e-9))
        rates["whole"].append(tokens / (decode + sum(one.prefill[side] for one in races)))
    rounds = sum(one.rounds for one in races)
    row: dict[str, float | int | str] = {"kind": name, "prompts": len(races)}
    for part, (alone, pair) in rates.items():
        row |= {f"{part}_alone": alone, f"{part}_pair": pair, f"{part}_ratio": pair / alone}
    row["length"] = 1 + sum(one.kept for one in races) / max(rounds, 1)
    row["slower"] = sum(_rate(one, 1) < _rate(one, 0) for one in races)
    row["equal"] = sum(one.differs_at is None for one in races)
    return row


def _rate(one: Race, side: int) -> float:
    return (one.tokens[side] - 1) / max(one.decode[side], 1e-9)


def show(rows: list[dict], races: list[Race]) -> None:
    """Print the table, and every difference."""
    print(
        f"{'tokens/s':<14} {'decode alone':>12} {'pair':>7} {'ratio':>6} {'whole alone':>12} "
        f"{'pair':>7} {'ratio':>6} {'tokens/round':>13} {'pair slower':>12} {'equal':>8}"
    )
    for row in rows:
        print(
            f"{row['kind']:<14} {row['decode_alone']:>12.1f} {row['decode_pair']:>7.1f} "
            f"{row['decode_ratio']:>6.2f} {row['whole_alone']:>12.1f} {row['whole_pair']:>7.1f} "
            f"{row['whole_ratio']:>6.2f} {row['length']:>13.2f} "
            f"{row['slower']:>8} of {row['prompts']:<2}{row['equal']:>3} of {row['prompts']}"
        )
    for one in races:
        if one.differs_at is not None:
            margin = "one ended" if one.margin is None else f"margin {one.margin:.4f}"
            print(f"  {one.id} differs at token {one.differs_at}: {margin}")


def main() -> int:
    """Race, print, and write the JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--prompts", type=Path, default=Path("src/vllm_dspark/data/prompts.jsonl"))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--warm-ups", type=int, default=3, help="prompts answered once before")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    entries = [json.loads(line) for line in args.prompts.read_text().splitlines() if line.strip()]
    command = " ".join(["python scripts/speed.py", *sys.argv[1:]])
    record = make_record("race", command, vars(args))
    loaded = load(args.target, args.dtype, DraftSettings(folder=args.draft))
    races = list(race(loaded, entries, args))
    kinds = list(dict.fromkeys(one.kind for one in races))
    rows = [summarize(kind, [one for one in races if one.kind == kind]) for kind in kinds]
    rows.append(summarize("all", races))
    machine = record["machine"]
    print(f"{machine['device']}, {args.dtype}, {args.new_tokens} new tokens, draft {args.draft}")
    show(rows, races)
    if args.json is not None:
        result = {**record, "groups": rows, "races": [asdict(one) for one in races]}
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
