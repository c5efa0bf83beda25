"""Covers what is told of a machine before a run: each fault in one sentence that says what to change, on made-up /dev and /sys trees."""

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from qwen_vl_grpo import checks, findings, hardware
from qwen_vl_grpo.errors import HardwareError
from qwen_vl_grpo.findings import Finding
from qwen_vl_grpo.hardware import Hardware

CPU = Hardware("cpu", 0, "x86_64", 2)
H200 = Hardware("cuda", 1, "NVIDIA H200", 16)
MI300X = Hardware("rocm", 1, "AMD Instinct MI300X", 96)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Lay out device nodes and sysfs files under a root of their own."""
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)

    def lay(files):
        for name, content in files.items():
            path = tmp_path / "root" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return tmp_path / "root"

    return lay


AMD = {
    "dev/kfd": "", "dev/dri/renderD129": "", "sys/class/drm/renderD129/device/device": "0x74a1\n",
    "sys/class/drm/renderD128/device/device": "0x744c\n", "sys/module/amdgpu/version": "6.16.6\n",
}  # fmt: skip


def test_an_mi300x_is_known_by_the_device_that_this_container_was_given(tree):
    root = tree(AMD)
    machine = hardware.detect(root)
    assert (machine.kind, machine.devices, machine.name) == ("rocm", 1, "AMD Instinct MI300X")
    assert hardware.driver(machine, root) == "6.16.6"
    assert hardware.detect(tree({"sys/class/drm/renderD129/device/device": "0x1\n"})).name == "AMD GPU"


@pytest.mark.parametrize("variable", ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"])
def test_any_of_the_three_variables_counts_the_amd_cards(tree, monkeypatch, variable):
    root = tree(AMD | {"dev/dri/renderD130": ""})
    assert hardware.detect(root).devices == 2
    monkeypatch.setenv(variable, "1")
    assert hardware.detect(root).devices == 1


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"proc/driver/nvidia/version": ""}, "an NVIDIA driver runs here and no GPU is visible; add --gpus all to docker run"),
        (
            {"sys/module/amdgpu/version": ""},
            "an AMD driver runs here and no GPU is visible; add --device=/dev/kfd --device=/dev/dri to docker run",
        ),
        (
            {"sys/module/amdgpu/version": "", "dev/kfd": ""},
            "an AMD driver runs here and no GPU is visible; add --device=/dev/kfd --device=/dev/dri to docker run",
        ),
        ({".dockerenv": ""}, "; in docker add --device=/dev/kfd --device=/dev/dri on AMD, --gpus all on NVIDIA"),
        ({}, "run lane: use_vllm needs an NVIDIA or AMD GPU and this machine has none (cpu, 2 cores); run it in the container"),
    ],
)
def test_no_gpu_is_told_with_the_cause_that_shows(config_of, tree, files, said):
    root = tree(files | {"etc/hostname": ""})
    assert said in str(checks.gpu(config_of(run_id="lane", use_vllm=True), CPU, root))
    assert checks.gpu(config_of(use_vllm=True), CPU, root).verdict == "fail"
    assert checks.gpu(config_of(use_vllm=False), CPU, root).verdict == ("warn" if "driver" in said else "ok")


@pytest.mark.parametrize(("value", "told"), [("", "nothing"), ("-1", "-1"), ("-1,0", "-1,0")])
def test_a_variable_that_hides_the_cards_is_named(config_of, tree, monkeypatch, value, told):
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", value)
    root = tree(AMD)
    assert hardware.detect(root).kind == "cpu"
    said = str(checks.gpu(config_of(use_vllm=True), CPU, root))
    assert said == f"HIP_VISIBLE_DEVICES is set to {told}, which hides every GPU; unset HIP_VISIBLE_DEVICES"


NVIDIA = {"dev/nvidia0": "", "dev/nvidia3": "", "dev/nvidiactl": ""}
"""Two cards of a host's eight, as a container is given them: it counts them from 0."""


