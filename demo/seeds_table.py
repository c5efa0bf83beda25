"""What the pages of the demonstrations say of each seed, read from run cards and from what the command measured at its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qwen_vl_grpo import registry
from qwen_vl_grpo.interfaces import RunCard

SEEDS = (0, 1, 2)
HEADER = (
    "| seed | sampled before | sampled after | 95 % interval | greedy before | greedy after | 95 % interval | CPU, s |",
    "|---|---|---|---|---|---|---|---|",
)
Ends = dict[str, Any]
"""What a command measured when it was through: controls, and seconds."""


def finished(run_id: Callable[[int], str], ends_file: Callable[[int], Path]) -> list[tuple[int, RunCard, Ends]]:
    """Each seed that was trained, with its card and ends; raises RegistryError if the first was not."""
    registry.resolve(run_id(0))
    done = [seed for seed in SEEDS if ends_file(seed).is_file()]
    return [(seed, registry.resolve(run_id(seed))[0], json.loads(ends_file(seed).read_text(encoding="utf-8"))) for seed in done]


def row(seed: int, card: RunCard, ends: Ends) -> str:
    """The line of one seed under HEADER."""
    cells = [str(seed)]
    for kind in ("sampled", "greedy"):
        before, after = card.metrics["before"][kind], card.metrics["after"][kind]
        cells += [f"{before['correct']:.3f}", f"{after['correct']:.3f}", between(after)]
    return "| " + " | ".join([*cells, str(ends["cpu_seconds"])]) + " |"


def between(scores: dict[str, Any]) -> str:
    low, high = scores["interval"]
    return f"{low:.3f} to {high:.3f}"
