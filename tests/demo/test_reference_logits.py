"""The two reference programs read the demo model's folder alike."""

from pathlib import Path

import numpy as np
import pytest

PROMPT = "Gravity is the force that 12 apples"
TOLERANCE = 1e-3  # largest difference of a logit in float32; logits reach about 20


@pytest.mark.slow
def test_mlx_lm_and_transformers_give_the_same_logits(demo_dir: Path) -> None:
    import mlx.core as mx
    import mlx_lm
    import torch
    from transformers import AutoModelForCausalLM

    model, tokenizer = mlx_lm.load(str(demo_dir))
    ids = tokenizer.encode(PROMPT)
    got = np.array(model(mx.array([ids]))[0])

    reference = AutoModelForCausalLM.from_pretrained(demo_dir, dtype=torch.float32)
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0].numpy()
    assert got.dtype == np.float32
    assert np.abs(got - expected).max() < TOLERANCE
    assert np.array_equal(got.argmax(-1), expected.argmax(-1))
