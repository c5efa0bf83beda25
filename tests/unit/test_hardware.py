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
