"""What would stop a run on this machine, found in well under a second without torch; `grpo train` and `grpo infer` look first, too.

Each check is a function that returns a finding. `root` stands for / where a check reads device nodes or sysfs.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from qwen_vl_grpo import environment, footprint, hardware, shapes, spreading, storage
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import HardwareError, PolicyError
from qwen_vl_grpo.findings import Finding
from qwen_vl_grpo.footprint import GIB
from qwen_vl_grpo.hardware import Hardware
from qwen_vl_grpo.index import PROJECT

ROOT = Path("/")
SHARED_GIB = 1.0
"""Shared memory below which NCCL and data workers run out; docker gives 64 MB by default."""
NVIDIA_DRIVERS = {11: 450, 12: 525, 13: 580}
"""Major version of CUDA -> the oldest branch of drivers that it runs on."""
IMAGE = Path("/opt/grpo")
"""Where an image of this project keeps the lock that it was built from (Dockerfile)."""
LOCKS = {"cuda": "image-cuda.lock", "rocm": "image-rocm.lock"}


def quick(config: RunConfig, machine: Hardware, root: Path = ROOT) -> list[Finding]:
    """Everything that can be told before a run without importing torch."""
    return [gpu(config, machine, root), *machine_only(machine, root), *engine(config, machine), outputs(config), locked(machine)]


def machine_only(machine: Hardware, root: Path = ROOT) -> list[Finding]:
    """The checks that need no config; nothing where there is no accelerator."""
    seen = [(machine.accelerated and absent(machine, root)) or environment.visibility(machine)]
    if machine.accelerated:
        seen += [torch_build(machine), driver(machine, root), access(root), shared_memory(machine, root)]
    return seen


def gpu(config: RunConfig, machine: Hardware, root: Path = ROOT) -> Finding:
    """Which accelerator is seen, or why none is where the run needs one."""
    figures = {"kind": machine.kind, "devices": machine.devices, "name": machine.name}
    if machine.accelerated:
        memory = hardware.memory_gib(machine)
        size = f", {memory:.1f} GiB" if memory else ""
        return Finding("accelerator", "ok", f"{machine.devices} x {machine.name} ({machine.kind}{size})", figures=figures)
    needed = "fail" if footprint.has_engine(config) else "warn"
    if cause := unseen(root):
        return Finding("accelerator", needed, *cause, figures)
    if needed == "fail":
        docker = "in docker add --device=/dev/kfd --device=/dev/dri on AMD, --gpus all on NVIDIA"
        return Finding("accelerator", "fail", _refusal(config, machine), docker if (root / ".dockerenv").exists() else "", figures)
    return Finding("accelerator", "ok", f"none ({machine.kind}, {machine.cores} cores), and the run needs none", figures=figures)


def unseen(root: Path = ROOT) -> tuple[str, str] | None:
    """Why a card that the machine has is not seen, and what to do; None where it has none."""
    nvidia, amd = list(root.glob("dev/nvidia[0-9]*")), list(root.glob("dev/dri/renderD*"))
    if (variable := hardware.hiding_variable()) and (nvidia or (root / "dev/kfd").exists()):
        return f"{variable} is set to {os.environ[variable] or 'nothing'}, which hides every GPU", f"unset {variable}"
    if (root / "proc/driver/nvidia/version").exists() and not nvidia:
        return "an NVIDIA driver runs here and no GPU is visible", "add --gpus all to docker run"
    if (root / "sys/module/amdgpu").exists() and not ((root / "dev/kfd").exists() and amd):
        return "an AMD driver runs here and no GPU is visible", "add --device=/dev/kfd --device=/dev/dri to docker run"
    return None


def absent(machine: Hardware, root: Path = ROOT) -> Finding | None:
    """A variable that names a card by a number that this machine does not have: from there on the driver shows none, without a word."""
    vendors, nodes = (("CUDA",), "dev/nvidia[0-9]*") if machine.kind == "cuda" else (("HIP", "CUDA"), "dev/dri/renderD*")
    cards = len(list(root.glob(nodes)))
    for variable in (f"{vendor}_VISIBLE_DEVICES" for vendor in vendors):
        numbers = [int(part) for part in os.environ.get(variable, "").split(",") if part.strip().isdigit()]
        if cards and max(numbers, default=0) >= cards:
            found = f"{variable}={os.environ[variable]} names card {max(numbers)} and this machine has {cards}, counted from 0"
            return Finding("visible cards", "fail", found, f"set {variable} to cards that are here, or unset it")
    return None


def engine(config: RunConfig, machine: Hardware) -> list[Finding]:
    """Whether vLLM fits TRL, torch and the allocator's settings; asked only where a run would start an engine here."""
    if not footprint.has_engine(config) or not machine.accelerated:
        return []
    if said := _refusal(config, machine):
        return [Finding("engine", "fail", said)]
    return [Finding("engine", "ok", f"vLLM {hardware.vllm_version()} fits TRL, torch and the allocator's settings")]


