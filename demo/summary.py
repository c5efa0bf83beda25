"""Write docs/demo_results.md from the run cards of the demo's three seeds and the control's table.

make show            # trains three seeds and the control, then writes the page
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from demo.__main__ import OUTPUTS, in_one_line, run_id
from qwen_vl_grpo import registry
from qwen_vl_grpo.interfaces import RunCard

PAGE = Path("docs/demo_results.md")
SEEDS = (0, 1, 2)


def main() -> None:
    cards = [registry.resolve(run_id(seed))[0] for seed in SEEDS]
    first = cards[0]
    page = [
        "# The demonstration: what it showed",
        "<!-- Written by `make show` from the run cards; train again instead of editing. -->\n",
        f"{first.metrics['after']['greedy']['rows']} held-out digits (split `{first.dataset['held_out']}`), four sampled answers each. "
        f"Counted is what is well-formed and right. {first.hardware['machine']}, {first.hardware['cores']} cores, one thread used; "
        f"Python {first.hardware['python']}, torch {first.versions['torch']}, transformers {first.versions['transformers']}, "
        f"trl {first.versions['trl']}.",
        "",
        "| seed | sampled before | sampled after | 95 % interval | greedy before | greedy after | white picture | GRPO, s |",
        "|---|---|---|---|---|---|---|---|",
        *(row(seed, card) for seed, card in zip(SEEDS, cards, strict=True)),
        "",
        f"Mean of greedy after: {sum(card.metrics['after']['greedy']['correct'] for card in cards) / len(cards):.3f}.",
        *control(),
    ]
    PAGE.write_text("\n".join(page) + "\n", encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


def row(seed: int, card: RunCard) -> str:
    before, after = card.metrics["before"], card.metrics["after"]
    low, high = after["sampled"]["interval"]
    cells: list[Any] = [seed, before["sampled"]["correct"], after["sampled"]["correct"], f"{low:.3f} to {high:.3f}"]
    cells += [before["greedy"]["correct"], after["greedy"]["correct"], card.metrics["blind"]["correct"], card.metrics["train_seconds"]]
    return "| " + " | ".join(f"{cell:.3f}" if isinstance(cell, float) and cell <= 1 else str(cell) for cell in cells) + " |"


def control() -> list[str]:
    """The control's table, where `make demo-control` has been run for seed 0."""
    path = OUTPUTS / "control-s0.json"
    if not path.is_file():
        return []
    rows = json.loads(path.read_text(encoding="utf-8"))
    return [
        "",
        "## The control, seed 0",
        "",
        "The same time from the same warmed-up policy, spent on supervised steps instead (`make demo-control`; in brackets: how many). "
        "GRPO's settings were chosen on the validation part, the rivals' learning rate was not tuned.",
        "",
        "| | sampled | greedy | sampled, well-formed |",
        "|---|---|---|---|",
        *(
            f"| {name} | {scores['sampled']['correct']:.3f} | {scores['greedy']['correct']:.3f} | {scores['sampled']['format']:.3f} |"
            for name, scores in rows.items()
        ),
    ]


if __name__ == "__main__":
    in_one_line(main)
