"""How long `grpo runs` takes over 1,000 local cards, beside `--help`: interleaved runs, medians of wall and CPU seconds.

make bench-runs
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).parents[1]
CASES = {"grpo --help": ["--help"], "grpo runs": ["runs"], "grpo runs --sort right": ["runs", "--sort", "right"]}
CASES |= {"grpo runs --json": ["runs", "--json"], "grpo runs show latest": ["runs", "show", "latest"]}


def write_cards(home: Path, count: int) -> None:
    """Copies of a real run's card (docs/gpu_digits) with a proof of full length, each in a folder of its own, and the pointers to them."""
    card = json.loads((PROJECT / "docs/gpu_digits/run.json").read_text(encoding="utf-8"))
    ids = list(range(1000, 1048))
    card["proof"] = {"outputs": [{"ids": ids, "ties": []}] * 4, "base_outputs": [ids] * 4, "changed": True}
    (home / "index").mkdir(parents=True)
    for i in range(count):
        run_id = f"run-{i:04}"
        (home / "runs" / run_id).mkdir(parents=True)
        (home / "runs" / run_id / "run.json").write_text(json.dumps(card | {"run_id": run_id}, indent=2), encoding="utf-8")
        (home / "index" / f"{run_id}.json").write_text(json.dumps({"path": str(home / "runs" / run_id)}), encoding="utf-8")


def seconds(arguments: list[str], home: str) -> tuple[float, float]:
    """Wall and CPU seconds of one command."""
    environment = os.environ | {"GRPO_HOME": home, "PYTHONPATH": str(PROJECT / "src")}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "qwen_vl_grpo", *arguments], env=environment, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - started, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(count: int = 1000, rounds: int = 9) -> None:
    with tempfile.TemporaryDirectory() as home:
        write_cards(Path(home), count)
        measured: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
        for _ in range(rounds):
            for name, arguments in CASES.items():
                measured[name].append(seconds(arguments, home))
    for name, times in measured.items():
        wall, cpu = (statistics.median(each) for each in zip(*times, strict=True))
        print(f"{name:40} {count} cards: median {wall:.3f} s, {cpu:.3f} s of CPU (n {rounds})")


if __name__ == "__main__":
    main()
