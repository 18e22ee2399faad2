"""Arms inside the test's process, so that a fault can be planted in them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from vllm_dspark.arms.child import ENGINES, perform
from vllm_dspark.arms.process import Arm
from vllm_dspark.arms.spec import ArmSpec
from vllm_dspark.parity.text import TextParity, TextReport, TextSettings

CONFORMANCE = Path(__file__).parents[1] / "conformance"
TARGET = CONFORMANCE / "target"
DRAFT = CONFORMANCE / "deepspec-vanilla-k7" / "draft"

PROMPTS = (
    "Finn puts the small stones in a box. Gia opens the box and finds the small stones.",
    "Question: what is 8 plus 17? Answer: ",
    "Ben puts the small maps in a box. Gia opens the box and finds the small maps. Gia thanks",
    "def add_books(cleo, gia):\n    total = gia + gia\n    return",
)
MIN_LENGTH = 2.5
"""Tokens per round that the healthy tiny pair exceeds on these prompts (3.5 to 3.8)."""


class LocalArm(Arm):
    """An arm whose engine lives here; answers still pass through JSON."""

    def __init__(self, spec: ArmSpec, engine: Any) -> None:
        self.spec = spec
        self.name = spec.name
        self.engine = engine

    def tell(self, command: dict[str, Any]) -> Any:
        given = json.loads(json.dumps(command))
        return json.loads(json.dumps(perform(self.engine, given.pop("do"), given)))


@contextmanager
def start_local(spec: ArmSpec) -> Iterator[LocalArm]:
    """Load an engine, and close it."""
    engine = import_module(ENGINES[spec.engine]).make_engine(spec)
    try:
        yield LocalArm(spec, engine)
    finally:
        if spec.engine == "vllm":
            engine.llm.llm_engine.engine_core.shutdown()


def write_prompts(folder: Path) -> Path:
    path = folder / "prompts.jsonl"
    rows = [{"id": f"p{index}", "prompt": text} for index, text in enumerate(PROMPTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run_parity(folder: Path, **options: Any) -> TextReport:
    """`parity text` on the tiny pair, in this process."""
    given = {
        "model": TARGET,
        "draft": DRAFT,
        "prompts": write_prompts(folder),
        "max_tokens": 32,
        "batch": 4,
        "modes": ("sync",),
        "with_transformers": False,
        "min_length": MIN_LENGTH,
        **options,
    }
    return TextParity(TextSettings(**given), lambda _: None, start_local).run()
