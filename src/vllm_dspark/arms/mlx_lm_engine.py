"""Plain mlx_lm: its network, cache, sampler and continuous batching, as it ships."""

import time
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx_lm
import psutil
from mlx_lm.generate import BatchGenerator, generate_step

from vllm_dspark.arms.spec import Answer, ArmSpec, Ask, Run


def make_engine(spec: ArmSpec) -> "PlainEngine":
    """Load the model of a spec, computing in the spec's type as ours does."""
    model, tokenizer = mlx_lm.load(spec.model)
    model.set_dtype(getattr(mx, spec.dtype))
    return PlainEngine(model, tokenizer)


class PlainEngine:
    """mlx_lm's batch generator under so many clients."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model = model
        self._ends = sorted(tokenizer.eos_token_ids)

    def generate(self, asks: Sequence[Ask], clients: int) -> Run:
        """Answer requests; a client sends its next one when the last is answered."""
        if clients == 1:
            start = time.perf_counter()
            answers = tuple(self._alone(ask) for ask in asks)
            return Run(answers, time.perf_counter() - start)
        return self._together(asks, clients)

    def _alone(self, ask: Ask) -> Answer:
        start = time.perf_counter()
        prompt = mx.array(list(ask.token_ids))
        tokens, first = [], 0.0
        for token, _ in generate_step(prompt, self._model, max_tokens=ask.max_tokens):
            tokens.append(int(token))
            first = first or time.perf_counter() - start
            if tokens[-1] in self._ends and not ask.ignore_eos:
                break
        return Answer(tuple(tokens), first, time.perf_counter() - start)

    def _together(self, asks: Sequence[Ask], clients: int) -> Run:
        stops = [] if asks[0].ignore_eos else [[token] for token in self._ends]
        generator = BatchGenerator(
            self._model,
            stop_tokens=stops,
            completion_batch_size=clients,
            prefill_batch_size=clients,
        )
        start = time.perf_counter()
        waiting = list(enumerate(asks))[::-1]
        live: dict[int, tuple[int, float, list[float], list[int]]] = {}
        done: dict[int, Answer] = {}
        while waiting or live:
            while waiting and len(live) < clients:
                index, ask = waiting.pop()
                (uid,) = generator.insert([list(ask.token_ids)], [ask.max_tokens])
                live[uid] = (index, time.perf_counter(), [], [])
            for response in generator.next_generated():
                index, sent, times, tokens = live[response.uid]
                tokens.append(int(response.token))
                times.append(time.perf_counter() - sent)
                if response.finish_reason is not None:
                    done[index] = Answer(tuple(tokens), times[0], times[-1])
                    del live[response.uid]
        seconds = time.perf_counter() - start
        generator.close()
        return Run(tuple(done[index] for index in range(len(asks))), seconds)

    def judge(self, token_ids: Sequence[int], token: int) -> tuple[int, float]:
        """Rank and margin of a token after a prefix, by one forward."""
        logits = self._model(mx.array([list(token_ids)]))[0, -1].astype(mx.float32)
        own = logits[token]
        rank = 1 + mx.sum(logits > own).item()
        return rank, (mx.max(logits) - own).item()

    def memory(self) -> dict[str, int]:
        """MLX's domains and resident size."""
        return {
            "mlx_active_bytes": mx.get_active_memory(),
            "mlx_peak_bytes": mx.get_peak_memory(),
            "mlx_cache_bytes": mx.get_cache_memory(),
            "resident_bytes": psutil.Process().memory_info().rss,
        }

    def reset_cache(self) -> None:
        """It keeps none between requests."""
