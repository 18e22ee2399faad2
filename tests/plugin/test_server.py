"""`vllm serve` on the tiny target, asked as users ask it."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from engines import PROMPTS, TARGET, reference_tokens
from served import Server, serving

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

TEXT = "def add_books(cleo, gia):\n    total = gia + gia\n    return"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    from openai import OpenAI

    with OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as one:
        yield one


def complete(client: Any, prompt: str = TEXT, **options: Any) -> Any:
    options = {"max_tokens": 24, "temperature": 0.0, **options}
    return client.completions.create(model="tiny", prompt=prompt, **options)


def chat(client: Any, **options: Any) -> Any:
    messages = [{"role": "user", "content": "Question: what is 8 plus 17?"}]
    options = {"max_tokens": 24, "temperature": 0.0, **options}
    return client.chat.completions.create(model="tiny", messages=messages, **options)


def test_completions_equal_mlx_lm_also_for_clients_together(client: Any) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    expected = [tokenizer.decode(reference_tokens(prompt, 24)) for prompt in PROMPTS]
    extra = {"ignore_eos": True, "skip_special_tokens": False}
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = list(pool.map(lambda prompt: complete(client, prompt, extra_body=extra), PROMPTS))
    assert [answer.choices[0].text for answer in answers] == expected


def test_a_streamed_chat_is_the_same_as_a_whole_one(client: Any) -> None:
    whole = chat(client)
    parts = list(chat(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert whole.choices[0].message.content
    assert text == whole.choices[0].message.content
    assert parts[-1].usage == whole.usage


def test_logprobs_come_with_chat_and_completions(client: Any) -> None:
    entries = chat(client, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    for entry in entries:
        best = [other.logprob for other in entry.top_logprobs]
        assert len(best) == 3 and best == sorted(best, reverse=True)
        assert entry.logprob == best[0]  # greedy
    logprobs = complete(client, logprobs=2, echo=True, max_tokens=4).choices[0].logprobs
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])


def test_a_json_schema_is_kept(client: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["age"],
        "additionalProperties": False,
    }
    kind = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    content = chat(client, response_format=kind, max_tokens=100).choices[0].message.content
    answer = json.loads(content)
    assert list(answer) == ["age"] and 1 <= answer["age"] <= 9


def test_samples_and_seeds_over_http(client: Any) -> None:
    options = {"temperature": 1.5, "seed": 7, "n": 3}
    first, second = (complete(client, **options) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert len(set(texts)) == 3
    assert texts == [choice.text for choice in second.choices]


BAD = [
    ({"extra_body": {"thinking_token_budget": 4}}, "thinking_token_budget is set"),
    ({"temperature": -1.0}, "temperature must be non-negative"),
    ({"extra_body": {"top_k": -5}}, "top_k must be 0"),
    ({"logit_bias": {"512": 5}}, "logit_bias"),
    ({"max_tokens": 5000}, "512"),
    ({"prompt": [600]}, "out of vocabulary"),
]


@pytest.mark.parametrize(("options", "sentence"), BAD, ids=str)
def test_a_bad_request_is_a_400_with_a_sentence(
    client: Any, options: dict[str, Any], sentence: str
) -> None:
    from openai import BadRequestError

    with pytest.raises(BadRequestError) as caught:
        complete(client, **options)
    assert caught.value.status_code == 400
    assert sentence in str(caught.value)
    assert complete(client, max_tokens=2).choices[0].text


def test_an_unknown_model_is_a_404(client: Any) -> None:
    from openai import NotFoundError

    with pytest.raises(NotFoundError):
        client.completions.create(model="nope", prompt="Ada")


def test_metrics_count_what_was_served(server: Server, client: Any) -> None:
    before = metric(server, "vllm:generation_tokens_total")
    complete(client, max_tokens=9, extra_body={"ignore_eos": True})
    assert metric(server, "vllm:generation_tokens_total") == before + 9


def metric(server: Server, name: str) -> float:
    """Sum of a metric over its labels."""
    lines = server.get("/metrics").splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))


def test_clients_that_hang_up_or_err_leave_nothing_behind(server: Server, client: Any) -> None:
    from openai import BadRequestError

    def ask(index: int) -> str:
        prompt = PROMPTS[index % len(PROMPTS)]
        if index % 4 == 0:
            stream = complete(client, prompt, stream=True, max_tokens=200)
            next(iter(stream))
            stream.close()
            return "hung up"
        if index % 4 == 1:
            try:
                complete(client, prompt, extra_body={"thinking_token_budget": 4})
            except BadRequestError:
                return "refused"
        answer = complete(client, prompt, temperature=1.0, max_tokens=16)
        return answer.choices[0].finish_reason

    with ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(ask, range(48)))
    assert [ends.count(end) for end in ("hung up", "refused")] == [12, 12]
    assert ends.count("length") + ends.count("stop") == 24
    deadline = time.monotonic() + 20
    while metric(server, "vllm:num_requests_running") and time.monotonic() < deadline:
        time.sleep(0.1)
    complete(client, max_tokens=1)
    assert metric(server, "vllm:num_requests_running") == 0
    assert metric(server, "vllm:num_requests_waiting") == 0
    assert metric(server, "vllm:kv_cache_usage_perc") == 0


def test_the_benchmark_client_runs(server: Server, tmp_path: Path) -> None:
    command = [
        str(Path(sys.executable).parent / "vllm"), "bench", "serve", "--model", "tiny",
        "--tokenizer", str(TARGET), "--base-url", server.url, "--dataset-name", "random",
        "--random-input-len", "24", "--random-output-len", "8", "--num-prompts", "8",
        "--max-concurrency", "4", "--save-result", "--result-dir", str(tmp_path),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert result["completed"] == 8
