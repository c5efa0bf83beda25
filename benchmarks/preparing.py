"""How long it takes to prepare 1,000 rows of MathVista's picture sizes: cold with one and two processes, and from the cache.

PYTHONPATH=src:. OMP_NUM_THREADS=1 .venv/bin/python benchmarks/preparing.py [rows] [rounds]

The pictures are made up (soft colour gradients with noise, JPEG); their areas follow the quantiles of the 1,000 sizes in testmini's
metadata (lupantech/MathVista, commit 53d5258, data/testmini.json). The processor is the tiny Qwen2.5-VL's with the default pixel limits.
"""

from __future__ import annotations

import io
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy
import pyarrow
import pyarrow.parquet
from PIL import Image

from demo import tiny_qwen
from qwen_vl_grpo import config as configs
from qwen_vl_grpo import dataset, policy, tasks

SHARES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)
PIXELS = (3366, 13221, 71136, 197500, 307200, 763700, 1491389, 18278876)
ASPECTS = (1.0, 4 / 3, 3 / 2, 3 / 4, 2.0)


def rows(count: int) -> list[dict]:
    """Rows in MathVista's form; the draw is seeded."""
    draw = numpy.random.default_rng(0)
    made = []
    for number in range(count):
        area = numpy.exp(numpy.interp((number + 0.5) / count, SHARES, numpy.log(PIXELS)))
        aspect = draw.choice(ASPECTS)
        width, height = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
        soft = Image.fromarray(draw.integers(0, 256, (16, 16, 3), dtype=numpy.uint8)).resize((width, height), Image.Resampling.BICUBIC)
        noisy = numpy.clip(numpy.asarray(soft, numpy.int16) + draw.integers(-4, 5, (height, width, 1)), 0, 255).astype(numpy.uint8)
        file = io.BytesIO()
        Image.fromarray(noisy).save(file, "JPEG", quality=90)
        picture = {"bytes": file.getvalue(), "path": f"{number}.jpg"}
        question = "Hint: Please answer the question requiring an integer answer.\nQuestion: How many objects are left of the blue one?"
        made.append({"pid": str(number), "decoded_image": picture, "image": f"images/{number}.jpg", "query": question, "answer": "4"})
    return [made[place] for place in draw.permutation(count)]


def seconds(run: configs.RunConfig, processor: object, cached: bool) -> float:
    """Prepare the one part there is; the cache is emptied first unless it is what is measured."""
    if not cached:
        shutil.rmtree(Path(os.environ["GRPO_HOME"]) / "prepared", ignore_errors=True)
    started = time.perf_counter()
    prepared, report = dataset.prepare(run, tasks.build(run.task), processor, run.dataset_name, "testmini")
    taken = time.perf_counter() - started
    assert report.cached == cached and len(prepared) == report.kept
    return taken


def main(count: int = 1000, rounds: int = 3) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GRPO_HOME"] = f"{folder}/home"
        tiny_qwen.build(f"{folder}/tiny", "qwen2_5_vl")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows(count)), f"{folder}/testmini.parquet")
        base = {"run_id": "bench", "model_name": f"{folder}/tiny", "dataset_name": folder, "use_vllm": False}
        runs = {workers: configs.check(base | {"data": {"workers": workers}}) for workers in (1, 2)}
        processor = policy.load_processor(runs[1])
        times: dict[str, list[float]] = {"cold, 1 process": [], "cold, 2 processes": [], "from the cache": []}
        for _ in range(rounds):  # interleaved, so that a busy moment of the machine falls on both
            times["cold, 1 process"].append(seconds(runs[1], processor, cached=False))
            times["cold, 2 processes"].append(seconds(runs[2], processor, cached=False))
            times["from the cache"].append(seconds(runs[2], processor, cached=True))
        size = os.path.getsize(f"{folder}/testmini.parquet") / 2**20
        print(f"{count} rows, {size:.0f} MiB of Parquet, {os.cpu_count()} CPUs, {rounds} interleaved rounds, load {os.getloadavg()[0]:.1f}")
        for what, taken in times.items():
            print(f"{what:18} {statistics.median(taken):6.2f} s  ({', '.join(f'{second:.2f}' for second in taken)})")
        ratios = [one / two for one, two in zip(times["cold, 1 process"], times["cold, 2 processes"], strict=True)]
        print(f"2 processes: {statistics.median(ratios):.2f}x ({', '.join(f'{ratio:.2f}' for ratio in ratios)})")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
