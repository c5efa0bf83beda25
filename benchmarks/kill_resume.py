"""Kill a run with SIGKILL at ten random moments, resume it each time, and compare it with the same run left alone.

    make kill-resume                     # or: python -m benchmarks.kill_resume --kills 10 --seed 0

A tiny Qwen2.5-VL on a CPU, warmed up and scored before and after, over several epochs of few rows. Some kills fall in the start
(imports, warm-up, first scores), some between and within steps, some within a save. Everything that is not a time must be equal to
the last digit: losses, rewards, scores, and the final weights. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from demo import digits, tiny_qwen
from qwen_vl_grpo import attempts, checkpoints

PROJECT = Path(__file__).resolve().parents[1]
MOMENTS = ("start", "step", "save", "step", "step", "save", "step", "start", "save", "step")
CONFIG = {
    "output_dir": "runs", "model_name": "tiny", "dataset_name": "digits", "dataset_split": "train", "use_vllm": False,
    "learning_rate": 1e-3, "max_steps": 40, "save_steps": 2, "save_total_limit": 2, "batch_size": 8, "gradient_accumulation_steps": 2,
    "num_generations": 4, "max_completion_length": 12, "gradient_checkpointing": False, "lora": {"enabled": False},
    "data": {"limit": 30}, "warmup": {"dataset_name": "digits", "steps": 10, "batch_size": 8},
    "evaluation": {"dataset_split": "test", "samples": 2, "every": 10}, "tracking": {"report_to": "none"},
}  # fmt: skip
"""30 rows and 4 prompts a step: an epoch is 7 steps, so the order of the data must survive too."""

TIMES = ("time", "runtime", "per_second", "seconds", "attempt", "train_loss")
"""Metrics that cannot be equal: they hold a duration, or are the last attempt's alone."""


def start(folder: Path, run_id: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start or resume a run, with what it says appended to a file."""
    (folder / f"{run_id}.yaml").write_text(yaml.safe_dump({"run_id": run_id} | CONFIG), encoding="utf-8")
    own = {"GRPO_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "qwen_vl_grpo", "train", "--config", f"{run_id}.yaml", *arguments]
    with (folder / f"{run_id}.out").open("ab") as said:
        environment = os.environ | own | {"PYTHONPATH": str(PROJECT / "src")}
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT)


def kill(process: Any, run_dir: Path, moment: str, chance: random.Random) -> bool:
    """Kill a run at a random moment of a kind; False if it ended before."""
    began, before = time.time(), len(attempts.metrics(run_dir))
    steps = chance.randint(1, 5)
    while process.poll() is None:
        if (
            moment == "start"
            or (moment == "step" and len(attempts.metrics(run_dir)) >= before + steps)
            or (moment == "save" and half_written(run_dir, began))
        ):
            time.sleep(chance.uniform(0, {"start": 10.0, "step": 0.5, "save": 0.02}[moment]))
            process.kill()
            return process.wait() < 0
        time.sleep(0.0005)
    return False


def half_written(run_dir: Path, since: float) -> list[str]:
    """The checkpoints that a process which began then is writing, or was writing when it was killed."""
    return [path.name for path in (run_dir / checkpoints.ASIDE).glob("*") if path.stat().st_mtime > since]


def numbers(run_dir: Path) -> dict[tuple[int, str], list[Any]]:
    """(step, metric) -> its value in each attempt that did the step."""
    found: dict[tuple[int, str], list[Any]] = {}
    for line in attempts.metrics(run_dir):
        for name, value in line.items():
            if not any(part in name for part in TIMES):
                found.setdefault((line["step"], name), []).append(value)
    return found


def compare(alone: Path, killed: Path) -> list[tuple[str, int, int]]:
    """What was compared, how many of it, and how many differ; a step done twice must have given the same twice."""
    cards = [json.loads((folder / "run.json").read_text(encoding="utf-8")) for folder in (alone, killed)]
    expected, found = numbers(alone), numbers(killed)
    names = sorted({name for _, name in expected.keys() | found.keys()})
    told = [("loss", ["loss"]), ("reward", ["reward"]), ("every other metric", [name for name in names if name not in ("loss", "reward")])]
    rows = []
    for title, wanted in told:
        keys = [key for key in expected.keys() | found.keys() if key[1] in wanted]
        rows.append((f"{title}, steps", len(keys), sum(set(expected.get(key, [])) != set(found.get(key, [])) for key in keys)))
    again = sum(len(values) for (_, name), values in found.items() if name == "loss") - sum(1 for _, name in found if name == "loss")
    rows.append(("steps done again after a kill", again, 0))
    for when in ("before", "after"):
        rows.append((f"scores {when}", 1, int(cards[0]["metrics"][when] != cards[1]["metrics"][when])))
    weights = [{name: value for name, value in card["checkpoint_files"].items() if name.endswith(".safetensors")} for card in cards]
    rows.append(("files of weights", len(weights[0]), sum(weights[0][name] != weights[1].get(name) for name in weights[0])))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        tiny_qwen.build(folder / "tiny", "qwen2_5_vl")
        digits.write(folder / "digits")
        if start(folder, "alone").wait():
            sys.exit((folder / "alone.out").read_text(encoding="utf-8"))
        run_dir, kills = folder / "runs/killed", []
        while len(kills) < asked.kills:
            moment = MOMENTS[len(kills) % len(MOMENTS)]
            began = time.time()
            process = start(folder, "killed", *(["--resume"] if (run_dir / "run.json").is_file() else []))
            if not kill(process, run_dir, moment, chance):
                sys.exit((folder / "killed.out").read_text(encoding="utf-8") + f"\nended after {len(kills)} kills")
            lines = attempts.metrics(run_dir)
            kills.append((moment, lines[-1]["step"] if lines else 0, " ".join(half_written(run_dir, began)) or "-"))
        if start(folder, "killed", "--resume").wait():
            sys.exit((folder / "killed.out").read_text(encoding="utf-8"))
        print(f"{'kill':>4}  {'in':6} {'after step':>10}  half-written checkpoint")
        for number, (moment, step, half) in enumerate(kills, 1):
            print(f"{number:4}  {moment:6} {step:10}  {half}")
        rows = compare(folder / "runs/alone", run_dir)
        print(f"\n{'compared':32} {'number':>6} {'different':>10}")
        for title, number, different in rows:
            print(f"{title:32} {number:6} {different:10}")
        sys.exit(any(different for _, _, different in rows))


if __name__ == "__main__":
    main()
