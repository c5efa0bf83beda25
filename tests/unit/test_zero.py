"""Covers runs under ZeRO-2 and ZeRO-3 on two real processes (zero_processes.py)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: pip install deepspeed")

from qwen_vl_grpo import sharding
from tests.unit import zero_processes

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(checkpoint, tmp_path_factory):
    """What two processes saw, and one without DeepSpeed beside them."""
    folder = tmp_path_factory.mktemp("zero")
    own = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "GRPO_HOME": str(folder / "home")}
    environment = os.environ | own | {"PYTHONPATH": f"{PROJECT / 'src'}:{PROJECT}"}
    script = str(PROJECT / "tests/unit/zero_processes.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", script, str(folder), checkpoint("qwen2_5_vl")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def seen(folder, place=0):
    return torch.load(folder / f"2-{place}/seen.pt", weights_only=False)


@pytest.mark.parametrize("case", zero_processes.CASES)
def test_a_step_is_that_of_one_device_and_is_kept_whole_though_one_process_sees_nothing(folder, checkpoint, case):
    """The rewards and completions are given, so the weights after a step of 1.0 differ by the gradient."""
    name = "model.safetensors" if "full" in case else "adapter_model.safetensors"
    norm = zero_processes.stepped(folder / "1", checkpoint("qwen2_5_vl"), case)
    assert seen(folder)[case] == seen(folder, 1)[case] == pytest.approx(norm, rel=1e-5)
    assert norm > 0.1
    one, two = (load_file(place / case.replace(" ", "-") / "checkpoint-1" / name) for place in (folder / "1", folder))
    assert one.keys() == two.keys()
    assert max((two[key] - weight).abs().max().item() for key, weight in one.items()) <= 1e-6


def test_a_run_reaches_its_card_and_goes_on_from_a_checkpoint(folder):
    (first, again), other = seen(folder)["run"], seen(folder, 1)["run"]
    assert (first["first_step"], first["last_step"], again["first_step"], again["last_step"]) == (1, 2, 3, 3)
    assert other[1]["last_step"] == 3


def test_trl_alone_still_asks_each_tensor_for_a_state_of_zero3(monkeypatch):
    """When this fails, drop sharding.gathered_head."""
    monkeypatch.setattr("transformers.integrations.deepspeed.is_deepspeed_zero3_enabled", lambda: True)
    with pytest.raises(AttributeError, match="ds_status"):
        sharding.HEAD_OF_TRL(torch.nn.Parameter(torch.zeros(1)))
    with sharding.gathered_head(torch.zeros(1)):
        pass
