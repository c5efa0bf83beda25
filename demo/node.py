"""A machine of its own, as far as the product can tell: a folder, an environment, and commands as processes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwen_vl_grpo.errors import GrpoError
from tests.hub.loopback import WRITER

PROJECT = Path(__file__).resolve().parents[1]
REPOSITORY = "someone/runs"


class BrokenClaim(GrpoError):
    """Something that the product promises did not hold."""


@dataclass
class Node:
    """A machine that knows nothing but what lies in its folder: an index, a cache of the Hub and runs of its own."""

    folder: Path
    hub: str

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "HF_", "GRPO_", "PYTHONPATH"))}
        own = {"GRPO_HOME": "home", "HF_HOME": "huggingface", "PYTHONPATH": str(PROJECT / "src")}
        loopback = {"HF_ENDPOINT": self.hub, "HF_HUB_DISABLE_XET": "1", "HF_REGISTRY_REPO": REPOSITORY, "HF_TOKEN": WRITER}
        return kept | own | loopback | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "COLUMNS": "120"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *arguments], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *arguments: str, fails: bool = False) -> str:
        """What a command printed on stdout; a command that ends otherwise than it should is a broken claim."""
        process = self.start(*arguments)
        try:
            out, err = process.communicate()
        except KeyboardInterrupt:
            process.communicate()
            raise
        if WRITER in out + err:
            raise BrokenClaim(f"`{' '.join(arguments)}` printed the token")
        if (process.returncode != 0) != fails:
            raise BrokenClaim(f"`{' '.join(arguments)}` ended with {process.returncode}: {err.strip().splitlines()[-1:]}")
        return out

    def grpo(self, *arguments: str, fails: bool = False) -> str:
        return self.run("-m", "qwen_vl_grpo", *arguments, fails=fails)

    def infer(self, *arguments: str) -> str:
        return self.run(str(PROJECT / "src/inference/inference.py"), *arguments)

    def shown(self, *arguments: str) -> str:
        """A command as it is typed, and all that it printed, notes first."""
        process = self.start("-m", "qwen_vl_grpo", *arguments)
        out, err = process.communicate()
        return f"$ grpo {shlex.join(arguments)}\n{err}{out}"

    def killed_at(self, output: Path, answers: int, *command: str) -> list[str]:
        """Kill a batch with -9 as soon as so many answers are written; returns the answers that were whole then."""
        process = self.start(str(PROJECT / "src/inference/inference.py"), *command)
        while process.poll() is None and (not output.is_file() or output.read_bytes().count(b"\n") < answers):
            time.sleep(0.02)
        process.kill()
        _, err = process.communicate()
        if process.returncode != -signal.SIGKILL:
            raise BrokenClaim(f"the batch ended with {process.returncode} before it could be killed: {err.strip().splitlines()[-1:]}")
        written = output.read_text(encoding="utf-8").splitlines(keepends=True)
        return [line.rstrip("\n") for line in written if line.endswith("\n")]

    def records(self, *arguments: str) -> list[dict[str, Any]]:
        said = json.loads(self.infer(*arguments, "--json"))
        return said if isinstance(said, list) else [said]

    def card(self, run_id: str) -> dict[str, Any]:
        return json.loads(self.grpo("runs", "show", run_id, "--json"))
