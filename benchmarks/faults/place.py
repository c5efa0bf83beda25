"""Where a fault is tried: a folder with a registry of its own, real commands in it, and the promises that are checked afterwards."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks.faults.forked import Command
from qwen_vl_grpo import attempts, checkpoints

PROJECT = Path(__file__).resolve().parents[2]
STEPS = 6
HOLDING = """\
import math, os, time
def brevity(completions, trainer_state=None, **_):
    step = trainer_state.global_step + 1 if trainer_state else 0
    while os.path.exists(f"hold-at-{step}"):
        time.sleep(0.02)
    TROUBLE
    return [-0.01 * len(completion[0]["content"]) for completion in completions]
"""
"""A reward that waits before a step for as long as a file says so: what is done meanwhile comes at that step on any machine."""
CONFIG: dict[str, Any] = {
    "output_dir": "runs", "model_name": "tiny", "dataset_name": "digits", "dataset_split": "train", "use_vllm": False,
    "learning_rate": 1e-3, "max_steps": STEPS, "save_steps": 2, "save_total_limit": 2, "batch_size": 8, "gradient_accumulation_steps": 1,
    "num_generations": 4, "max_completion_length": 8, "gradient_checkpointing": False, "lora": {"r": 4}, "data": {"limit": 8, "workers": 1},
    "rewards": [{"function": "brevity.py:brevity"}], "tracking": {"report_to": "none"},
}  # fmt: skip


Acknowledged = tuple[list[dict[str, Any]], list[Path]]
"""Lines of metrics, and checkpoints."""
NOTHING: Acknowledged = ([], [])


class Lost(Exception):
    """A promise that did not hold."""


def need(holds: Any, promise: str) -> None:
    if not holds:
        raise Lost(promise)


@dataclass
class Done:
    code: int
    out: str
    said: str
    """What came on stderr."""

    def sentence(self) -> str:
        """The one line that ends a command which was refused or failed."""
        lines = self.said.splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        need("Traceback" not in self.said, f"a traceback: {' | '.join(lines[-3:])}")
        need(
            (self.code, len(errors)) == (1, 1) and lines[-1] == errors[0],
            f"no one sentence, exit code {self.code}: {' | '.join(lines[-3:])}",
        )
        return errors[0].removeprefix("error: ")

    def warning(self, part: str) -> str:
        """The line of a command that went well in which a part stands."""
        need(self.code == 0, f"exit code {self.code}: {' | '.join(self.said.splitlines()[-3:])}")
        found = [line for line in self.said.splitlines() if part in line]
        need(found, f"nothing is said of {part!r}")
        return found[0]


@dataclass
class Place:
    """One folder, with the base and the data of all."""

    folder: Path
    chance: random.Random
    environment: dict[str, str] = field(default_factory=dict)
    started: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir()
        for name in ("tiny", "digits"):
            (self.folder / name).symlink_to(self.folder.parent / "material" / name)
        self.trouble("pass")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "HF_", "GRPO_", "OPENAI_", "PYTHONPATH"))}
        own = {"GRPO_HOME": str(self.folder / "home"), "HF_HOME": str(self.folder / "hf"), "PYTHONPATH": str(PROJECT / "src")}
        self.environment = (
            kept | own | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
        )

    def trouble(self, code: str) -> None:
        """Let the reward meet some trouble; `step` is the step that it is asked for."""
        (self.folder / "brevity.py").write_text(HOLDING.replace("TROUBLE", code), encoding="utf-8")

    @property
    def run_dir(self) -> Path:
        return self.folder / "runs/run"

    @property
    def card(self) -> dict[str, Any]:
        return json.loads((self.run_dir / "run.json").read_text(encoding="utf-8"))

    def command(self, *arguments: str, **changes: Any) -> list[str]:
        """A command of ours; `train` gets the run's config with some keys changed."""
        (self.folder / "run.yaml").write_text(yaml.safe_dump({"run_id": "run"} | CONFIG | changes), encoding="utf-8")
        config = ["--config", "run.yaml"] if arguments[0] == "train" else []
        return [sys.executable, "-m", "qwen_vl_grpo", *arguments, *config]

    def start(self, command: list[str]) -> Command | subprocess.Popen[str]:
        """Start a command; one of ours is forked, unless the Hub's client has to read the environment of this place."""
        if command[1:3] == ["-m", "qwen_vl_grpo"] and "HF_ENDPOINT" not in self.environment:
            self.started += 1
            return Command(command[3:], self.folder, self.environment, self.folder / f"said-{self.started}")
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=pipe, stderr=pipe, text=True)

    def end(self, process: Command | subprocess.Popen[str]) -> Done:
        if isinstance(process, Command):
            code = process.wait(900)
            return Done(code, *(path.read_text(encoding="utf-8") if path.exists() else "" for path in process.files))
        out, said = process.communicate(timeout=900)
        return Done(process.returncode, out, said)

    def run(self, *arguments: str, **changes: Any) -> Done:
        return self.end(self.start(self.command(*arguments, **changes)))

    def inside(self, script: str) -> Done:
        """Run a shell script as root of a mount namespace of its own, in which disks can be full or read-only."""
        return self.end(self.start(["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", script]))

    @contextmanager
    def held_at(self, step: int, process: Command | subprocess.Popen[str]) -> Iterator[None]:
        """A run that was just started waits before a step until the block ends."""
        hold = self.folder / f"hold-at-{step}"
        hold.touch()
        try:
            self.wait_for(process, lambda: any(line["step"] == step - 1 for line in attempts.metrics(self.run_dir)))
            yield
        finally:
            hold.unlink()

    def wait_for(self, process: Command | subprocess.Popen[str], there: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 900
        while not there():
            need(process.poll() is None and time.monotonic() < deadline, "the run ended, or hung, before the fault")
            time.sleep(0.005)

    def acknowledged(self) -> Acknowledged:
        """What the run has said is done."""
        return attempts.metrics(self.run_dir), checkpoints.in_order(self.run_dir)

    def nothing_lost(self, before: Acknowledged) -> None:
        lines, saved = before
        need(attempts.metrics(self.run_dir)[: len(lines)] == lines, "lines of metrics are gone")
        kept = checkpoints.newest_whole(self.run_dir)
        need(not saved or (kept and checkpoints.step_of(kept) >= checkpoints.step_of(saved[-1])), "the newest checkpoint is gone")

    def finished(self, before: Acknowledged = NOTHING, **changes: Any) -> Done:
        """Resume the run, and check that it comes to its end with every step and all that was acknowledged."""
        self.nothing_lost(before)
        done = self.run("train", "--resume", **changes)
        need(done.code == 0, f"it cannot be resumed: {' | '.join(done.said.splitlines()[-2:])}")
        self.whole(before)
        return done

    def whole(self, before: Acknowledged = NOTHING) -> None:
        """Check that the run is at its end, with every step once in what stands and weights as they were written."""
        self.nothing_lost(before)
        steps = [line["step"] for line in attempts.standing(attempts.metrics(self.run_dir)) if "reward" in line]
        need(self.card["state"] == "finished", f"the card says {self.card['state']}")
        need(steps == list(range(1, STEPS + 1)), f"the steps that stand are {steps}")
        need(checkpoints.whole(self.run_dir / self.card["checkpoint"]), "the last checkpoint is not whole")


def break_byte(path: Path, place: float = 0.5) -> None:
    """Change one byte of a file, at a share of its length."""
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 0xFF
    path.write_bytes(content)
