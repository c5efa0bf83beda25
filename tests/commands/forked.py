"""Commands of a Python that has imported the libraries already: their eight seconds of imports were most of what a test took.

A server imports torch, transformers and datasets, and forks for each command; the fork has the command's own folder, variables,
arguments and files, imports this project anew, and ends as a process of its own. TRL is not there before: it brings wandb, and
tracked runs lost steps. Commands of other tests, and what a command starts, are processes from the ground up.
"""

import gc
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def serve(address: str) -> list[str]:
    """Fork for whoever asks, until stdin is closed; returns, in the fork, the command that it is to run."""
    from qwen_vl_grpo import hardware

    hardware.quiet_libraries()
    for name in [name for name in sys.modules if name.startswith("qwen_vl_grpo")]:
        del sys.modules[name]
    import datasets  # noqa: F401
    import peft  # noqa: F401
    import torchvision.transforms.v2  # noqa: F401
    import transformers.models.qwen2_vl.image_processing_qwen2_vl  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that wait for a command are not waited for themselves
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        gc.freeze()  # or every command would go through what the libraries hold when it ends
        print("ready", flush=True)
        while True:
            asked, *_ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in asked:
                os._exit(0)
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with connection, connection.makefile("rw") as lines:
        request = json.loads(lines.readline())
        if pid := os.fork():
            print(pid, file=lines, flush=True)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=lines, flush=True)
            os._exit(0)
    for number, path in enumerate([os.devnull, request["stdout"], request["stderr"]]):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    return request["command"]


def become(command: list[str]) -> None:
    """Be `python -m MODULE …` or `python SCRIPT …`."""
    if command[0] == "-m":
        sys.path[0], sys.argv = os.getcwd(), command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0], sys.argv = str(Path(command[0]).parent), command
        runpy.run_path(command[0], run_name="__main__")


class Fork:
    """What tests ask of a subprocess.Popen with captured text."""

    def __init__(self, connection: socket.socket, request: dict[str, Any]):
        self.connection, self.lines, self.request = connection, connection.makefile("rw"), request
        print(json.dumps(request), file=self.lines, flush=True)
        self.pid = int(self.lines.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self.connection], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self.connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.request["command"], timeout or 0)
            with self.connection, self.lines:
                self.returncode = int(self.lines.readline())
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        stdout, stderr = (Path(self.request[name]).read_text(encoding="utf-8") for name in ("stdout", "stderr"))
        return stdout, stderr

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forks:
    """A server of forks."""

    def __init__(self, environment: Mapping[str, str]):
        self.folder = Path(tempfile.mkdtemp())
        command = [sys.executable, __file__, str(self.folder / "socket")]
        self.server = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.server.stdout and self.server.stdout.readline()

    def start(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Fork:
        place = Path(tempfile.mkdtemp(dir=self.folder))
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.folder / "socket"))
        files = {name: str(place / name) for name in ("stdout", "stderr")}
        return Fork(connection, {"command": command, "folder": str(folder), "environment": dict(environment)} | files)

    def close(self) -> None:
        self.server.communicate()
        shutil.rmtree(self.folder)


if __name__ == "__main__":
    become(serve(sys.argv[1]))
