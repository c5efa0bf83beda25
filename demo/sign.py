"""The demonstration of a picture as the reward: a policy is asked for signs, they are painted, and a text recogniser reads them back.

    make demo-sign       # or: python -m demo.sign --seed 1

The painter stands where a diffusion model stands in a run of full size; policy, trainer, cache of judgements, evaluator, registry and
inference are the product's own, and the judge is a real one.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table

from demo.__main__ import OUTPUTS, arguments, console, in_one_line, seeded, speak, train  # sets the CPU first
from qwen_vl_grpo import config
from qwen_vl_grpo.interfaces import RunCard

VOCABULARY = 480
"""Entries of the tokenizer: four signs of five are one token, the others are spelled."""


def sign_config(seed: int, overrides: Sequence[str]) -> config.RunConfig:
    return seeded("sign", run_id(seed), f"sign-base-s{seed}", f"sign-s{seed}", seed, overrides)


def run_id(seed: int) -> str:
    return "sign-demo" if seed == 0 else f"sign-demo-s{seed}"


def main() -> None:
    given = arguments("make demo-sign", "Train a tiny policy on signs that a text recogniser reads.", "sign")
    speak()
    run = sign_config(given.seed, given.set)
    started = time.perf_counter()
    prepare(run, given.seed)
    earned = controls(run)  # first, for it says at once whether there is a judge
    card = train(run)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time()
    ends = {"seconds": round(seconds), "cpu_seconds": round(cpu_seconds), "controls": earned}
    ends_file(given.seed).write_text(json.dumps(ends, indent=2), encoding="utf-8")
    show(card, ends)
    ask(run)


def prepare(run: config.RunConfig, seed: int) -> None:
    import torch
    from transformers.utils import logging as transformers_logging

    from demo import sign_words, tiny_qwen
    from demo.sign_task import SYSTEM_PROMPT

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    transformers_logging.disable_progress_bar()
    rows = sign_words.write(Path(run.dataset_name), seed)
    console.print(f"data: {', '.join(f'{count} {name}' for name, count in rows.items())} prompts in {run.dataset_name}")
    phrases = [row[column] for row in sign_words.splits()["train"] for column in ("question", "answer")]
    phrases += ["system", "user", "assistant", SYSTEM_PROMPT]
    weights = tiny_qwen.build(run.model_name, seed=seed, phrases=phrases, vocabulary=VOCABULARY)
    console.print(f"model: a random Qwen2.5-VL of {weights / 1e6:.2f} million weights in {run.model_name}")


def rows_of(run: config.RunConfig, split: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (Path(run.dataset_name) / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def controls(run: config.RunConfig) -> dict[str, float]:
    """The reward of policies that derive nothing, on the held-out prompts and by the same judge."""
    from demo import sign_task

    held_out = rows_of(run, str(run.evaluation.dataset_split))
    samples = [sign_task.read_row(row, run.data, sign_task.SYSTEM_PROMPT) for row in held_out]
    trained_on = [row["answer"] for row in rows_of(run, "train")]
    draw = random.Random(run.seed)
    signs = {
        "the prompt, copied": [row["question"] for row in held_out],
        "a word of the prompt, copied": [draw.choice(row["asked_with"].split()) for row in held_out],
        "the most frequent sign": [max(sorted(set(trained_on)), key=trained_on.count)] * len(held_out),
        "any sign": [draw.choice(sorted(set(trained_on))) for _ in held_out],
    }
    right = {name: map(sign_task.judge, completions, samples) for name, completions in signs.items()}
    return {name: round(fmean(bool(verdict.correct) for verdict in verdicts), 4) for name, verdicts in right.items()}


def show(card: RunCard, ends: dict[str, Any]) -> None:
    """Lead with what reinforcement did; below it what signs earn that nobody derived."""
    before, after = card.metrics["before"], card.metrics["after"]
    table = Table(title=f"{card.run_id}: held-out signs, before and after GRPO", title_style="bold")
    for column in ("the words asked for are read on the sign", "n", "before", "after"):
        table.add_column(column, justify="right" if len(column) < 10 else "left")
    for kind, name in (("sampled", "sampled answers, temperature 1"), ("greedy", "greedy answers")):
        table.add_row(name, str(after[kind]["n"]), f"{before[kind]['correct']:.3f}", f"{after[kind]['correct']:.3f}")
    table.add_section()
    for name, score in ends["controls"].items():
        table.add_row(f"  {name}", str(after["greedy"]["n"]), *[f"{score:.3f}"] * 2)
    console.print(table)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
    console.print(
        f"{ends['seconds']} s in all ({ends['cpu_seconds']} s of them on a CPU), {card.metrics['train_seconds']:.0f} s of them GRPO; "
        f"{memory:.1f} GiB of memory at most."
    )


def ask(run: config.RunConfig) -> None:
    """Ask for one held-out sign the way a user would, in a new process that knows only the run_id; then paint it and read it."""
    from demo import sign_painter, sign_reader
    from qwen_vl_grpo.interfaces import RenderRequest

    row = rows_of(run, "test")[0]
    command = ["src/inference/inference.py", "--run_id", run.run_id, "--prompt", row["question"]]
    console.print(f'\n$ python3 {" ".join(command[:-1])} "{command[-1]}"', soft_wrap=True)
    sign = subprocess.run([sys.executable, *command], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    console.print(sign)
    picture = sign_painter.paint(sign_painter.words_of(sign))
    if isinstance(picture, Exception):
        console.print(f"({picture}, and {row['answer']!r} was asked for)")
        return
    path = Path(run.dataset_name) / "sign.png"
    picture.save(path)
    (said,) = sign_reader.reader().judge([(RenderRequest(row["question"], sign, seed=0, rubric=row["answer"]), picture)])
    console.print(f"({path}: {getattr(said, 'reason', said)}, and {row['answer']!r} was asked for)")


def ends_file(seed: int) -> Path:
    """What a card does not hold: time in all, and the scores of the controls."""
    return OUTPUTS / f"sign-s{seed}.json"


if __name__ == "__main__":
    in_one_line(main)
