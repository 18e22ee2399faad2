"""Muon and AdamW against their definitions."""

import mlx.core as mx
import numpy as np
import pytest

from vllm_dspark.checkpoints.build import new_drafter
from vllm_dspark.training.frozen import FrozenTarget
from vllm_dspark.training.network import parameters_of
from vllm_dspark.training.optimiser import (
    Optimiser,
    clipped,
    learning_rate,
    muon_parts,
    orthogonalised,
)
from vllm_dspark.training.settings import DraftShape, FitSettings
from vllm_dspark.training.shape import draft_config


def test_singular_values_become_about_one() -> None:
    x = mx.array(np.random.default_rng(0).normal(size=(3, 8, 20)).astype(np.float32))
    values = np.linalg.svd(np.array(orthogonalised(x)), compute_uv=False)
    assert values.min() > 0.6 and values.max() < 1.3


def test_fused_matrices_are_cut_as_the_checkpoint_stores_them(target: FrozenTarget) -> None:
    shape = DraftShape(num_layers=1, markov_rank=8, mask_token_id=3)
    config = draft_config(target.config, shape)
    params = parameters_of(new_drafter(config, seed=0))
    parts = {
        (part.name.split(".")[-2], part.start, part.stop) for part in muon_parts(params, config)
    }
    assert {("qkv_proj", 0, 96), ("qkv_proj", 96, 128), ("qkv_proj", 128, 160)} <= parts
    assert {("gate_up_proj", 0, 256), ("gate_up_proj", 256, 512), ("fc", 0, 96)} <= parts
    assert not any("markov" in name or "proj.bias" in name for name, _, _ in parts)


def test_a_muon_step_has_the_size_of_an_adamw_step(target: FrozenTarget) -> None:
    config = draft_config(target.config, DraftShape(num_layers=1, markov_rank=8, mask_token_id=3))
    params = parameters_of(new_drafter(config, seed=0))
    optimiser = Optimiser(params, config, FitSettings(), mx.float32)
    grads = {name: mx.random.normal(array.shape) for name, array in params.items()}
    one, rate = mx.array(1.0), mx.array(1e-2)
    new, moments, norm = optimiser.update(params, optimiser.start(params), grads, rate, one)
    name = "backbone.layers.0.mlp.down_proj.weight"
    change = (new[name] - params[name]).square().mean().sqrt().item()
    assert change == pytest.approx(0.2 * 1e-2, rel=0.2)
    table = "markov_head.markov_w2.weight"
    change = (new[table] - params[table]).square().mean().sqrt().item()
    assert change == pytest.approx(1e-2, rel=0.05)
    assert f"v.{name}" not in moments and f"v.{table}" in moments
    assert norm.item() > 1


def test_the_gradient_is_clipped_as_a_whole() -> None:
    grads, norm = clipped({"a": mx.array([3.0]), "b": mx.array([4.0])}, 1.0)
    assert norm.item() == pytest.approx(5.0)
    assert (grads["a"].item(), grads["b"].item()) == pytest.approx((0.6, 0.8), rel=1e-4)


def test_the_rate_rises_for_four_percent_and_ends_at_zero() -> None:
    settings = FitSettings(num_steps=100, learning_rate=1.0)
    rates = [learning_rate(step, settings) for step in range(101)]
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates[52] == pytest.approx(0.5)
    assert rates[100] == pytest.approx(0.0)
    assert FitSettings().peak_rate == 4e-3
    assert FitSettings(optimiser="adamw").peak_rate == 6e-4
