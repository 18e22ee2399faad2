"""demo: two answers, a verdict, and sentences for bad input."""

from pathlib import Path

import pytest

from vllm_dspark.cli.main import main

SETS = Path(__file__).parents[1] / "conformance"
PAIR = ["--model", str(SETS / "target"), "--draft", str(SETS / "deepspec-vanilla-k7" / "draft")]


def test_both_answers_are_shown_with_rates_rounds_and_the_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["demo", *PAIR, "--max-tokens", "24", "How many cups?"]) == 0
    shown = capsys.readouterr().out
    assert "target alone:" in shown and "DSpark:" in shown
    assert "accepted per round:" in shown
    assert "tokens are the same" in shown


def test_answers_that_differ_are_said_and_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm_dspark.arms import race

    step = race.Lane.step

    def wrong(lane: race.Lane, sampling: object) -> None:
        step(lane, sampling)
        if lane.title == "DSpark":
            lane.token_ids[-1] += 1

    monkeypatch.setattr(race.Lane, "step", wrong)
    assert main(["demo", *PAIR, "--max-tokens", "12"]) == 1
    assert "NOT EQUAL" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--draft", "nowhere"], "--draft nowhere has no config.json"),
        ([*PAIR, "--max-tokens", "1"], "--max-tokens is 1"),
        ([*PAIR, "--dtype", "int8"], "--dtype is 'int8'"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    known = arguments if "--model" in arguments else [*PAIR[:2], *arguments]
    assert main(["demo", *known]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