def torch_build(machine: Hardware) -> Finding:
    """Whether torch was built for this card: a package manager replaces ROCm's torch by CUDA's without a word."""
    built, version = hardware.torch_build()
    wanted = {"rocm": "hip", "cuda": "cuda"}[machine.kind]
    if built == wanted:
        return Finding("torch", "ok", f"torch {metadata.version('torch')} for {built} {version}")
    found = f"torch is built for {built} and the card is {machine.name}" if built else "torch is not installed"
    return Finding("torch", "fail", found, "start from the vLLM image of this card, and install nothing over its torch")


def driver(machine: Hardware, root: Path = ROOT) -> Finding:
    """Whether the card's driver is as new as torch's CUDA asks."""
    version, (built, toolkit) = hardware.driver(machine, root), hardware.torch_build()
    figures = {"driver": version, built: toolkit}
    if machine.kind == "cuda" and not version and shutil.which("nvidia-smi"):
        remedy = "call it: where driver and libraries are of two versions, start the host again"
        return Finding("driver", "warn", "nvidia-smi is here and does not answer, so that the driver is not known", remedy, figures)
    if machine.kind != "cuda" or built != "cuda" or not version:
        return Finding("driver", "ok", version or "its version is not told", figures=figures)
    oldest = NVIDIA_DRIVERS.get(int(toolkit.split(".")[0]), 0)
    if int(version.split(".")[0]) >= oldest:
        return Finding("driver", "ok", f"{version}, and CUDA {toolkit} needs {oldest}", figures=figures)
    compatible = os.environ.get("VLLM_ENABLE_CUDA_COMPATIBILITY") == "1"
    found = f"the NVIDIA driver is {version} and torch's CUDA {toolkit} needs {oldest} or newer"
    remedy = "update the driver, or set VLLM_ENABLE_CUDA_COMPATIBILITY=1 on a data-centre card"
    return Finding("driver", "warn" if compatible else "fail", found, "" if compatible else remedy, figures)


def access(root: Path = ROOT) -> Finding:
    """Whether this user may open the device nodes of an AMD card: they belong to a group that a container does not have."""
    for node in [root / "dev/kfd", *sorted(root.glob("dev/dri/renderD*"))]:
        if node.exists() and not os.access(node, os.R_OK | os.W_OK):
            group = node.stat().st_gid
            found = f"/{node.relative_to(root)} belongs to group {group} and user {os.getuid()} is not in it"
            return Finding("device access", "fail", found, f"add --group-add {group} to docker run, or join that group")
    return Finding("device access", "ok", f"user {os.getuid()} may open the devices")


def shared_memory(machine: Hardware, root: Path = ROOT) -> Finding:
    """Whether /dev/shm holds what processes hand each other; several cards cannot do without."""
    try:
        status = os.statvfs(root / "dev/shm")
    except OSError:
        return Finding("shared memory", "warn", "no shared memory is mounted at /dev/shm", "mount it: --ipc=host or --shm-size=16g")
    gib = status.f_frsize * status.f_blocks / 2**30
    if gib >= SHARED_GIB:
        return Finding("shared memory", "ok", f"{gib:.1f} GiB", figures={"gib": gib})
    found = f"shared memory (/dev/shm) holds {gib * 1024:.0f} MiB, too little for NCCL and data workers"
    verdict = "fail" if machine.devices > 1 else "warn"
    return Finding("shared memory", verdict, found, "start docker with --ipc=host or --shm-size=16g", {"gib": gib})


