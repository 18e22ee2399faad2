"""doctor: what each finding looks for, and the exit status."""

import dataclasses
import json

import pytest

from vllm_dspark.blas import BlasLibrary
from vllm_dspark.cli import doctor
from vllm_dspark.cli.main import main

GOOD = doctor.Report(
    system="Linux x86_64",
    python="3.12.1",
    versions={**dict.fromkeys(doctor.PACKAGES, "1.0"), "vllm": "0.33.0"},
    mlx_build="cpu",
    mlx_error="",
    device="A processor",
    blas=BlasLibrary("openblas", "libopenblas.so.0", is_fast=True),
    gflops=150.0,
    memory_bytes=16 * 1024**3,
    available_bytes=8 * 1024**3,
    working_set_bytes=16 * 1024**3,
    platform_plugins=(f"mlx = {doctor.PLUGIN_VALUE}",),
    openblas_coretype="",
)


def advice_for(**changes: object) -> list[str]:
    return [text for _, text in doctor.findings(dataclasses.replace(GOOD, **changes))]


def test_a_good_machine_has_nothing_to_fix() -> None:
    assert doctor.describe_findings(doctor.findings(GOOD)) == ["nothing to fix"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"versions": {**GOOD.versions, "vllm": ""}}, "vLLM is not installed"),
        ({"versions": {**GOOD.versions, "vllm": "0.32.0"}}, "vLLM is 0.32.0"),
        ({"mlx_error": "libmlx.so: no such file", "mlx_build": ""}, "libmlx.so: no such file"),
        ({"platform_plugins": ()}, "not registered"),
        ({"platform_plugins": (*GOOD.platform_plugins, "other = o:f")}, "other = o:f"),
        ({"blas": BlasLibrary("torch", "/t.so", is_fast=True)}, "apt-get install libopenblas0"),
        ({"blas": BlasLibrary("reference", "", is_fast=False)}, "reference BLAS"),
        ({"gflops": 4.0}, "4 GFLOPS is little for openblas"),
        ({"openblas_coretype": "Haswell"}, "OPENBLAS_CORETYPE=Haswell"),
        ({"mlx_build": "metal"}, "not yet measured"),
        ({"available_bytes": 1024**3}, "less than 4 GiB"),
    ],
)
def test_a_fault_is_named_with_advice(changes: dict[str, object], expected: str) -> None:
    (advice,) = advice_for(**changes)
    assert expected in advice


def test_only_broken_things_make_the_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for changes, status in (({"gflops": 4.0}, 0), ({"platform_plugins": ()}, 1)):
        report = dataclasses.replace(GOOD, **changes)
        monkeypatch.setattr(doctor, "examine", lambda report=report: report)
        assert main(["doctor"]) == status
    assert "BROKEN: the platform plugin" in capsys.readouterr().out


def test_json_holds_the_report_and_the_findings(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["report"]["gflops"] > 0
    assert printed["report"]["mlx_build"] in ("cpu", "metal", "cuda")
    assert isinstance(printed["findings"], list)