@pytest.mark.parametrize(
    ("files", "machine", "variable", "value", "said"),
    [
        (NVIDIA, H200, "CUDA_VISIBLE_DEVICES", "0,1", ""),
        (NVIDIA, H200, "CUDA_VISIBLE_DEVICES", "GPU-5f, MIG-1", ""),
        (NVIDIA, H200, "CUDA_VISIBLE_DEVICES", "0,3", "CUDA_VISIBLE_DEVICES=0,3 names card 3 and this machine has 2, counted from 0; set"),
        (AMD, MI300X, "HIP_VISIBLE_DEVICES", "0", ""),
        (AMD, MI300X, "HIP_VISIBLE_DEVICES", "1", "HIP_VISIBLE_DEVICES=1 names card 1 and this machine has 1, counted from 0; set HIP_"),
        (AMD, MI300X, "CUDA_VISIBLE_DEVICES", "1", "CUDA_VISIBLE_DEVICES=1 names card 1 and this machine has 1"),
        ({".dockerenv": ""}, H200, "CUDA_VISIBLE_DEVICES", "1", ""),
    ],
)
def test_a_card_that_is_not_here_is_named_before_torch_sees_none(tree, monkeypatch, files, machine, variable, value, said):
    monkeypatch.setenv(variable, value)
    (found,) = [finding for finding in checks.machine_only(machine, tree(files)) if finding.name == "visible cards"]
    assert found.verdict == ("fail" if said else "ok")
    assert str(found).startswith(said)


def test_a_torch_for_another_vendor_is_found(monkeypatch):
    monkeypatch.setattr(hardware, "torch_build", lambda: ("cuda", "13.0"))
    assert checks.torch_build(H200).verdict == "ok"
    found = checks.torch_build(MI300X)
    assert (found.verdict, found.found) == ("fail", "torch is built for cuda and the card is AMD Instinct MI300X")


def test_what_torch_was_built_for_is_read_without_importing_it():
    import torch

    built, version = hardware.torch_build()
    assert (built, version or None) == (("cuda", torch.version.cuda) if torch.version.cuda else ("cpu", None))


@pytest.mark.parametrize(("driver", "compatible", "verdict"), [("580.95", "", "ok"), ("570.1", "", "fail"), ("570.1", "1", "warn")])
def test_an_old_driver_is_refused_unless_compatibility_is_asked_for(monkeypatch, driver, compatible, verdict):
    monkeypatch.setattr(hardware, "torch_build", lambda: ("cuda", "13.0"))
    monkeypatch.setattr(hardware, "driver", lambda machine, root: driver)
    monkeypatch.setenv("VLLM_ENABLE_CUDA_COMPATIBILITY", compatible)
    found = checks.driver(H200)
    assert found.verdict == verdict
    assert f"is {driver} and torch's CUDA 13.0 needs 580" in found.found or verdict == "ok"


def test_a_device_that_this_user_may_not_open_is_named_with_the_group_to_add(tree, monkeypatch):
    root = tree(AMD)
    assert checks.access(root).verdict == "ok"
    opened = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "renderD129" and opened(path, mode))  # root may all
    group = (root / "dev/dri/renderD129").stat().st_gid
    found = checks.access(root)
    assert found.verdict == "fail"
    assert found.found.startswith(f"/dev/dri/renderD129 belongs to group {group} and user ")
    assert found.remedy.startswith(f"add --group-add {group} to docker run")


Filesystem = namedtuple("Filesystem", "f_frsize f_blocks")


@pytest.mark.parametrize(("mib", "devices", "verdict"), [(64, 1, "warn"), (64, 8, "fail"), (16384, 8, "ok")])
def test_dockers_default_of_shared_memory_is_too_little(monkeypatch, mib, devices, verdict):
    monkeypatch.setattr(os, "statvfs", lambda path: Filesystem(4096, mib * 256))
    found = checks.shared_memory(Hardware("cuda", devices, "NVIDIA H200", 16))
    assert found.verdict == verdict
    assert "(/dev/shm) holds 64 MiB" in found.found or verdict == "ok"


def test_shared_memory_that_is_not_there_is_told(tree):
    assert checks.shared_memory(H200, tree({"dev/kfd": ""})).found == "no shared memory is mounted at /dev/shm"


