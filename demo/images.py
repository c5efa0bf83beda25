"""The demonstration of pictures drawn from the policy's own states: both tasks from rows to answers, on a CPU with tiny real models.

    make demo-images             # or: python -m demo.images

Policy, Qwen-Image and Qwen-Image-Edit have random weights, and the judge is a server on this machine whose answers follow from a hash, so
the scores mean nothing. Everything else is the product's own: the data sets' columns, the states, the pipelines, the judges' protocols,
the cache. A source is scaled to 128x128 pixels and not to the published 1024x1024, which would take half a minute a picture here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.table import Table

from demo.__main__ import console, in_one_line, speak  # sets the CPU first
from demo.enhance import steps
from demo.judge_server import Asked, JudgeServer, Said, plausible, seen_or_not
from qwen_vl_grpo import config
from qwen_vl_grpo.interfaces import RunCard

FOLDER = Path("outputs/demo/images")
TASKS = {"text_to_image": "Draw how a chick hatches.", "image_edit": "Paint the wall blue."}
"""Each task with what it is asked at the end."""


def main() -> None:
    speak()
    prepare()
    for task, question in TASKS.items():
        started = time.perf_counter()
        run(task)
        ask(f"{task.replace('_', '-')}-demo", question, FOLDER / "room.png" if task == "image_edit" else None)
        console.print(f"{time.perf_counter() - started:.0f} s for {task}\n")


def prepare() -> None:
    """Write the policy, both pipelines, whose text encoder it is, and the rows of both data sets."""
    import torch
    from transformers.utils import logging as transformers_logging

    from demo import edit_rows, knowledge_rows, tiny_qwen, tiny_qwen_image

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    transformers_logging.disable_progress_bar()
    shutil.rmtree(FOLDER, ignore_errors=True)
    weights = tiny_qwen.build(FOLDER / "policy", vocabulary=800)
    tiny_qwen_image.build(FOLDER / "qwen-image", "qwen_image", FOLDER / "policy")
    tiny_qwen_image.build(FOLDER / "qwen-image-edit", "qwen_image_edit", FOLDER / "policy")
    edit_rows.write(FOLDER / "edits")
    knowledge_rows.write(FOLDER / "knowledge")
    edit_rows.rows("test_syn")[0]["image"].save(FOLDER / "room.png")
    console.print(f"a policy of {weights / 1e6:.2f} million weights, a tiny Qwen-Image and Qwen-Image-Edit, all random, in {FOLDER}")


def run(task: str) -> None:
    """Train with the judge's server, then again from what was recorded, with nothing drawn and no server."""
    from demo import tiny_qwen_image
    from qwen_vl_grpo import training

    file = f"configs/demo/{task}.yaml"
    with tiny_qwen_image.small_sources():
        with JudgeServer(answer) as server:
            given = config.load(file, [f"judge.base_url={server.url}"])
            card = training.train(given)
            asked = len(server.asked)
        again = training.train(config.load(file, [f"run_id={given.run_id}-replay", "judge.replay=only"]))
    show(card, again, steps(given), asked)


def answer(asked: Asked) -> Said:
    """What the schema wants, and yes or no to every item of a list; each follows from a hash of the request."""
    return plausible(asked) if asked.schema else seen_or_not(asked)


def show(card: RunCard, again: RunCard, taken: list[dict[str, Any]], asked: int) -> None:
    """The mean of each part over the steps, and what the replay came to."""
    table = Table(title=f"{card.run_id}: means over {len(taken)} steps", title_style="bold")
    for column in ("", "mean"):
        table.add_column(column, justify="left" if not column else "right")
    for name in sorted(taken[0]):
        if name.startswith(("rendered/", "judge/")) or name in ("reward", "reward_std"):
            found = [step[name] for step in taken if name in step]
            table.add_row(name, f"{sum(found) / len(found):.3f}")
    console.print(table)
    same = "the same" if again.metrics["after"] == card.metrics["after"] else "OTHER"
    spent = f"{again.metrics['train_seconds']:.0f} s instead of {card.metrics['train_seconds']:.0f} s"
    console.print(
        f"{asked} questions to the judge; replayed from its recording with nothing drawn and no server: {spent}, and {same} scores"
    )


def ask(run_id: str, question: str, picture: Path | None) -> None:
    command = ["src/inference/inference.py", "--run_id", run_id, *(["--image_path", str(picture)] if picture else []), "--prompt", question]
    console.print(f'$ python3 {" ".join(command[:-1])} "{question}"', soft_wrap=True)
    subprocess.run([sys.executable, *command], check=True)


if __name__ == "__main__":
    in_one_line(main)
