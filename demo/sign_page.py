"""Write docs/sign_demo.md from the run cards of the sign demonstration's seeds.

make demo-sign && .venv/bin/python -m demo.sign_page        # one seed or more
"""

from __future__ import annotations

from pathlib import Path

from demo.__main__ import in_one_line
from demo.seeds_table import HEADER, finished, row
from demo.sign import ends_file, run_id
from demo.sign_reader import SignReader
from demo.sign_words import COPIED, RIGHT

PAGE = Path("docs/sign_demo.md")


def main() -> None:
    runs = finished(run_id, ends_file)
    first = runs[0][1]
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
        *HEADER,
        *(row(seed, card, ends) for seed, card, ends in runs),
        "",
        "The interval counts one answer a prompt.",
        "",
        "## What signs earn that nobody derived",
        "",
        f"The same judge, the same {rows} prompts. The most frequent sign is the training prompts', and any sign is drawn from theirs.",
        "",
        "| | " + " | ".join(f"seed {seed}" for seed, _, _ in runs) + " |",
        "|---|" + "---|" * len(runs),
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


if __name__ == "__main__":
    in_one_line(main)
