"""The demonstration: a tiny Qwen-VL policy learns to read scanned digits on a CPU, and answers by its run_id.

    make demo            # or: python -m demo --seed 1

Every step but the first is the product's own: the same config, trainer, evaluator, registry and inference as a 7B run.
"""

from __future__ import annotations

import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the demonstration is about a CPU, and its numbers are a CPU's
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two threads beside another busy program stall at random; one does not

import argparse
import json
import logging
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from qwen_vl_grpo import config, hardware
from qwen_vl_grpo.errors import GrpoError
from qwen_vl_grpo.interfaces import RunCard

OUTPUTS = Path("outputs/demo")
console = Console(highlight=False)


def demo_config(seed: int, overrides: list[str]) -> config.RunConfig:
    return seeded("digits", run_id(seed), f"base-s{seed}", f"digits-s{seed}", seed, overrides)


def seeded(name: str, run: str, base: str, data: str, seed: int, overrides: Sequence[str]) -> config.RunConfig:
    """The config of a demonstration for one seed, with a model and data of its own."""
    model, rows = f"{OUTPUTS}/{base}", f"{OUTPUTS}/{data}"
    own = [f"run_id={run}", f"seed={seed}", f"model_name={model}", f"dataset_name={rows}", f"warmup.dataset_name={rows}"]
    return config.load(f"configs/demo/{name}.yaml", [*own, *overrides])


def run_id(seed: int) -> str:
    return "digits-demo" if seed == 0 else f"digits-demo-s{seed}"


def main() -> None:
    given = arguments("make demo", "Train, score and ask a tiny Qwen-VL policy on this CPU.", "digits")
    speak()
    run = demo_config(given.seed, given.set)
    started = time.perf_counter()
    prepare(run, given.seed)
    card = train(run)
    show(card, time.perf_counter() - started)
    ask(run)


def arguments(prog: str, description: str, name: str) -> argparse.Namespace:
    """The seed of a demonstration, and changes of its config."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="key=value", help=f"change one key of configs/demo/{name}.yaml")
    return parser.parse_args()


def speak() -> None:
    """Show what the product tells about its work, and nothing of the libraries."""
    hardware.quiet_libraries()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("qwen_vl_grpo").setLevel(logging.INFO)


def prepare(run: config.RunConfig, seed: int) -> None:
    import torch
    from transformers.utils import logging as transformers_logging

    from demo import digits, tiny_qwen

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    transformers_logging.disable_progress_bar()
    rows = digits.write(Path(run.dataset_name), seed)
    console.print(f"data: {', '.join(f'{count} {name}' for name, count in rows.items())} scanned digits in {run.dataset_name}")
    weights = tiny_qwen.build(run.model_name, seed=seed)
    console.print(f"model: a random Qwen2.5-VL of {weights / 1e6:.2f} million weights in {run.model_name}")


def train(run: config.RunConfig) -> RunCard:
    from qwen_vl_grpo import training

    return training.train(run)


def show(card: RunCard, seconds: float) -> None:
    """Lead with what reinforcement did; the rest says how far the claim goes."""
    before, after, blind = card.metrics["before"], card.metrics["after"], card.metrics["blind"]
    table = Table(title=f"{card.run_id}: held-out digits, before and after GRPO", title_style="bold")
    for column in ("well-formed and right", "n", "before", "after"):
        table.add_column(column, justify="left" if column == "well-formed and right" else "right")
    for kind, name in (("sampled", "sampled answers, temperature 1"), ("greedy", "greedy answers")):
        table.add_row(name, str(after[kind]["n"]), f"{before[kind]['correct']:.3f}", f"{after[kind]['correct']:.3f}")
    table.add_section()
    for kind in ("sampled", "greedy"):
        shares = (f"{scores[kind]['format']:.3f}" for scores in (before, after))
        table.add_row(f"  well-formed, right or wrong ({kind})", str(after[kind]["n"]), *shares)
    table.add_row("  greedy, shown a white picture", str(blind["n"]), "", f"{blind['correct']:.3f}")
    console.print(table)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
    console.print(
        f"{seconds:.0f} s in all, {card.metrics['train_seconds']:.0f} s of them GRPO; {memory:.1f} GiB of memory at most.\n"
        "What GRPO did is in the first row. How far the claim goes: make demo-control spends the same time on supervised steps instead "
        "(docs/demo_results.md)."
    )


def ask(run: config.RunConfig) -> None:
    """Answer one held-out picture the way a user would: in a new process, knowing only the run_id."""
    row: dict[str, Any] = json.loads((Path(run.dataset_name) / "test.jsonl").read_text(encoding="utf-8").splitlines()[0])
    picture = f"{run.dataset_name}/{row['image']}"
    command = ["src/inference/inference.py", "--run_id", run.run_id, "--image_path", picture, "--prompt", row["question"]]
    console.print(f'\n$ python3 {" ".join(command[:-1])} "{command[-1]}"', soft_wrap=True)
    subprocess.run([sys.executable, *command], check=True)
    console.print(f"(the scan shows a {row['answer']})")


def in_one_line(story: Callable[[], None]) -> None:
    """Run a demonstration; an error that a user can mend becomes one line and exit code 1, as on the command line."""
    try:
        story()
    except GrpoError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    in_one_line(main)
