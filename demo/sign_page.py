"""Write docs/sign_demo.md from the run cards of the sign demonstration's seeds.

make demo-sign && .venv/bin/python -m demo.sign_page        # one seed or more
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from demo.__main__ import in_one_line
from demo.sign import ends_file, run_id
from demo.sign_reader import SignReader
from demo.sign_words import COPIED, RIGHT
from qwen_vl_grpo import registry
from qwen_vl_grpo.interfaces import RunCard

PAGE = Path("docs/sign_demo.md")
SEEDS = (0, 1, 2)


def main() -> None:
    first = registry.resolve(run_id(0))[0]
    done = [seed for seed in SEEDS if ends_file(seed).is_file()]
    runs = [(seed, registry.resolve(run_id(seed))[0], json.loads(ends_file(seed).read_text(encoding="utf-8"))) for seed in done]
    rows, answers = first.metrics["after"]["greedy"]["rows"], first.metrics["after"]["sampled"]["n"]
    page = [
        "# The sign demonstration: a picture as the reward",
        "<!-- Written by `python -m demo.sign_page` from the run cards of `make demo-sign`; train again instead of editing. -->\n",
        "A tiny Qwen2.5-VL (a million random weights) is asked for a sign in words: `the opposite of open`, `three plus four in words`, "
        "`what comes after may`. What it answers is painted on a board of 160x32 pixels (Pillow, the same picture every time), and a real "
        f"text recogniser reads the picture ({SignReader.identity}). The reward is 1 if it reads `closed`, `seven`, `june`, else 0. "
        "A sign that cannot be read has no score.",
        "",
        f"The supervised warm-up imitates targets of which {RIGHT:.0%} are right, {COPIED:.0%} repeat a word of the prompt and the rest "
        "are words drawn at random. GRPO then sees nothing but the reward. Every fact is asked in six ways; a held-out prompt asks for a "
        "known fact in a way in which that fact was never asked. Settings were chosen on the validation prompts (the steps were raised "
        "from 120 to 200 after that, without another look), and the test prompts used for the numbers below alone.",
        "",
        f"{rows} held-out prompts (split `{first.dataset['held_out']}`), {answers // rows} sampled answers each. Counted is what the "
        f"recogniser read. {first.hardware['machine']}, {first.hardware['cores']} cores, one thread used; the "
        f"last column is the CPU time of the whole command. Python {first.hardware['python']}, torch {first.versions['torch']}, "
        f"transformers {first.versions['transformers']}, trl {first.versions['trl']}.",
        "",
        "| seed | sampled before | sampled after | 95 % interval | greedy before | greedy after | 95 % interval | CPU, s |",
        "|---|---|---|---|---|---|---|---|",
        *(row(seed, card, ends) for seed, card, ends in runs),
        "",
        "The interval counts one answer a prompt.",
        "",
        "## What signs earn that nobody derived",
        "",
        f"The same judge, the same {rows} prompts. The most frequent sign is the training prompts', and any sign is drawn from theirs.",
        "",
        "| | " + " | ".join(f"seed {seed}" for seed in done) + " |",
        "|---|" + "---|" * len(done),
        *(f"| {name} | " + " | ".join(f"{ends['controls'][name]:.3f}" for _, _, ends in runs) + " |" for name in runs[0][2]["controls"]),
        "",
        "## What may be claimed",
        "",
        "GRPO raised the share of signs that say what was asked for, and nothing told the policy so but what was read on pictures. Not "
        "that it found a fact by itself: no held-out prompt asks for a fact that training never asked for. Nor that GRPO is the only way: "
        "no supervised rival was given the same time here, as `make demo-control` does for the digits.",
    ]
    PAGE.write_text("\n".join(page) + "\n", encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


def row(seed: int, card: RunCard, ends: dict[str, Any]) -> str:
    before, after = card.metrics["before"], card.metrics["after"]
    cells = [str(seed)]
    for kind in ("sampled", "greedy"):
        low, high = after[kind]["interval"]
        cells += [f"{before[kind]['correct']:.3f}", f"{after[kind]['correct']:.3f}", f"{low:.3f} to {high:.3f}"]
    return "| " + " | ".join([*cells, str(ends["cpu_seconds"])]) + " |"


if __name__ == "__main__":
    in_one_line(main)
