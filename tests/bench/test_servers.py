"""Servers end by their id in all cases; metrics pages are read."""

import json
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from vllm_dspark.bench import serve
from vllm_dspark.bench.cells import Cell, Measured
from vllm_dspark.bench.client import Load, client_command
from vllm_dspark.bench.prometheus import (
    parse_metrics,
    read_cached,
    read_drafting,
    read_kv_tokens,
)
from vllm_dspark.bench.serve import ServeBench, ServeSettings, make_specs
from vllm_dspark.bench.servers import ServerSpec, start_server
from vllm_dspark.errors import SettingsError, SetupError

TARGET = Path(__file__).parents[1] / "conformance" / "target"
CHILD = "import time; time.sleep(600)"
SERVER = f"""
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}])
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(str(child.pid).encode())
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Page).serve_forever()
"""
PAGE = """
# HELP vllm:spec_decode_num_drafts_total x
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 30.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 12.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 8.0
vllm:prefix_cache_queries_total{engine="0"} 100.0
vllm:prefix_cache_hits_total{engine="0"} 32.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="64"} 1.0
"""


def test_a_server_and_its_children_are_gone_after_an_error() -> None:
    spec = ServerSpec("fake", "other", (sys.executable, "-c", SERVER, "{port}"))
    with pytest.raises(ValueError, match="planned"), start_server(spec) as server:
        child = psutil.Process(int(server.get("/")))
        assert child.is_running()
        raise ValueError("planned")
    assert server.process.poll() is not None
    assert not child.is_running()


def test_a_server_that_dies_shows_the_end_of_its_log() -> None:
    command = (sys.executable, "-c", "raise SystemExit('the reason')", "{port}")
    with pytest.raises(SetupError, match="the reason"), start_server(ServerSpec("f", "o", command)):
        pass


def test_counters_of_drafting_and_caching_are_read() -> None:
    metrics = parse_metrics(PAGE)
    drafting = read_drafting(metrics)
    assert (drafting.rounds, drafting.drafted, drafting.accepted) == (10, 30, 12)
    assert drafting.rates == [0.8, 0.4]
    assert drafting.length == 2.2
    assert read_cached(metrics) == (100.0, 32.0)
    assert read_kv_tokens(metrics) == 1024


def test_counts_between_two_readings_start_at_the_first() -> None:
    drafting = read_drafting(parse_metrics(PAGE))
    assert drafting.since(drafting).rounds == 0
    assert drafting.since(type(drafting)()) == drafting


def test_mlx_dspark_may_live_in_an_environment_of_its_own(tmp_path) -> None:
    settings = ServeSettings(
        model=tmp_path, draft=tmp_path, arms=("mlx-dspark",), mlx_dspark_python=Path("/e/python")
    )
    specs, skipped = make_specs(settings)
    assert not skipped
    assert specs[-1].command[:3] == ("/e/python", "-m", "mlx_dspark")


def test_a_missing_outside_engine_is_left_out_with_a_sentence(tmp_path) -> None:
    settings = ServeSettings(
        model=tmp_path, draft=tmp_path, arms=("DSpark async", "llama.cpp", "draft_model")
    )
    specs, skipped = make_specs(settings)
    assert [spec.name for spec in specs] == ["target-only sync", "DSpark async"]
    assert [text.split(":")[0] for text in skipped] == ["llama.cpp", "draft_model"]
    assert all("127.0.0.1" in spec.command for spec in specs)


def test_an_unknown_arm_is_refused(tmp_path) -> None:
    with pytest.raises(SettingsError, match="choose from"):
        ServeSettings(model=tmp_path, draft=tmp_path, arms=("sglang",))


COMMAND = """
import subprocess
import sys
from vllm_dspark.bench.servers import ServerSpec, start_server
from vllm_dspark.cli.results import end_in_order
end_in_order()
spec = ServerSpec("fake", "other", (sys.executable, "-c", sys.argv[1], "{port}"))
with start_server(spec) as one:
    print(one.process.pid, flush=True)
    one.process.wait()
"""


def test_a_terminated_command_stops_its_server() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", COMMAND, SERVER], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    server = psutil.Process(int(parent.stdout.readline()))
    parent.terminate()
    assert parent.wait(30) == 143
    parent.stdout.close()
    assert not server.is_running()


