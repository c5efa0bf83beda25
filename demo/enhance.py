"""The demonstration of rendered rewards: rewrite, draw, judge, learn, replay and answer, on a CPU with tiny real models.

    make demo-enhance            # or: python -m demo.enhance

Renderer and judge have random weights, so the pictures are noise and their score means nothing. What is learned is what the
penalty teaches: not to copy the prompt. Every part but the weights is the product's own.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from rich.table import Table

from demo.__main__ import console, in_one_line, speak  # sets the CPU first
from qwen_vl_grpo import config
from qwen_vl_grpo.interfaces import RunCard

FOLDER = Path("outputs/demo/enhance")
COLOURS = ["red", "green", "blue", "purple", "yellow", "white", "black", "pink"]
THINGS = ["cat", "dog", "rabbit", "wheel", "whale", "banana", "clock", "snail"]
STYLES = (
    "soft morning light, highly detailed, 4k", "studio lighting, sharp focus, high quality", "cinematic mood, intricate, professional",
    "golden hour glow, photorealistic, 8k",
)  # fmt: skip
COPIED = 0.6
"""Share of the warm-up's targets that only repeat their prompt, so that something is left for reinforcement to improve."""


def main() -> None:
    speak()
    started = time.perf_counter()
    shutil.rmtree(FOLDER, ignore_errors=True)
    prepare()
    from qwen_vl_grpo import training

    run = config.load("configs/demo/enhance.yaml")
    card = training.train(run)
    replayed = training.train(config.load("configs/demo/enhance.yaml", ["run_id=enhance-demo-replay", "judge.replay=only"]))
    show(card, replayed, steps(run))
    ask(run.run_id)
    console.print(f"\n{time.perf_counter() - started:.0f} s in all")


def prepare() -> None:
    """Write the three models, and prompts with the targets of the warm-up."""
    import torch
    from transformers.utils import logging as transformers_logging

    from demo import tiny_pictures, tiny_qwen

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    transformers_logging.disable_progress_bar()
    prompts = [f"a {colour} {thing}" for colour in COLOURS for thing in THINGS]
    phrases = ["system", "user", "assistant", "Rewrite the prompt.", *prompts, *(f", {style}" for style in STYLES)]
    weights = tiny_qwen.build(FOLDER / "policy", "qwen2_vl", phrases=phrases, vocabulary=1000)
    tiny_pictures.sd3(FOLDER / "sd3")
    tiny_pictures.clip(FOLDER / "clip")
    noise = random.Random(0)
    noise.shuffle(prompts)
    (FOLDER / "data").mkdir()
    (FOLDER / "data/train.txt").write_text("\n".join(prompts[16:]) + "\n")
    (FOLDER / "data/test.txt").write_text("\n".join(prompts[:16]) + "\n")
    rows = []
    for prompt in prompts[16:] * 10:
        rewritten = prompt if noise.random() < COPIED else f"{prompt}, {noise.choice(STYLES)}"
        rows.append(json.dumps({"prompt": prompt, "target": rewritten}))
    (FOLDER / "data/warmup.jsonl").write_text("\n".join(rows) + "\n")
    console.print(f"a policy of {weights / 1e6:.2f} million weights, a tiny SD3 and a tiny CLIP, all random, in {FOLDER}")


def steps(run: config.RunConfig) -> list[dict]:
    lines = map(json.loads, (run.run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if "reward" in line]


def show(card: RunCard, replayed: RunCard, taken: list[dict]) -> None:
    """Before and after, where the time of a step went, and what the replay came to."""
    table = Table(title=f"{card.run_id}: held-out prompts, before and after GRPO", title_style="bold")
    for column in ("", "n", "before", "after"):
        table.add_column(column, justify="left" if not column else "right")
    for kind in ("sampled", "greedy"):
        before, after = card.metrics["before"][kind], card.metrics["after"][kind]
        table.add_row(f"quality, of 5 ({kind})", str(after["n"]), f"{before['quality']:.2f}", f"{after['quality']:.2f}")
        table.add_row(f"reward ({kind})", str(after["n"]), *(f"{scores['rewards']['rendered_reward']:.3f}" for scores in (before, after)))
    console.print(table)
    mean = {name: sum(step[name] for step in taken) / len(taken) for name in taken[0] if name.startswith("rendered/")}
    console.print(
        f"a step: {mean['rendered/render_seconds']:.2f} s of drawing, {mean['rendered/judge_seconds']:.2f} s of judging, "
        f"{mean['rendered/seconds']:.2f} s in all, {mean['rendered/remembered']:.0%} of the pictures remembered"
    )
    same = "the same" if replayed.metrics["after"] == card.metrics["after"] else "OTHER"
    spent = f"{replayed.metrics['train_seconds']:.0f} s instead of {card.metrics['train_seconds']:.0f} s"
    console.print(f"replayed from {FOLDER}/judgements.sqlite, with nothing drawn or judged: {spent}, and {same} scores")


def ask(run_id: str) -> None:
    command = ["src/inference/inference.py", "--run_id", run_id, "--prompt", "a purple rabbit"]
    console.print(f'\n$ python3 {" ".join(command[:-1])} "{command[-1]}"', soft_wrap=True)
    subprocess.run([sys.executable, *command], check=True)


if __name__ == "__main__":
    in_one_line(main)
