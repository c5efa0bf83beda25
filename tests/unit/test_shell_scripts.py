"""Covers every shell script of the project: bash reads it, and shellcheck has nothing against it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PLACES = (
    "*.sh", ".ci/run", "containers/*.sh", "containers/grpo", "benchmarks/*.sh", "scripts/*.sh", "clusters/*.sbatch",
    "tests/containers/*.sh",
)  # fmt: skip
SCRIPTS = sorted(path for place in PLACES for path in PROJECT.glob(place))
SHELLCHECK = shutil.which("shellcheck", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def name(path):
    return str(path.relative_to(PROJECT))


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_the_shell_reads_every_script(script):
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed here: make setup")
@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_shellcheck_has_nothing_against_a_script(script):
    done = subprocess.run([str(SHELLCHECK), "--external-sources", name(script)], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
