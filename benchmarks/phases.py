"""Where the seconds and the memory of a training step go: phases that follow each other in the main thread and add up to the step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import torch
from transformers import TrainerCallback

LEARN = "learn"
"""What a step does outside every named phase: the loss, the backward pass, the optimizer."""


class Phases(TrainerCallback):
    """Seconds of each phase by step, and the most that each card held in it; a phase inside another is not counted in the outer one.

    `until` is when, on the clock of time.perf_counter, no further step is begun.
    """

    def __init__(self, until: float = float("inf")):
        self.steps: list[dict[str, float]] = []
        self.allocated: dict[str, dict[str, float]] = defaultdict(dict)
        """Phase -> card -> GiB that torch had handed out at most; the engine's pool is torch's, too, whether it sleeps or not."""
        self.in_use: dict[str, dict[str, float]] = defaultdict(dict)
        """The same of all memory in use on the card, whoever holds it; looked at every 5 ms."""
        self._until = until
        self._phases = [LEARN]
        self._seconds: dict[str, float] = defaultdict(float)
        self._since = time.perf_counter()
        self._cards = range(torch.cuda.device_count())

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        self._charge()
        self._phases.append(phase)
        try:
            yield
        finally:
            self._charge()
            self._phases.pop()

    def follow(self, holder: Any, method: str, phase: str) -> None:
        """Every call of a method is this phase."""
        work: Callable[..., Any] = getattr(holder, method)

        def followed(*arguments: Any, **named: Any) -> Any:
            with self.during(phase):
                return work(*arguments, **named)

        setattr(holder, method, followed)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._charge()
        self._seconds.clear()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._charge()
        self.steps.append({"whole": sum(self._seconds.values()), **self._seconds})
        self._seconds.clear()
        told = ", ".join(f"{name} {taken:.2f}" for name, taken in self.steps[-1].items())
        print(f"step {len(self.steps)}: {told} s", flush=True)
        if time.perf_counter() > self._until:
            control.should_training_stop = True

    def _charge(self) -> None:
        """Give what has passed since the last time to the phase that is now."""
        phase = self._phases[-1]
        for card in self._cards:
            torch.cuda.synchronize(card)
            held = torch.cuda.max_memory_allocated(card) / 2**30
            torch.cuda.reset_peak_memory_stats(card)
            self._most(self.allocated, phase, card, held)
        now = time.perf_counter()
        self._seconds[phase] += now - self._since
        self._since = now

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at the memory in use while this lasts."""
        done = Event()

        def look() -> None:
            while not done.wait(0.005):
                for card in self._cards:
                    free, total = torch.cuda.mem_get_info(card)
                    self._most(self.in_use, self._phases[-1], card, (total - free) / 2**30)

        watcher = Thread(target=look, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    @staticmethod
    def _most(found: dict[str, dict[str, float]], phase: str, card: int, gib: float) -> None:
        name = f"cuda:{card}"
        found[phase][name] = round(max(found[phase].get(name, 0.0), gib), 2)
