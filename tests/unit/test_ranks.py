"""Covers a run on two real processes (two_processes.py): the gradient of one device, and what the processes tell each other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.unit import two_processes

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(checkpoint, tmp_path_factory):
    """What one process saw, and what two did that ran beside each other."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": f"{PROJECT / 'src'}:{PROJECT}"}
    given = str(folder), checkpoint("qwen2_5_vl")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", str(PROJECT / "tests/unit/two_processes.py"), *given]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    two_processes.main(folder, given[1])
    return folder


@pytest.fixture(scope="module")
def seen(folder):
    return {place: torch.load(folder / place / "seen.pt", weights_only=False) for place in ("1-0", "2-0", "2-1")}


@pytest.mark.parametrize("case", two_processes.CASES)
def test_two_devices_have_the_gradient_of_one_with_twice_the_accumulation(seen, case):
    (one, told), (two, told_by_two) = (seen[place][case] for place in ("1-0", "2-0"))
    two = {name.removeprefix("module."): gradient for name, gradient in two.items()}
    assert one.keys() == two.keys()
    assert max(gradient.abs().max() for gradient in one.values()) > 1e-3
    assert max((gradient - two[name]).abs().max() for name, gradient in one.items()) <= 1e-6
    for name in told:
        if name.startswith(("reward", "groups/", "rollouts/logp", "rollouts/raw", "rollouts/eff", "entropy", "loss", "completions/")):
            assert told_by_two[name] == pytest.approx(told[name], rel=1e-4, abs=1e-6), name
