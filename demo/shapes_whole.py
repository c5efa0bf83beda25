"""The shapes demonstration with a language model that learns whole, for comparison: does the frozen DiT still read its states?

    make demo-shapes && python -m demo.shapes_whole      # --seed 1 for another

The same warmed-up policy, DiT and steps, at a few learning rates.
"""

from __future__ import annotations

import json
from pathlib import Path

from demo.__main__ import OUTPUTS, arguments, console, in_one_line, speak, train  # sets the CPU first
from demo.shapes import checkpoint, measured, run_id, shapes_config

RATES = (5e-5, 2e-4)


def main() -> None:
    given = arguments("python -m demo.shapes_whole", "Train all of the language model where make demo-shapes trains its head.", "shapes")
    speak()
    found = {}
    for rate in RATES:
        own = [f"run_id={run_id(given.seed, kind='whole')}", "lora.language=true", f"learning_rate={rate}"]
        run = shapes_config(given.seed, [*own, *given.set])
        found[f"{rate:g}"] = {name: of["whole"] for name, of in measured(run, {"whole": checkpoint(run, train(run))}).items()}
        console.print(f"learning rate {rate:g}: {found[f'{rate:g}']}")
        ends_file(given.seed).write_text(json.dumps(found, indent=2), encoding="utf-8")


def ends_file(seed: int) -> Path:
    """Learning rate -> the points of what was drawn after it."""
    return OUTPUTS / f"shapes-whole-s{seed}.json"


if __name__ == "__main__":
    in_one_line(main)