def test_a_folder_that_cannot_be_written_is_refused(config_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert checks.outputs(config_of(output_dir="new/outputs")).verdict == "ok"
    assert list(tmp_path.iterdir()) == []
    found = checks.outputs(config_of(output_dir="/proc/outputs"))
    assert found.verdict == "fail"
    assert str(found).startswith("output_dir /proc/outputs: /proc cannot be written by user ")


SEVEN = {"model_name": "Qwen/Qwen2.5-VL-7B-Instruct"}
WHOLE = SEVEN | {"lora": {"enabled": False}}
ROOMS = {
    # free GiB, the config, the verdict, what is said
    "an adapter": (3, SEVEN, "ok", "3.0 GiB are free for "),
    "whole weights": (40, WHOLE, "fail", "and a checkpoint of run unit takes 43.8"),
    "all of them": (100, WHOLE | {"save_steps": 20}, "warn", "and 5 checkpoints of run unit take 219.2"),
    "two of them": (140, WHOLE | {"save_steps": 20, "save_total_limit": 2}, "ok", "140.0 GiB are free for "),
    "a model that is not known": (1, {"model_name": "someone/else"}, "ok", "1.0 GiB are free for "),
}


@pytest.mark.parametrize("case", ROOMS)
def test_a_disk_must_have_room_for_a_checkpoint_and_should_for_all(case, config_of, tmp_path, monkeypatch):
    gib, changes, verdict, said = ROOMS[case]
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(gib * 2**30))
    found = checks.outputs(config_of(output_dir=str(tmp_path), dtype="bfloat16", **changes))
    assert found.verdict == verdict and said in found.found


@pytest.fixture
def requirements(tmp_path):
    """A requirements.txt and a lock beside it."""

    def write(asked, lock, name="cpu.lock"):
        (tmp_path / "requirements").mkdir(exist_ok=True)
        (tmp_path / "requirements.txt").write_text(asked)
        (tmp_path / "requirements" / name).write_text(lock)
        return tmp_path / "requirements"

    return write


def test_versions_that_are_not_the_locks_are_named(requirements):
    lock = "trl==0.1 \\\n    --hash=sha256:00\npytest==0.2 ; python_version < '3'\nnobodys-package==1\n# a comment\n"
    found = checks.locked(CPU, requirements("trl==0.1  # why\n", lock))
    assert found.verdict == "warn"
    assert found.figures["compared"] == 1
    assert "1 of 1 packages are not those of cpu.lock: trl 1.16.0 (not ==0.1)" in found.found


def test_a_package_that_is_missing_is_a_fault(requirements):
    found = checks.locked(CPU, requirements("trl\nnobodys-package==1  # why\n", ""))
    assert (found.verdict, found.found) == ("fail", "nobodys-package is not installed")


def test_each_card_has_a_lock_of_its_own(requirements):
    requirements("", "trl==0.1\n", "image-rocm.lock")
    folder = requirements("", "", "cpu.lock")
    assert checks.locked(MI300X, folder).figures["lock"] == "image-rocm.lock"
    assert checks.locked(CPU, folder).figures["lock"] == "cpu.lock"


def test_in_an_image_the_lock_that_it_was_built_from_counts(requirements, tmp_path):
    folder = requirements("nobodys-package\n", "trl==0.1\n")
    image = tmp_path / "image"
    image.mkdir()
    (image / "image-cuda.lock").write_text("")
    (image / "requirements.txt").write_text("trl\n")
    found = checks.locked(H200, folder, image)
    assert (found.verdict, found.figures["lock"]) == ("ok", "image-cuda.lock")


def test_a_checkout_without_locks_is_told(tmp_path):
    assert checks.locked(CPU, tmp_path).verdict == "warn"


BAD, DOUBTFUL, GOOD = Finding("a", "fail", "a broke", "mend a"), Finding("b", "warn", "b is slow"), Finding("c", "ok", "c")


def test_the_first_fault_is_what_a_refusal_and_the_line_say():
    with pytest.raises(HardwareError, match=r"^a broke; mend a$"):
        findings.refuse([GOOD, DOUBTFUL, BAD])
    assert findings.line([GOOD, BAD], "a machine") == "not ready: a broke; mend a"
    assert findings.line([BAD, DOUBTFUL, BAD], "").endswith("(and 1 more; see `grpo doctor`)")
    assert findings.line([GOOD, DOUBTFUL], "a machine") == "ready: a machine; warnings: b (see `grpo doctor`)"
    assert findings.line([GOOD], "a machine") == "ready: a machine"
