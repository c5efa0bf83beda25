"""What a run takes as it goes: memory of its card by phase, memory of the machine, seconds a step."""

from __future__ import annotations

import resource
import statistics
import time
from typing import Any

import torch
from transformers import TrainerCallback

from qwen_vl_grpo.footprint import GIB
from qwen_vl_grpo.plan_figures import CARD, HOST, RESERVED, SECONDS, TORCH
from qwen_vl_grpo.rollouts import FaithfulGeneration

PLACES = {"start": ("engine awake",), "generate": ("generating", "after generating")}
"""Phase -> what the engine calls the moments at which it looked at the card's free memory."""


class Peaks(TrainerCallback):
    """GiB in use on the card when the engine starts, when it generates, and before the optimizer, when torch still keeps whatever the
    backward pass took. `held` is what others held of the card before the run."""

    def __init__(self, held: float = 0.0):
        self.held = held
        self.in_use: dict[str, float] = {}
        self.seconds: list[float] = []
        self._since = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._since = time.perf_counter()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if torch.cuda.is_available():
            free, total = torch.cuda.mem_get_info()
            self.in_use["backward"] = max(self.in_use.get("backward", 0.0), (total - free) / GIB)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seconds.append(time.perf_counter() - self._since)

    def found(self, engine: Any) -> dict[str, float]:
        """Every figure of the run under its name in plan_figures.py; the first step, which warms up, is not among the seconds."""
        figures = {HOST: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB}
        if self.seconds:
            figures[SECONDS] = statistics.median(self.seconds[1:] or self.seconds)
        if not torch.cuda.is_available():
            return figures
        if isinstance(engine, FaithfulGeneration):
            total = torch.cuda.mem_get_info()[1] / GIB
            for phase, moments in PLACES.items():
                if free := [engine.memory[moment] for moment in moments if moment in engine.memory]:
                    self.in_use[phase] = total - min(free)
        figures |= {CARD.format(phase): gib - self.held for phase, gib in self.in_use.items()}
        figures[TORCH] = torch.cuda.max_memory_allocated() / GIB
        figures[RESERVED] = torch.cuda.max_memory_reserved() / GIB
        return figures
