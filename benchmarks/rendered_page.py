"""What benchmarks/rendered_rows.py found, as Markdown: python -m benchmarks.rendered_page [FOLDER of the JSON files]

docs/rendered_rewards.md holds those of docs/gpu_rows, written by docs/generate.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PEAKS = ("allocated at most, GiB", "in use at most, GiB")


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Tables of what was found, one for each row."""
    return "\n\n".join(map(table, rows)) + "\n"


def table(row: dict[str, Any]) -> str:
    """Seconds and memory of each phase, and what was found beside the steps."""
    settings = row["settings"]
    size = f"{settings['side']}x{settings['side']} in {settings['denoising']} denoising steps"
    work = f"{row['completions']} completions of {row['tokens']} tokens, {row['pictures a step']} pictures of {size}"
    versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
    lines = [
        f"### {row['row']}: {row['cards']} x {row['card']}, {row['date']}",
        "",
        f"{work}; medians of {max(1, len(row['steps']) - 1)} steps. {versions}.",
        "",
        "| phase | seconds | torch's peak by card, GiB | card's peak, GiB |",
        "|---|---:|---:|---:|",
    ]
    for phase, seconds in row["seconds a step"].items():
        peaks = (most(row[kind] if phase == "whole" else {phase: row[kind].get(phase, {})}) for kind in PEAKS)
        lines.append(f"| {phase} | {seconds:.2f} | {' | '.join(peaks)} |")
    held, renderer = row["weights, GiB"]["policy, adapter, engine"], row["weights, GiB"]["renderer"]
    weights = f"policy, adapter and engine {', '.join(f'{gib:.1f} on {card}' for card, gib in held.items())}; renderer {renderer:.1f}"
    beside = {"held before the first step, GiB": weights, "judge alone, seconds": row["judge alone, seconds"]} | row.get("renderer", {})
    beside |= {"memory as documented": row["documented"]} if "documented" in row else {}
    return "\n".join([*lines, "", *(f"- {name}: {value}" for name, value in beside.items())])


def most(phases: dict[str, dict[str, float]]) -> str:
    """The most that each card held; a dash where nobody looked."""
    cards = sorted({card for held in phases.values() for card in held})
    return ", ".join(f"{max(held[card] for held in phases.values() if card in held):.1f}" for card in cards) or "-"


def found(folder: Path) -> list[dict[str, Any]]:
    """Every row of rendered_rows.py in a folder."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("rendered-*.json"))]


if __name__ == "__main__":
    print(page(found(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("outputs/gpu/rows"))))
