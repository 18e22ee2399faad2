"""Two engines behind one address: `--data-parallel-size 2`."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engines import PROMPTS, TARGET, reference_tokens
from served import Server, serving

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


def served_by(server: Server) -> dict[str, float]:
    """Tokens generated, by engine."""
    name = "vllm:generation_tokens_total{"
    found = {}
    for line in server.get("/metrics").splitlines():
        if line.startswith(name):
            engine = line.split('engine="')[1].split('"')[0]
            found[engine] = float(line.split()[-1])
    return found


def test_two_engines_share_the_work_and_give_the_same_tokens(tmp_path: Path) -> None:
    from openai import OpenAI
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    expected = [tokenizer.decode(reference_tokens(prompt, 24)) for prompt in PROMPTS]
    extra = {"ignore_eos": True, "skip_special_tokens": False}
    with serving(tmp_path, "--data-parallel-size", "2", "--api-server-count", "1") as server:
        with (
            OpenAI(base_url=server.url + "/v1", api_key="none") as client,
            ThreadPoolExecutor(len(PROMPTS)) as pool,
        ):

            def complete(prompt: str) -> str:
                answer = client.completions.create(
                    model="tiny", prompt=prompt, max_tokens=24, temperature=0.0, extra_body=extra
                )
                return answer.choices[0].text

            assert list(pool.map(complete, PROMPTS)) == expected
            assert list(pool.map(complete, PROMPTS)) == expected
        counts = served_by(server)
    assert sorted(counts) == ["0", "1"]
    assert all(count > 0 for count in counts.values())
    assert sum(counts.values()) == 2 * 24 * len(PROMPTS)
