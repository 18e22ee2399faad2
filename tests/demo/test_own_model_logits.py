"""Our target network computes the demo model as transformers and mlx-lm do."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from vllm_dspark.checkpoints.target import load_target

PROMPT = "Gravity is the force that 12 apples"
TOLERANCE = 1e-3  # largest difference of a logit in float32; logits reach about 20


def attend_causally(_layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    """Attention without a cache: q [N, heads, D], k and v [N, kv heads, D] -> [N, heads, D]."""
    rows = [x.swapaxes(0, 1)[None] for x in (q, k, v)]
    mixed = mx.fast.scaled_dot_product_attention(*rows, scale=q.shape[-1] ** -0.5, mask="causal")
    return mixed[0].swapaxes(0, 1)


@pytest.fixture(scope="module")
def token_ids(demo_dir: Path) -> list[int]:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(demo_dir).encode(PROMPT)


@pytest.fixture(scope="module")
def own_logits(demo_dir: Path, token_ids: list[int]) -> np.ndarray:
    _, model = load_target(demo_dir, mx.float32)
    positions = mx.arange(len(token_ids))
    seen = model.forward(mx.array(token_ids), positions, attend_causally)
    return np.array(model.unembed(seen.hidden))


@pytest.mark.slow
def test_logits_equal_transformers(demo_dir: Path, token_ids: list[int], own_logits) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(demo_dir, dtype=torch.float32)
    with torch.no_grad():
        expected = reference(torch.tensor([token_ids])).logits[0].numpy()
    assert own_logits.dtype == np.float32
    assert np.abs(own_logits - expected).max() < TOLERANCE


@pytest.mark.slow
def test_logits_equal_mlx_lm(demo_dir: Path, token_ids: list[int], own_logits) -> None:
    import mlx_lm

    model, _ = mlx_lm.load(str(demo_dir))
    expected = np.array(model(mx.array([token_ids]))[0])
    assert np.abs(own_logits - expected).max() < TOLERANCE
