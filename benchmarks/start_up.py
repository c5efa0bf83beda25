"""How long help and refusals take, against a bare interpreter: interleaved runs, medians.

make bench
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

TRAIN, INFER = "src/fine_tuning/train.py", "src/inference/inference.py"
CASES = {
    "train.py --help": [TRAIN, "--help"],
    "train.py --dry_run": [TRAIN, "--dry_run"],
    "train.py on a machine without a GPU": [TRAIN],
    "an unknown key": [TRAIN, "--set", "lerning_rate=1"],
    "a run_id with ../": [TRAIN, "--set", "run_id=../x"],
    "num_generations that does not divide": [TRAIN, "--set", "num_generations=5"],
    "grpo plan": ["-m", "qwen_vl_grpo", "plan"],
    "inference of an unknown run": [INFER, "--run_id", "nobody", "--prompt", "x"],
}
BARE = ["-c", "pass"]


def seconds(arguments: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
    return time.perf_counter() - started


def main(rounds: int = 11) -> None:
    times: dict[str, list[float]] = {name: [] for name in ["bare interpreter", *CASES]}
    for _ in range(rounds):
        times["bare interpreter"].append(seconds(BARE))
        for name, arguments in CASES.items():
            times[name].append(seconds(arguments))
    bare = statistics.median(times["bare interpreter"])
    for name, measured in times.items():
        median = statistics.median(measured)
        print(f"{name:40} median {median:.3f} s, {median - bare:+.3f} s over a bare interpreter (n {rounds})")


if __name__ == "__main__":
    main()
