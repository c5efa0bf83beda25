"""Covers what a run needs of a machine, told without torch."""

import importlib.util
import os

import pytest

from qwen_vl_grpo import config as configs
from qwen_vl_grpo import hardware
from qwen_vl_grpo.errors import HardwareError
from qwen_vl_grpo.hardware import Hardware

CPU = Hardware("cpu", 0, "x86_64", 2)
H200 = Hardware("cuda", 1, "NVIDIA H200", 16)


def test_the_documented_run_says_in_one_sentence_what_a_cpu_lacks():
    with pytest.raises(HardwareError) as error:
        hardware.require(configs.check({"run_id": "v1-baseline"}), CPU)
    message = str(error.value)
    assert message.startswith("run v1-baseline: use_vllm needs an NVIDIA or AMD GPU and this machine has none (cpu, 2 cores); ")
    assert "use_vllm: false" in message
    assert "\n" not in message


def test_a_run_without_vllm_needs_no_gpu(config_of):
    assert hardware.require(config_of(use_vllm=False), CPU) is None


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here, so it cannot be missed")
def test_a_gpu_without_vllm_is_told_what_is_missing_and_the_way_out(config_of):
    with pytest.raises(HardwareError, match=r"vLLM is not installed here; .*use_vllm: false"):
        hardware.require(config_of(use_vllm=True), H200)


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"])
def test_hidden_devices_are_not_found(monkeypatch, variable):
    monkeypatch.setenv(variable, "")
    assert not hardware.detect().accelerated


@pytest.mark.parametrize(("kind", "accelerated"), [("cuda", True), ("rocm", True), ("mps", False), ("cpu", False)])
def test_only_what_vllm_runs_on_counts_as_accelerated(kind, accelerated):
    assert Hardware(kind, 1, "", 2).accelerated == accelerated


def test_the_machine_of_a_card_names_its_kind_and_python():
    assert {"kind": "cuda", "name": "NVIDIA H200", "devices": 1}.items() <= hardware.describe(H200).items()
    assert hardware.describe(CPU)["python"].startswith("3.")


def test_the_versions_of_a_card_are_those_installed():
    from importlib import metadata

    found = hardware.versions()
    assert {"torch", "transformers", "trl"} <= set(found)
    assert found == {name: metadata.version(name) for name in found}


@pytest.fixture
def same_environment():
    """Put the environment back as it was."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def test_telemetry_is_off_unless_the_user_turned_it_on(same_environment):
    os.environ.pop("HF_HUB_DISABLE_TELEMETRY", None)
    os.environ["WANDB_ERROR_REPORTING"] = "true"
    hardware.quiet_libraries()
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert os.environ["WANDB_ERROR_REPORTING"] == "true"


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Put an nvidia-smi first on the PATH that prints these lines and notes its arguments."""

    def say(*lines, status=0):
        tool = tmp_path / "nvidia-smi"
        tool.write_text(
            f"#!/bin/sh\necho \"$@\" > '{tmp_path}/asked'\nprintf '%s\\n' {' '.join(repr(line) for line in lines)}\nexit {status}\n"
        )
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        return tmp_path / "asked"

    return say


def test_the_memory_of_an_nvidia_card_is_its_total_less_what_the_driver_keeps(nvidia_smi, monkeypatch):
    asked = nvidia_smi("81559, 551", "24564, 300")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert hardware.memory_gib(H200) == pytest.approx(79.11, abs=0.01)
    assert asked.read_text().split() == ["--query-gpu=memory.total,memory.reserved", "--format=csv,noheader,nounits", "--id=2,3"]


@pytest.mark.parametrize(
    ("lines", "status", "gib"), [(["81920, [N/A]"], 0, 80.0), (["[N/A], [N/A]"], 0, None), (["81920, 0"], 9, None), ([""], 0, None)]
)
def test_a_driver_that_tells_half_or_nothing_is_no_fault(nvidia_smi, lines, status, gib):
    nvidia_smi(*lines, status=status)
    assert hardware.memory_gib(H200) == gib


def test_the_memory_of_an_amd_card_is_read_from_its_driver(tmp_path, monkeypatch):
    for card, size in (("card0", 512 * 2**20), ("card1", 192 * 2**30)):
        (tmp_path / card).mkdir()
        (tmp_path / card / "mem_info_vram_total").write_text(f"{size}\n")
    monkeypatch.setattr(hardware, "ROCM_MEMORY", str(tmp_path / "card*/mem_info_vram_total"))
    assert hardware.memory_gib(Hardware("rocm", 1, "AMD GPU", 96)) == 192.0


def test_no_memory_is_known_where_there_is_no_gpu():
    assert hardware.memory_gib(CPU) is None
