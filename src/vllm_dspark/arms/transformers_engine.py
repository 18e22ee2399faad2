"""transformers on torch: the naive reference, one request at a time."""

import os
import time
from collections.abc import Sequence
from typing import Any

import psutil
import torch
from transformers import AutoModelForCausalLM

from vllm_dspark.arms.spec import Answer, ArmSpec, Ask, Run


def make_engine(spec: ArmSpec) -> "TorchEngine":
    """Load the model of a spec."""
    torch.set_num_threads(os.cpu_count() or 1)
    model = AutoModelForCausalLM.from_pretrained(spec.model, dtype=getattr(torch, spec.dtype))
    return TorchEngine(model)


class TorchEngine:
    """A greedy loop with transformers' own cache."""

    def __init__(self, model: Any) -> None:
        self._model = model
        ends = model.generation_config.eos_token_id or []
        self._ends = ends if isinstance(ends, list) else [ends]

    def generate(self, asks: Sequence[Ask], clients: int) -> Run:
        """Answer requests one after the other, however many clients wait."""
        start = time.perf_counter()
        with torch.no_grad():
            answers = tuple(self._alone(ask) for ask in asks)
        return Run(answers, time.perf_counter() - start)

    def _alone(self, ask: Ask) -> Answer:
        start = time.perf_counter()
        inputs, past, tokens, first = torch.tensor([ask.token_ids]), None, [], 0.0
        while len(tokens) < ask.max_tokens:
            out = self._model(inputs, past_key_values=past, use_cache=True)
            past = out.past_key_values
            tokens.append(int(out.logits[0, -1].argmax()))
            first = first or time.perf_counter() - start
            if tokens[-1] in self._ends and not ask.ignore_eos:
                break
            inputs = torch.tensor([tokens[-1:]])
        return Answer(tuple(tokens), first, time.perf_counter() - start)

    def memory(self) -> dict[str, int]:
        """Resident size."""
        return {"resident_bytes": psutil.Process().memory_info().rss}

    def reset_cache(self) -> None:
        """It keeps none between requests."""
