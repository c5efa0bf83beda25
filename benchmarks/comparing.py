"""How long `grpo compare` takes for 20 runs of 5,000 steps, and how long its page takes to open in Chromium.

python benchmarks/comparing.py                # 3 rounds; medians and the page's size
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "src")]

from benchmarks import chromium  # noqa: E402 - the line above makes it importable
from qwen_vl_grpo import gallery, registry  # noqa: E402
from qwen_vl_grpo.interfaces import Sample, Task, Verdict  # noqa: E402

PATTERN = Path(__file__).parents[1] / "docs/gpu_digits"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GRPO_HOME"] = folder
        size = write(Path(folder) / "runs", given.runs, given.steps)
        print(f"{given.runs} runs x {given.steps:,} steps: {size / 2**20:.0f} MiB of metrics.jsonl")
        built = [build(Path(folder) / "page") for _ in range(given.rounds)]
        page = Path(folder) / "page/comparison.html"
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = (spent.ru_utime + spent.ru_stime) / given.rounds
        print(
            f"built: median {statistics.median(built):.2f} s as a whole process, {min(built):.2f} to {max(built):.2f}; {cpu:.2f} s of CPU"
        )
        print(f"page: {page.stat().st_size / 2**20:.2f} MiB")
        if chromium.installed() is None:
            print("opening: not measured, for this machine has no Chromium (apt-get install chromium)")
            return
        opened = [opening(page) for _ in range(given.rounds)]
        for place, name in enumerate(("loaded", "first painted")):
            times = [times[place] for times in opened]
            print(f"{name}: median {statistics.median(times):.2f} s after the navigation began, {min(times):.2f} to {max(times):.2f}")


def write(folder: Path, runs: int, steps: int) -> int:
    """Runs with every metric of a real one, curves that climb with noise, and 2 x 16 answers; returns the bytes of metrics."""
    card = registry.read(PATTERN)
    rows = [json.loads(line) for line in (PATTERN / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    row = next(row for row in rows if "reward" in row)
    draw, size = random.Random(0), 0
    said = Task("visual_reasoning", "", (), read_row=lambda *_: samples[0], judge=lambda *_: Verdict(True, True))
    pictures = [
        Image.frombytes("RGB", (16, 12), draw.randbytes(576)).resize((640, 480), Image.Resampling.BICUBIC) for _ in range(gallery.KEPT)
    ]
    samples = [Sample(str(place), [{"role": "user", "content": "What?"}], [picture], "4") for place, picture in enumerate(pictures)]
    completions = [["The bar on the left is higher. " * 60] for _ in samples]
    for number in range(runs):
        run_dir = folder / f"run-{number}"
        run_dir.mkdir(parents=True)
        with (run_dir / "metrics.jsonl").open("w", encoding="utf-8") as file:
            for step in range(1, steps + 1):
                climbed = 2 - 2 * math.exp(-step / (300 + 100 * number)) + draw.gauss(0, 0.1)
                size += file.write(
                    json.dumps(
                        {key: climbed + value / 10 if "/mean" in key or key == "reward" else value for key, value in row.items()}
                        | {"step": step}
                    )
                    + "\n"
                )
        config = card.config | {"seed": number, "learning_rate": 1e-5 * (1 + number % 3)}
        gallery.keep(run_dir, "before", said, samples, completions)
        gallery.keep(run_dir, "after", said, samples, completions)
        registry.write(card.model_copy(update={"run_id": run_dir.name, "config": config}), run_dir)
    return size


def build(folder: Path) -> float:
    started = time.perf_counter()
    source = {"PYTHONPATH": str(PATTERN.parents[1] / "src")}
    subprocess.run(
        [sys.executable, "-m", "qwen_vl_grpo", "compare", "all", "--output", str(folder)],
        check=True, stdout=subprocess.DEVNULL, env=os.environ | source,
    )  # fmt: skip
    return time.perf_counter() - started


def opening(page: Path) -> tuple[float, float]:
    """Seconds from the start of the navigation to the end of loading and to the first paint, in a fresh browser."""
    with chromium.Chromium() as browser:
        browser.open(page)
        painted = "new Promise(done => requestAnimationFrame(() => setTimeout(done, 200)))"
        browser.value(painted)
        loaded = browser.value("performance.getEntriesByType('navigation')[0].loadEventEnd")
        return loaded / 1000, browser.value("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 1e9") / 1000


if __name__ == "__main__":
    main()
