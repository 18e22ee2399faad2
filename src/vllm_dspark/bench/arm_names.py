"""What our arms are called in every bench command, and what a name asks of vLLM."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vllm_dspark.errors import SettingsError

FORM = re.compile(
    r"(?P<kind>target-only|DSpark) (?P<scheduler>async|sync)(?P<option> adaptive| K=\d+)?"
)
HELP = (
    '"target-only async", "target-only sync", "DSpark async", "DSpark sync"; after a DSpark arm '
    'also " adaptive" (the planner on) or " K=3" (that many drafts)'
)


@dataclass(frozen=True, slots=True)
class OurArm:
    """One way to serve with this project.

    Attributes:
        num_drafts: K; 0 is the trained number.
        is_adaptive: whether the planner is on.
    """

    drafts: bool
    is_async: bool
    num_drafts: int = 0
    is_adaptive: bool = False

    def speculative(self, draft: str, num_drafts: int = 0) -> dict[str, Any] | None:
        """vLLM's speculative_config; None for the target alone.

        Args:
            draft: folder of the block draft.
            num_drafts: K where the name gives none; 0 is the trained number.
        """
        if not self.drafts:
            return None
        config: dict[str, Any] = {"method": "dspark", "model": draft}
        if self.num_drafts or num_drafts:
            config["num_speculative_tokens"] = self.num_drafts or num_drafts
        if self.is_adaptive:
            config["enable_adaptive_verification"] = True
        return config


def find_arm(name: str) -> OurArm | None:
    """The arm of a name; None when the name is not one of ours."""
    found = FORM.fullmatch(name)
    if found is None:
        return None
    drafts, option = found["kind"] == "DSpark", found["option"] or ""
    if option and not drafts:
        return None
    num_drafts = int(option[3:]) if option.startswith(" K=") else 0
    if option.startswith(" K=") and not num_drafts:
        return None  # the target alone has its own name
    return OurArm(drafts, found["scheduler"] == "async", num_drafts, option == " adaptive")


def check_arms(names: Iterable[str], others: Iterable[str]) -> None:
    """Refuse names that are neither ours nor among ``others``.

    Raises:
        SettingsError: naming them and what there is.
    """
    others = tuple(others)
    unknown = sorted(name for name in names if find_arm(name) is None and name not in others)
    if unknown:
        raise SettingsError(f"no arms {unknown}; choose from {HELP}; {', '.join(others)}")


def pairs_of(
    names: Iterable[str], extra: Iterable[tuple[str, str]] = (), also_drafted: Iterable[str] = ()
) -> list[tuple[str, str]]:
    """(arm, arm it is divided by): every drafted arm over target-only and over others' plain ones.

    Args:
        names: arms of a run.
        extra: further pairs.
        also_drafted: arms that draft and are not DSpark.
    """
    drafted = [name for name in names if (arm := find_arm(name)) is not None and arm.drafts]
    plain = ("target-only async", "target-only sync", "mlx_lm", "llama.cpp")
    pairs = [(top, bottom) for top in (*drafted, *also_drafted) for bottom in plain]
    return [*pairs, ("target-only async", "mlx_lm"), ("target-only async", "llama.cpp"), *extra]