def outputs(config: RunConfig) -> Finding:
    """Whether the run's folder can be made, and whether its disk has room for the checkpoints."""
    folder = nearest(Path(config.output_dir))
    try:
        tempfile.TemporaryFile(dir=folder).close()  # permissions alone do not tell of read-only mounts
    except OSError as error:
        found = f"output_dir {config.output_dir}: {folder} cannot be written by user {os.getuid()} ({error.strerror})"
        return Finding("outputs", "fail", found, "mount a volume there that this user may write to, or set output_dir")
    free = shutil.disk_usage(folder).free
    figures, room = {"free_gib": free / GIB}, f"{free / GIB:.1f} GiB are free for {config.output_dir}"
    try:
        held = footprint.measure(config, known := shapes.of(config))
        written = storage.disk(config, known, spreading.written(held, config, known, spreading.launched_as()))
    except PolicyError:  # a model that is not here yet and not known
        return Finding("outputs", "ok", room, figures=figures)
    figures |= {"checkpoint_gib": written.checkpoint / GIB, "run_gib": written.whole / GIB}
    if free < written.checkpoint + written.warmup:
        found = f"{room}, and a checkpoint of run {config.run_id} takes {written.checkpoint / GIB:.1f}"
        return Finding("outputs", "fail", found, "make room, or set output_dir", figures)
    if free < written.whole:
        found = f"{room}, and {written.checkpoints} checkpoints of run {config.run_id} take {written.whole / GIB:.1f}"
        return Finding("outputs", "warn", found, "make room, set or lower save_total_limit, or raise save_steps", figures)
    return Finding("outputs", "ok", room, figures=figures)


def nearest(folder: Path) -> Path:
    """The folder, or the first one above it that exists and can be seen: what lies in a folder of somebody else cannot."""
    return next(there for there in (folder.absolute(), *folder.absolute().parents) if os.path.isdir(there))  # Path.is_dir() raises


def locked(machine: Hardware, requirements: Path = PROJECT / "requirements", image: Path = IMAGE) -> Finding:
    """Whether the packages that are installed are those of the image's or the card's lock, and whether what the product needs is here."""
    locks = [*sorted(image.glob("image-*.lock")), requirements / LOCKS.get(machine.kind, "cpu.lock"), requirements / "cpu.lock"]
    lock = next((path for path in locks if path.is_file()), None)
    if lock is None:
        return Finding("versions", "warn", f"{requirements} holds no lock to compare with", "run from a checkout")
    asked = _requirements((image if lock.parent == image else requirements.parent) / "requirements.txt")
    missing = [requirement.name for requirement in asked if not _installed(requirement.name)]
    if missing:
        return Finding("versions", "fail", f"{', '.join(missing)} is not installed", "pip install -r requirements.txt in the vLLM image")
    here = [(pin, own) for pin in _requirements(lock) if (own := _installed(pin.name))]
    other = [f"{pin.name} {own} (not {pin.specifier})" for pin, own in here if Version(own).public not in pin.specifier]
    figures = {"lock": lock.name, "compared": len(here), "other": other}
    if other:
        named = ", ".join(other[:5]) + ", …" * (len(other) > 5)
        return Finding("versions", "warn", f"{len(other)} of {len(here)} packages are not those of {lock.name}: {named}", figures=figures)
    return Finding("versions", "ok", f"{len(here)} packages are those of {lock.name}", figures=figures)


def _refusal(config: RunConfig, machine: Hardware) -> str:
    try:
        hardware.require(config, machine)
    except HardwareError as error:
        return str(error)
    return ""


def _requirements(file: Path) -> list[Requirement]:
    """The lines of a requirements file that hold here, without their hashes and comments."""
    lines = (re.split(r"[#\\]", line)[0].strip() for line in file.read_text().splitlines())
    stated = [Requirement(line) for line in lines if line and not line.startswith("-")]
    return [requirement for requirement in stated if requirement.marker is None or requirement.marker.evaluate()]


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
