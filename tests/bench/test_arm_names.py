"""Names of arms say what is asked of vLLM."""

import pytest

from vllm_dspark.bench.arm_names import OurArm, check_arms, find_arm, pairs_of
from vllm_dspark.bench.offline import OfflineSettings
from vllm_dspark.bench.serve import ServeSettings, make_specs
from vllm_dspark.errors import SettingsError


def test_a_name_gives_scheduler_width_and_planner() -> None:
    assert find_arm("target-only sync") == OurArm(drafts=False, is_async=False)
    assert find_arm("DSpark async K=3") == OurArm(drafts=True, is_async=True, num_drafts=3)
    adaptive = find_arm("DSpark sync adaptive")
    assert adaptive is not None and adaptive.is_adaptive and not adaptive.is_async


@pytest.mark.parametrize(
    "name", ["target-only", "target-only async K=3", "DSpark async K=0", "DSpark async K=", "ngram"]
)
def test_other_names_are_not_ours(name: str) -> None:
    assert find_arm(name) is None


def test_the_width_of_the_name_comes_before_the_one_of_the_run() -> None:
    arm = OurArm(drafts=True, is_async=True, num_drafts=3)
    assert arm.speculative("d", 5)["num_speculative_tokens"] == 3
    plain = OurArm(drafts=True, is_async=True, is_adaptive=True)
    assert plain.speculative("d") == {
        "method": "dspark", "model": "d", "enable_adaptive_verification": True
    }  # fmt: skip
    assert OurArm(drafts=False, is_async=True).speculative("d", 5) is None


def test_unknown_arms_are_refused_by_both_commands(tmp_path) -> None:
    with pytest.raises(SettingsError, match=r"\['fast'\].*K=3.*llama.cpp"):
        check_arms(["fast", "ngram"], ["ngram", "llama.cpp"])
    for settings in (OfflineSettings, ServeSettings):
        with pytest.raises(SettingsError, match="no arms"):
            settings(model=tmp_path, draft=tmp_path, arms=("DSpark async fast",))


def test_every_drafted_arm_is_divided_by_every_plain_one() -> None:
    pairs = pairs_of(["target-only async", "DSpark async K=2", "mlx_lm"], also_drafted=["ngram"])
    assert ("DSpark async K=2", "target-only async") in pairs
    assert ("ngram", "mlx_lm") in pairs
    assert ("target-only async", "mlx_lm") in pairs
    assert not [top for top, _ in pairs if top == "mlx_lm"]


def test_the_server_of_an_adaptive_arm_is_told_so(tmp_path) -> None:
    settings = ServeSettings(model=tmp_path, draft=tmp_path, arms=("DSpark sync adaptive",))
    specs, _ = make_specs(settings)
    (command,) = [spec.command for spec in specs if spec.name == "DSpark sync adaptive"]
    assert any("enable_adaptive_verification" in part for part in command)
    assert "--no-async-scheduling" in command
