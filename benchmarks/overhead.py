"""What `grpo train` adds to a step of a bare TRL script: the same model, rows, rewards and settings, step by step in turns.

make overhead                                                    # about ten minutes; docs/overhead.md
python -m benchmarks.overhead --runs 5 --steps 30                # for a narrower interval

Each run is two processes of one thread, of which one waits while the other takes a step; which goes first alternates. Every
completion has the same forced length. A ratio is ours over bare: the median over pairs of neighbouring steps, and its interval
from resampled runs and, within them, resampled pairs. CPU time says the same where other programs keep the machine busy.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from qwen_vl_grpo import hardware

WARM_UP = 2
FORCED = {"gradient_checkpointing": False, "use_vllm": False, "output_dir": "runs", "model_name": "model", "dataset_name": "digits",
          "dataset_split": "train", "data": {"limit": 64}, "tracking": {"report_to": "wandb", "mode": "offline"}}  # fmt: skip
DOCUMENTED = {"batch_size": 8, "gradient_accumulation_steps": 2, "num_generations": 8, "max_completion_length": 128,
              "gradient_checkpointing": True}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "the documented run: 2 prompts x 8 completions of 128 tokens in 2 micro-batches, LoRA, checkpointing": DOCUMENTED,
    "the same with a KL term": DOCUMENTED | {"beta": 0.04},
    "the same as the documented run, with pictures of 448x448": DOCUMENTED | {"data": {"limit": 64, "min_pixels": 448 * 448}},
    "the demonstration: 32 prompts x 8 completions of 24 tokens, all weights learn": {
        "batch_size": 256, "gradient_accumulation_steps": 1, "num_generations": 8, "max_completion_length": 24, "loss_type": "grpo",
        "learning_rate": 1e-3, "lora": {"enabled": False, "vision": True}, "data": {"limit": 512},
        "rewards": [{"function": "well_formed_reward"}, {"function": "correctness_reward_func", "weight": 0.5}],
    },
}  # fmt: skip

Step = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="pairs of processes for each case")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of each arm in each run")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        build(place)
        for number, (name, keys) in enumerate(CASES.items()):
            runs = [run(place, f"{number}-{i}", keys, given.steps) for i in range(given.runs)]
            print(f"\n**{name}** ({given.runs} runs of {given.steps} pairs of steps)\n\n" + "\n".join(table(runs, keys)), flush=True)
    machine = hardware.describe(hardware.detect())
    print("\n" + ", ".join(f"{key} {value}" for key, value in (machine | hardware.versions()).items()))


def build(place: Path) -> None:
    from demo import digits, tiny_qwen

    tiny_qwen.build(place / "model")
    digits.write(place / "digits")


def run(place: Path, name: str, keys: dict[str, Any], steps: int) -> dict[str, Any]:
    """Take the steps of both arms in turns; returns for each arm its steps, completion lengths and seconds to the first step."""
    arms: dict[str, subprocess.Popen[str]] = {}
    found: dict[str, Any] = {"bare": [], "ours": []}
    for arm in ("bare", "ours"):
        started = time.perf_counter()
        arms[arm] = start(place, arm, f"{name}-{arm}", keys, WARM_UP + steps + 1)
        report(arms[arm])
        found[f"{arm} start-up"] = time.perf_counter() - started
    for number in range(WARM_UP + steps + 1):
        for arm in ("bare", "ours") if number % 2 else ("ours", "bare"):
            found[arm].append(turn(arms[arm]))
    for arm, process in arms.items():
        process.communicate("\n", timeout=120)
        if process.returncode:
            raise SystemExit(f"the {arm} arm ended with {process.returncode}")
        found[f"{arm} lengths"] = found[arm][-1]["lengths"]
        found[arm] = found[arm][WARM_UP:-1]  # the last step saves a checkpoint in both arms
    return found


def start(place: Path, arm: str, run_id: str, keys: dict[str, Any], steps: int) -> subprocess.Popen[str]:
    length = {"generation_kwargs": {"min_new_tokens": keys["max_completion_length"]}}
    (place / f"{run_id}.yaml").write_text(yaml.safe_dump(FORCED | keys | {"run_id": run_id, "max_steps": steps, "trl": length}))
    root = Path(__file__).resolve().parents[1]
    own = {"PYTHONPATH": f"{root / 'src'}:{root}", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GRPO_HOME": str(place / "home")}
    command = [sys.executable, "-m", "benchmarks.overhead_arms", arm, f"{run_id}.yaml"]
    return subprocess.Popen(
        command, cwd=place, env=os.environ | own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def turn(process: subprocess.Popen[str]) -> Step:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return report(process)


def report(process: subprocess.Popen[str]) -> Step:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"an arm ended early, with {process.wait()}; run its command by hand to see why: {process.args}")
    return json.loads(line)


def table(runs: list[dict[str, Any]], keys: dict[str, Any]) -> list[str]:
    prompts = keys["batch_size"] * keys["gradient_accumulation_steps"] // keys["num_generations"]
    lines = ["| figure | bare TRL | ours | ours / bare (95 % interval) |", "|---|---|---|---|"]
    for figure, name in (("seconds", "a step, s"), ("cpu", "CPU time of a step, the tracker's process included, s")):
        pairs = [[(one[figure], other[figure]) for one, other in zip(run["bare"], run["ours"], strict=True)] for run in runs]
        medians = [statistics.median(pair[arm] for run in pairs for pair in run) for arm in (0, 1)]
        ratios = [[ours / bare for bare, ours in run] for run in pairs]
        low, high = interval(ratios)
        middle = statistics.median(ratio for run in ratios for ratio in run)
        lines.append(f"| {name} | {medians[0]:.3f} | {medians[1]:.3f} | {middle:.3f} ({low:.3f} to {high:.3f}) |")
    for figure in ("decoded", "preprocessed"):
        counts = [{step[figure] / prompts for run in runs for step in run[arm]} for arm in ("bare", "ours")]
        lines.append(f"| pictures {figure}, a prompt and step | {listed(counts[0])} | {listed(counts[1])} | |")
    lengths = [{length for run in runs for length in run[f"{arm} lengths"]} for arm in ("bare", "ours")]
    lines.append(f"| tokens of a completion | {listed(lengths[0])} | {listed(lengths[1])} | |")
    starts = [statistics.median(run[f"{arm} start-up"] for run in runs) for arm in ("bare", "ours")]
    lines.append(f"| start-up to the first step, s | {starts[0]:.1f} | {starts[1]:.1f} | |")
    if lengths[0] != lengths[1]:
        raise SystemExit("\n".join([*lines, "the arms' completions differ in length, so the comparison is void"]))
    return lines


def listed(values: set[float]) -> str:
    return ", ".join(f"{value:g}" for value in sorted(values))


def interval(runs: list[list[float]], times: int = 10_000) -> tuple[float, float]:
    """The middle 95 % of the median ratio over resampled runs and, within each, resampled pairs."""
    draw = random.Random(0)
    medians = sorted(
        statistics.median(ratio for run in draw.choices(runs, k=len(runs)) for ratio in draw.choices(run, k=len(run))) for _ in range(times)
    )
    return medians[int(times * 0.025)], medians[int(times * 0.975) - 1]


if __name__ == "__main__":
    main()
