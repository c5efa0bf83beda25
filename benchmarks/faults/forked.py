"""Our commands as processes of their own that need not import torch again: each is forked from one server that has.

A command that must begin anew, because libraries read its environment when they are imported, is started as people start it (cold).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["qwen_vl_grpo.training", "qwen_vl_grpo.cli"])


class Command:
    """A command of `grpo` that runs in a folder, as far as subprocess.Popen's methods are needed here."""

    def __init__(self, arguments: list[str], folder: Path, environment: dict[str, str], said: Path):
        self.files = said.with_suffix(".out"), said.with_suffix(".err")
        self._process = FORKED.Process(target=run, args=(arguments, folder, environment, *self.files))
        self._process.start()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("grpo", timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None and self._process.pid:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(arguments: list[str], folder: Path, environment: dict[str, str], out: Path, err: Path) -> None:
    """Become the command."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    sys.path.insert(0, "")
    from qwen_vl_grpo import cli

    sys.argv = ["grpo", *arguments]
    cli.main(arguments)
