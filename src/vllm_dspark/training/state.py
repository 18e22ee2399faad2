"""A run's folder: its settings, its log, and weights to go on from."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from vllm_dspark.checkpoints.export import export_drafter
from vllm_dspark.drafter.drafter import Drafter
from vllm_dspark.errors import CheckpointError
from vllm_dspark.training.feed import Place
from vllm_dspark.training.publish import write_card, write_shards

Arrays = dict[str, mx.array]
FREE = ("num_steps", "evaluate_every", "save_every", "log_every")  # may change on resuming


@dataclass(slots=True)
class TrainState:
    """Everything that a step changes, except the place in the rows.

    Attributes:
        step: steps taken.
        best: longest mean acceptance length seen on held-out rows.
        params: float32 masters; moments: of the optimiser; both by name.
    """

    step: int
    best: float
    params: Arrays
    moments: Arrays


class RunFolder:
    """The folder of one run.

    Args:
        folder: made if needed.

    Attributes:
        best: exported draft with the longest acceptance so far.
        draft: the same to hand out, in small files and with a card.
        log_path: JSON lines, one per report.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.best = folder / "best"
        self.draft = folder / "draft"
        self.log_path = folder / "log.jsonl"
        self._last = folder / "last"
        folder.mkdir(parents=True, exist_ok=True)

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Write down a run's settings, or compare with those it was begun with.

        Raises:
            CheckpointError: it was begun with others.
        """
        path = self.folder / "settings.json"
        now = json.loads(json.dumps(settings))
        if path.is_file():
            then = json.loads(path.read_text(encoding="utf-8"))
            changed = [
                f"{name} ({then.get(name)} then, {now[name]} now)"
                for name in now
                if then.get(name) != now[name] and name not in FREE
            ]
            if changed:
                raise CheckpointError(
                    f"{self.folder} was begun with other settings: {', '.join(changed)}; go on "
                    "with the same ones or give another folder"
                )
        path.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")

    def log(self, entry: Mapping[str, Any]) -> None:
        """Add one line to the log."""
        with self.log_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def save_last(self, state: TrainState, place: Place) -> None:
        """Save what :meth:`load_last` reads, whole or not at all."""
        part = self.folder / "last.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        mx.save_safetensors(str(part / "params.safetensors"), state.params)
        mx.save_safetensors(str(part / "moments.safetensors"), state.moments)
        where = {"step": state.step, "best": state.best, "place": asdict(place)}
        (part / "state.json").write_text(json.dumps(where), encoding="utf-8")
        shutil.rmtree(self._last, ignore_errors=True)
        part.rename(self._last)

    def load_place(self) -> Place | None:
        """Where the saved run is in its rows; None if nothing is saved."""
        where = self._where()
        return None if where is None else Place(**where["place"])

    def load_last(self) -> TrainState | None:
        """The saved state, or None."""
        where = self._where()
        if where is None:
            return None
        params, moments = (
            dict(mx.load(str(self._last / f"{name}.safetensors"))) for name in ("params", "moments")
        )
        return TrainState(where["step"], where["best"], params, moments)

    def _where(self) -> dict[str, Any] | None:
        path = self._last / "state.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def save_best(self, drafter: Drafter) -> None:
        """Export a draft to ``best``."""
        export_drafter(self.best, drafter, layout="deepspec")

    def publish(self, target: str, row_length: int) -> None:
        """Write ``draft`` from ``best``, the settings and the log."""
        write_shards(self.best, self.draft)
        settings = json.loads((self.folder / "settings.json").read_text(encoding="utf-8"))
        lines = self.log_path.read_text(encoding="utf-8").splitlines()
        entries = [json.loads(line) for line in lines if "held_out_length" in line]
        best = max(entries, key=lambda entry: entry["held_out_length"])
        write_card(self.draft, target, settings, best, row_length)
