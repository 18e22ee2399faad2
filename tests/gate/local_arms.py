"""Arms inside the test's process, so that a fault can be planted in them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from vllm_dspark.arms.child import ENGINES, perform
from vllm_dspark.arms.process import Arm
from vllm_dspark.arms.spec import ArmSpec, Run, asks_for
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
GOLDEN = CONFORMANCE / "deepspec-vanilla-k7" / "golden.json"


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
        **options,
    }
    return TextParity(TextSettings(**given), lambda _: None, start_local).run()


def golden_run() -> tuple[Run, list[list[int]], int]:
    """DSpark on the recorded prompts; with the recorded answers and accepted drafts."""
    golden = json.loads(GOLDEN.read_text())
    cases = golden.get("cases", golden) if isinstance(golden, dict) else golden
    length = len(cases[0]["output_ids"])
    accepted = 0
    for case in cases:
        left = length - 1  # the prompt's own step emits one token
        for one in case["rounds"]:
            accepted += max(min(one["accepted"], left - 1), 0)  # drafts are cut at max_tokens
            left -= one["accepted"] + 1
    spec = ArmSpec(
        name="DSpark", engine="vllm", model=str(TARGET), draft=str(DRAFT), max_model_len=512
    )
    with start_local(spec) as arm:
        run = arm.generate(asks_for([case["prompt_ids"] for case in cases], length), 1)
    return run, [case["output_ids"] for case in cases], accepted