@pytest.fixture
def broken_bench(monkeypatch: pytest.MonkeyPatch) -> tuple[ServeBench, list[tuple[str, int]]]:
    """A bench of target-only and llama.cpp whose servers are not started; the second fails."""
    settings = ServeSettings(
        model=TARGET, draft=TARGET, arms=("target-only sync", "llama.cpp"), clients=(1,), repeats=2
    )
    specs = [ServerSpec("target-only sync", "vllm", ()), ServerSpec("llama.cpp", "llama.cpp", ())]
    monkeypatch.setattr(serve, "make_specs", lambda settings: (specs, []))
    bench, turns = ServeBench(settings, lambda text: None), []

    def run_arm(spec: ServerSpec, repeat: int, workloads: object) -> None:
        turns.append((spec.name, repeat))
        cell = Cell(spec.name, "short", 1, check={"exact": 1, "top_k": 0, "failures": 0})
        cell.repeats.append(Measured(8, 1.0, 1.0, 1.0, 1.0, 1.0))
        bench._cells[spec.name, "short", 1] = cell
        if spec.kind != "vllm":
            raise SetupError("it closed the connection")

    monkeypatch.setattr(bench, "_run_arm", run_arm)
    return bench, turns


def test_an_outside_server_that_fails_is_left_out_and_the_rest_goes_on(broken_bench) -> None:
    bench, turns = broken_bench
    found = bench.run()
    assert found["skipped"] == ["llama.cpp: it closed the connection"]
    assert [cell["arm"] for cell in found["cells"]] == ["target-only sync"]
    assert turns == [("target-only sync", 0), ("llama.cpp", 0), ("target-only sync", 1)]


def test_our_own_server_may_not_fail(broken_bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _ = broken_bench

    def fail(spec: ServerSpec, repeat: int, workloads: object) -> None:
        raise SetupError("it died")

    monkeypatch.setattr(bench, "_run_arm", fail)
    with pytest.raises(SetupError, match="it died"):
        bench.run()


def test_the_reference_that_is_no_arm_answers_once_and_is_not_timed(
    broken_bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, _ = broken_bench
    bench._settings = replace(bench._settings, arms=("DSpark async",), workloads=("short",))
    specs = [ServerSpec(name, "vllm", ()) for name in ("target-only sync", "DSpark async")]
    monkeypatch.setattr(serve, "make_specs", lambda settings: (specs, []))
    monkeypatch.setattr(serve, "read_memory", lambda *given: {})
    checked, timed = [], []

    @contextmanager
    def start(spec: ServerSpec):
        yield SimpleNamespace(spec=spec)

    monkeypatch.setattr(serve, "start_server", start)
    monkeypatch.setattr(bench, "_run_arm", ServeBench._run_arm.__get__(bench))
    monkeypatch.setattr(bench, "_check", lambda server, _: checked.append(server.spec.name))
    monkeypatch.setattr(bench, "_time_all", lambda server, _: timed.append(server.spec.name))
    bench.run()
    assert checked == ["target-only sync", "DSpark async"]
    assert timed == ["DSpark async", "DSpark async"]


@pytest.mark.parametrize(("kind", "tries"), [("llama.cpp", 2), ("vllm", 1)])
def test_only_other_servers_get_a_second_try(
    kind: str, tries: int, broken_bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, _ = broken_bench
    asked = []

    def fail(server: object, model: Path, load: object) -> dict:
        asked.append(load)
        raise SetupError("it closed the connection")

    monkeypatch.setattr(serve, "run_client", fail)
    with pytest.raises(SetupError, match="closed"):
        bench._run_client(SimpleNamespace(spec=ServerSpec("x", kind, ())), None)
    assert len(asked) == tries


def test_a_schema_goes_to_the_server_in_vllms_words(tmp_path: Path) -> None:
    load = Load(("Hello",), 8, 1, 0.0, schema='{"type": "integer"}')
    server = SimpleNamespace(spec=ServerSpec("x", "vllm", ()), url="http://127.0.0.1:1")
    command = client_command(server, tmp_path, load, tmp_path)
    extra = json.loads(command[command.index("--extra-body") + 1])
    assert extra == {"seed": load.seed, "structured_outputs": {"json": {"type": "integer"}}}
    assert Load(("Hello",), 8, 1, 0.0).extra == {"seed": load.seed}
