"""A run on all cards of a machine of which one rank is killed in the middle, and which its monitor starts again.

    make bench-recovery VOCABULARY=FOLDER/qwen.tiktoken          # or: python -m benchmarks.gpu_recovery --vocabulary … --only lora-ddp

The runs are those of benchmarks/gpu_scaling.py, with checkpoints that can be gone on from. What was seen is printed and written to
outputs/gpu/rows/recovery/ARM.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_rig, gpu_scaling
from benchmarks.gpu_rig import FOLDER
from qwen_vl_grpo import attempts, checkpoints, hardware

STEPS, SAVE = 4, 2
"""Steps of a run, and after how many of them it is kept, and killed."""


def changes(name: str, cards: int) -> list[str]:
    """What an arm changes in the GPU smoke's config."""
    kept = [change for change in gpu_scaling.changes(name, cards) if not change.startswith("trl.save_only_model")]
    return [*kept, f"run_id=recovery-{name}-{cards}", f"max_steps={STEPS}", f"save_steps={SAVE}", f"parity_every={SAVE}"]


def rank(number: int, run_dir: Path) -> int | None:
    """The process of the run in this folder that is its rank of this number, if it is there."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            said, command = (place / "environ").read_bytes(), (place / "cmdline").read_bytes()
        except OSError:
            continue
        if f"\0RANK={number}\0".encode() in said and f"run_id={run_dir.name}\0".encode() in command:
            return int(place.name)
    return None


def killed(process: subprocess.Popen[bytes], run_dir: Path, limit: float) -> Iterator[tuple[str, float]]:
    """Kill rank 1 once there is a checkpoint; yields for how many seconds rank 0 outlived it, and the run went on."""
    until = time.monotonic() + limit
    while not checkpoints.sealed(run_dir / f"checkpoint-{SAVE}"):
        if process.poll() is not None or time.monotonic() > until:
            return
        time.sleep(0.1)
    first, last = rank(0, run_dir), rank(1, run_dir)
    assert first and last, "the run has no ranks"
    time.sleep(1)  # the step after it is under way
    os.kill(last, signal.SIGKILL)
    began = time.monotonic()
    while Path(f"/proc/{first}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    yield "seconds until the other rank was gone", round(time.monotonic() - began, 1)
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(0, until - time.monotonic()))
    yield "seconds from the kill to the run's end", round(time.monotonic() - began, 1)


def run(name: str, cards: int, log: Path, limit: float) -> dict[str, Any]:
    """Launch an arm with a monitor, kill a rank, and read what its run has written."""
    run_dir = FOLDER / f"recovery-{name}-{cards}"
    command = gpu_scaling.command(name, cards, changes(name, cards))
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen([*command, "--monitor", "1"], stdout=file, stderr=file)
        try:
            told: dict[str, Any] = dict(killed(process, run_dir, limit))
            code = process.poll()
        finally:
            process.terminate()
            process.wait()
    if code != 0:
        return {
            "ended with": "no end in time" if code is None else code,
            "said": log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:],
        }
    card = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    lines = attempts.metrics(run_dir)
    told["state"] = card["state"]
    told["attempts"] = [{key: one.get(key) for key in ("first_step", "last_step", "state", "reason")} for one in card["attempts"]]
    told["steps"] = [line["step"] for line in lines if "reward" in line]
    told["gradient norm"] = [round(line["grad_norm"], 4) for line in lines if "reward" in line]
    told["parity"] = [round(line["parity/pictures"], 4) for line in lines if "parity/pictures" in line]
    told["checkpoint, GiB"] = round(sum(file.stat().st_size for file in (run_dir / f"checkpoint-{STEPS}").rglob("*")) / 2**30, 2)
    return told | {"allocated by torch at most, GiB": card["metrics"].get("peak_gib"), "versions": card["versions"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--vocabulary", required=True, help="qwen.tiktoken, as for benchmarks/random_checkpoint.py")
    parser.add_argument("--only", nargs="*", choices=gpu_scaling.ARMS, default=["lora-ddp", "full-fsdp2", "full-zero3"])
    parser.add_argument("--limit", type=float, default=400, help="Seconds that an arm may take.")
    given = parser.parse_args()
    cards, folder = torch.cuda.device_count(), FOLDER / "rows/recovery"
    folder.mkdir(parents=True, exist_ok=True)
    for name in given.only:
        gpu_rig.made(gpu_scaling.ARMS[name].size, given.vocabulary)
        told: dict[str, Any] = {"card": hardware.detect().name, "date": time.strftime("%Y-%m-%d"), "cards": cards}
        told |= run(name, cards, folder / f"{name}-{cards}.log", given.limit)
        print(f"{name}, {cards} cards: {json.dumps(told)}", flush=True)
        if "ended with" not in told:
            (folder / f"{name}-{cards}.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
