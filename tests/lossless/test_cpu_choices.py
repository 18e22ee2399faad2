"""On a CPU the runner really uses what is cheaper there."""

import mlx.core as mx
import pytest
from driver import Engine, cases, make_runner, pair

from vllm_dspark.ops import cpu
from vllm_dspark.ops.select import default_max_gathered
from vllm_dspark.runner import step

pytestmark = pytest.mark.skipif(
    mx.default_device() != mx.Device(mx.cpu), reason="choices for the CPU"
)


def test_both_networks_use_the_cheaper_activation_and_one_product_for_the_context() -> None:
    loaded = pair()
    layers = [*loaded.target.layers, *loaded.draft.drafter.backbone.layers]
    assert all(layer.mlp.silu is cpu.silu for layer in layers)
    assert loaded.draft.drafter.backbone.joined_arrays


@pytest.mark.parametrize("extra", [0, 1])
def test_requests_with_many_keys_are_attended_one_by_one(
    extra: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = default_max_gathered()
    assert limit is not None
    layouts = []
    make = step.make_layout
    monkeypatch.setattr(
        step, "make_layout", lambda *given: layouts.append(make(*given)) or layouts[-1]
    )
    prompt = (cases()[0][0] * limit)[: limit - 1 + extra]
    engine = Engine(make_runner(proposer=None))
    for name in ("a", "b"):
        engine.add(name, prompt)
    engine.step()
    engine.step()
    counts = [one.num_requests for one in layouts[-1].segments]
    assert counts == ([2] if not extra else [1, 1])
