"""Covers the processes of a launch: real torchrun, with ranks that only wait. A dead one is named, and none outlives its launcher."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qwen_vl_grpo import following

PROJECT = Path(__file__).resolve().parents[2]
RANK = """\
import os, signal, time
from pathlib import Path
from qwen_vl_grpo import cli, following, launched

def main():
    print("rank", os.environ["RANK"], "is here", flush=True)
    if os.environ["RANK"] == os.environ.get("DIES"):
        shown = following.log_of(Path(os.environ[following.LOGS]), 0)
        while not shown.is_file() or "is here" not in shown.read_text():  # the other would be stopped before it has said so
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)

cli.main = main
launched.main()
"""


@pytest.fixture
def command(tmp_path):
    (tmp_path / "rank.py").write_text(RANK, encoding="utf-8")
    given = ["--nproc_per_node", "2", "--master_port", "0", "--rdzv_endpoint", "127.0.0.1:0", "--rdzv_backend", "c10d"]
    return [sys.executable, "-m", "torch.distributed.run", *given, str(tmp_path / "rank.py")]


def processes(script: Path) -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout.splitlines()
    return [int(line.split()[0]) for line in listed if str(script) in line]


def within(seconds: float, true) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)
    return true()


def test_a_killed_rank_is_named_and_takes_the_others_with_it(command, tmp_path, capfd):
    environment = os.environ | {"PYTHONPATH": str(PROJECT / "src"), "DIES": "1"}
    with following.logs(tmp_path / "runs/v1", "now") as logs:
        outcome = following.follow(command, environment, logs, shown=0)
        assert logs.folder == tmp_path / "runs/.launching/v1-now"
    assert (outcome.code, outcome.reason, outcome.kind) == (137, "rank 1 was killed (SIGKILL)", "")
    assert outcome.unseen == ["rank 1 is here", "error: rank 1 was killed (SIGKILL)"]
    assert processes(tmp_path / "rank.py") == []
    assert "rank 0 is here" in capfd.readouterr().err
    assert list((tmp_path / "runs").iterdir()) == []  # there was never a run that the logs belong to
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


LAUNCHER = """\
import os, sys
from pathlib import Path
from qwen_vl_grpo import following
with following.logs(Path("runs/v1"), "now") as logs:
    following.follow(sys.argv[1:], os.environ, logs, shown=0)
"""


def test_ranks_do_not_outlive_a_launcher_that_is_killed(command, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(PROJECT / "src")}
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, *command], cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
    logs = [tmp_path / f"runs/.launching/v1-now/rank-{rank}.log" for rank in (0, 1)]
    assert within(120, lambda: all(path.is_file() and path.stat().st_size for path in logs)), launcher.poll()
    launcher.kill()
    launcher.communicate()
    assert within(60, lambda: not processes(tmp_path / "rank.py"))
