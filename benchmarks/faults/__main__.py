"""The fault matrix: real runs of a tiny Qwen2.5-VL on a CPU, each met by a fault, then looked at and resumed.

    make faults                                  # all of it, and docs/faults.md; or: python -m benchmarks.faults --only disk --seed 1

After each fault nothing that was acknowledged may be lost, the run must come to its end, and one sentence must have said what happened.
Exit code 1 if a promise did not hold.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.faults import broken, kills, services
from benchmarks.faults.place import PROJECT, Lost, Place
from demo import digits, tiny_qwen

MOMENTS = {"start": 3, "step": 3, "save": 4}
PHASES = {"start": "from the start", "middle": "in step 4 alone", "end": "at the end"}


@dataclass(frozen=True)
class Fault:
    name: str
    tried: int
    inflict: Callable[[Place], str]
    """Returns what was said, and raises Lost."""


FAULTS = (
    Fault("kill -9 in a start (3), a step (3) and a save (4) of one run", sum(MOMENTS.values()), partial(kills.training, moments=MOMENTS)),
    Fault("kill -9 in a push", 4, kills.push),
    Fault("kill -9 in the cache of judgements", 3, kills.cache),
    Fault("kill -9 in a batch of questions", 3, kills.batch),
    Fault("SIGTERM in a step", 1, broken.preempted(signal.SIGTERM)),
    Fault("SIGUSR1 in a step", 1, broken.preempted(signal.SIGUSR1)),
    Fault("SIGTERM in a step, tracked online", 1, services.wandb_preempted),
    Fault("disk too small for a checkpoint", 1, broken.disk_too_small),
    Fault("disk filled between two saves", 1, broken.disk_filled_meanwhile),
    Fault("disk read-only from the start", 1, broken.disk_read_only),
    Fault("disk read-only between two saves", 1, broken.disk_read_only_meanwhile),
    *(Fault(f"Hub away {told}", 1, services.hub_away(phase)) for phase, told in PHASES.items()),
    Fault("W&B away from the start", 1, services.wandb_away("start")),
    Fault("W&B away from step 4 on", 1, services.wandb_away("middle")),
    Fault("W&B takes no files at the end", 1, services.wandb_away("end")),
    Fault("judge away from the start", 1, services.judge_away("start")),
    Fault("judge away in a step", 1, services.judge_away("middle")),
    Fault("judge away in the scores at the end", 1, services.judge_away("end")),
    Fault("corrupt cache of judgements", 1, services.judge_cache),
    Fault("corrupt cache of prepared rows", 1, broken.prepared),
    Fault("corrupt checkpoint of a stopped run", 1, broken.checkpoint),
    Fault("corrupt weights of a finished run", 1, broken.final_weights),
    Fault("corrupt card", 1, broken.card),
    Fault("corrupt metrics", 1, broken.metrics),
    Fault("corrupt config", 1, broken.config),
    Fault("corrupt picture among the rows", 1, broken.picture),
    Fault("picture replaced while the run is stopped", 1, broken.picture_meanwhile),
    Fault("reward of NaN", 1, broken.reward),
    Fault("memory used up in a step", 1, broken.memory),
    Fault("clock a day forward in a step", 1, broken.clock(86_400)),
    Fault("clock a day back in a step", 1, broken.clock(-86_400)),
)


ABOUT = """\
Each row is a real run of a tiny Qwen2.5-VL on a CPU, of six steps with a checkpoint every second one, that met a fault (`make faults`).
It has survived if nothing that it had acknowledged is lost (lines of metrics, checkpoints, judgements, answers, what waits for the Hub), it
comes to its end afterwards with every step once and weights as they were written, and one sentence says what happened: the one shown here.
Kills fall at random moments of a seed (`SEED=0`), and the run that is killed ten times must equal the one left alone to the last digit. The
Hub, W&B and the judge are servers on the loopback. A vLLM engine that dies is in `tests/vllm_cpu/test_an_engine_that_dies.py`, a GPU out of
memory in `benchmarks/gpu_faults.py`.
"""


@dataclass(frozen=True)
class Row:
    """One line of the table; `told` is the sentence, or what was lost."""

    name: str
    tried: int
    survived: int
    told: str

    def text(self) -> str:
        told = self.told.replace("|", "\\|").replace("<", "&lt;")
        return f"| {self.name} | {self.tried} | {self.survived} | {self.tried - self.survived} | {told} |"


def inflict(fault: Fault, folder: Path, seed: int) -> Row:
    started = time.perf_counter()
    place = Place(folder / re.sub(r"\W+", "-", fault.name), random.Random(f"{seed} {fault.name}"))
    try:
        told, survived = fault.inflict(place), fault.tried
    except Exception as error:  # whatever a fault brings about, the other rows are still tried
        told, survived = f"LOST: {error if isinstance(error, Lost) else repr(error)}", 0
    row = Row(fault.name, fault.tried, survived, told.replace(f"{place.folder}/", "")[:300])
    print(f"{row.survived} of {row.tried}  {time.perf_counter() - started:4.0f} s  {row.name}: {row.told}", flush=True)
    return row


def page(rows: list[Row], before: str = "") -> str:
    """The page with these rows, and those of the page before that were not tried again."""
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in before.splitlines() if line.startswith("| ")}
    lines |= {row.name: row.text() for row in rows}
    table = [lines[fault.name] for fault in FAULTS if fault.name in lines]
    counts = [list(map(int, line.split(" | ")[1:4])) for line in table]
    tried, survived, lost = map(sum, zip(*counts, strict=True))
    head = ["# Faults", "<!-- Made by `make faults`; run it again instead of changing this. -->", "", ABOUT]
    head += ["| fault | tried | survived | lost | what it says |", "|---|---|---|---|---|"]
    left = [fault.name for fault in FAULTS if fault.name not in lines]
    tail = ["", f"Not tried yet: {'; '.join(left)}."] if left else []
    return "\n".join([*head, *table, f"| all | {tried} | {survived} | {lost} | |", *tail, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="Faults whose name has this in it; the other rows of docs/faults.md stay.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=max(1, min(4, os.cpu_count() or 1)), help="Faults at once.")
    asked = parser.parse_args()
    if not (chosen := [fault for fault in FAULTS if asked.only in fault.name]):
        parser.error(f"--only {asked.only}: no fault has this in its name")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place)
        tiny_qwen.build(folder / "material/tiny", "qwen2_5_vl")
        digits.write(folder / "material/digits")
        with ThreadPoolExecutor(asked.jobs) as pool:
            rows = list(pool.map(lambda fault: inflict(fault, folder, asked.seed), chosen))
    tried, survived = sum(row.tried for row in rows), sum(row.survived for row in rows)
    print(f"\ntried {tried}, survived {survived}, lost {tried - survived}, in {time.perf_counter() - started:.0f} s")
    written = PROJECT / "docs/faults.md"
    written.write_text(page(rows, written.read_text(encoding="utf-8") if asked.only and written.is_file() else ""), encoding="utf-8")
    sys.exit(survived < tried)


if __name__ == "__main__":
    main()
