"""What accelerator this machine has, found without importing torch, and what a run needs of it."""

from __future__ import annotations

import glob
import importlib.util
import os
import platform
import re
import subprocess
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import HardwareError

ROCM_MEMORY = "/sys/class/drm/card*/device/mem_info_vram_total"
"""Where the amdgpu driver tells the bytes of a card's memory; mem_info_vram_used stands beside it."""
INSTINCT = {
    "0x74a0": "MI300A", "0x74a1": "MI300X", "0x74a2": "MI308X", "0x74a5": "MI325X", "0x74a9": "MI300X HF",
    "0x74b5": "MI300X", "0x74b9": "MI325X", "0x74bd": "MI300X HF",
}  # fmt: skip
"""PCI device -> the card, as vLLM's platforms/rocm.py lists them; those from 0x74b5 on are the same cards in a virtual machine."""
FREED_SHARE = 0.5
"""vLLM's sleep mode counts as working where it gives back at least this share of what the engine took."""
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


@dataclass(frozen=True)
class Hardware:
    """`kind` is cuda, rocm, mps or cpu; `devices` counts the accelerators that this process may see."""

    kind: str
    devices: int
    name: str
    cores: int

    @property
    def accelerated(self) -> bool:
        return self.kind in ("cuda", "rocm")


def detect(root: Path = Path("/")) -> Hardware:
    """Look for device nodes and drivers under `root`; a few milliseconds, no torch."""
    cores = os.cpu_count() or 1
    hidden = hiding_variable()
    if not hidden and (nodes := list(root.glob("dev/nvidia[0-9]*"))):
        return Hardware("cuda", _visible(len(nodes), "CUDA_VISIBLE_DEVICES"), _nvidia_name(), cores)
    if not hidden and (root / "dev/kfd").exists() and (nodes := list(root.glob("dev/dri/renderD*"))):
        listed = "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
        return Hardware("rocm", _visible(len(nodes), *listed), _amd_name(root), cores)
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return Hardware("mps", 1, "Apple GPU", cores)
    return Hardware("cpu", 0, platform.processor() or platform.machine(), cores)


def hiding_variable() -> str:
    """The variable that hides every card, if one does: set to nothing, or to -1 first, where the list ends."""
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if os.environ.get(variable, "all").split(",")[0].strip() in ("", "-1"):
            return variable
    return ""


def require(config: RunConfig, machine: Hardware) -> None:
    """Raise HardwareError in one sentence if this machine cannot run the config."""
    if not config.use_vllm or config.vllm_mode == "server":
        return
    if not machine.accelerated:
        raise HardwareError(
            f"run {config.run_id}: use_vllm needs an NVIDIA or AMD GPU and this machine has none ({machine.kind}, {machine.cores} cores); "
            "run it in the container on a GPU node, set use_vllm: false with a small model, or try `make demo`"
        )
    if importlib.util.find_spec("vllm") is None:
        raise HardwareError(
            f"run {config.run_id}: use_vllm is set and vLLM is not installed here; run where it is (vLLM 0.22 to 0.31), "
            "or set use_vllm: false"
        )
    if misfit := vllm_misfit():
        raise HardwareError(f"run {config.run_id}: {misfit}, or set use_vllm: false")
    if config.vllm_enable_sleep_mode and (variable := expandable_segments()):
        raise HardwareError(
            f"run {config.run_id}: {variable}={os.environ[variable]} turns expandable segments on, and vLLM's sleep mode cannot free "
            f"memory that lies in them (vllm#40812); unset {variable}, or set vllm_enable_sleep_mode: false"
        )


def vllm_misfit() -> str:
    """What is wrong with the installed vLLM, and what to do: a version that TRL does not know, or one that was built for another torch.

    Read from the packages' metadata, so nothing is imported. A build that tells no version or no exact torch, as builds from source
    may, is let through.
    """
    vllm = _vllm()
    if vllm is None:
        return ""
    installed = Version(vllm.version)
    if accepted := trl_refuses(installed):
        return f"vLLM {installed} is installed and TRL {metadata.version('trl')} works with {accepted}; install one of these"
    built_for = _required(vllm.requires or [], "torch")
    exact = [bound.version for bound in built_for.specifier if bound.operator == "==" and "*" not in bound.version] if built_for else []
    torch = metadata.version("torch")
    if exact and Version(exact[0]).release != Version(torch).release:
        wanted = Version(exact[0]).public
        return (
            f"vLLM {installed} was built for torch {wanted} and torch {torch} is installed, so its kernels do not load; install "
            f"torch {wanted}, or the vLLM that was built for torch {Version(torch).public}"
        )
    return ""


def trl_refuses(installed: Version) -> str:
    """The versions of vLLM that TRL works with, if this one is none of them."""
    accepted = _required(metadata.requires("trl") or [], "vllm", extra="vllm")
    untagged = installed.is_devrelease and installed.release[:2] == (0, 1)
    if accepted is None or untagged or accepted.specifier.contains(installed.base_version):
        return ""
    return " to ".join(sorted((bound.version for bound in accepted.specifier), key=Version))


def vllm_version() -> Version | None:
    """The version of the vLLM that is installed here."""
    found = _vllm()
    return Version(found.version) if found else None


def expandable_segments() -> str:
    """The variable that turns torch's expandable segments on, if one does: vLLM's memory pools cannot be in them."""
    for variable in ALLOCATOR_VARIABLES:
        if re.search(r"\bexpandable_segments\s*:\s*(true|1)\b", os.environ.get(variable, ""), re.IGNORECASE):
            return variable
    return ""


def memory_gib(machine: Hardware) -> float | None:
    """GiB of the largest accelerator that this process may see, as its driver gives them out; None where nothing is known."""
    if machine.kind == "cuda":
        return _nvidia_memory_gib()
    if machine.kind == "rocm":
        sizes = [int(Path(path).read_text()) for path in glob.glob(ROCM_MEMORY)]
        return max(sizes) / 2**30 if sizes else None
    return None


def occupied(machine: Hardware) -> tuple[float, tuple[int, ...]]:
    """GiB that others hold of this process's card, and their process ids as far as the driver tells them; ask before torch does."""
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    if machine.kind == "cuda":
        seen = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
        card = seen[rank] if rank < len(seen) else str(rank)
        used = next(iter(_nvidia_smi("--query-gpu=memory.used", card)), "")
        processes = _nvidia_smi("--query-compute-apps=pid", card)
        return int(used) / 1024 if used.isdigit() else 0.0, tuple(int(line) for line in processes if line.isdigit())
    if machine.kind == "rocm":
        cards = sorted(glob.glob(ROCM_MEMORY), key=lambda path: [int(digits) for digits in re.findall(r"\d+", path)])
        seen = [part.strip() for part in os.environ.get("HIP_VISIBLE_DEVICES", "").split(",") if part.strip().isdigit()]
        number = int(seen[rank]) if rank < len(seen) else rank
        if number < len(cards):
            return int(Path(cards[number]).with_name("mem_info_vram_used").read_text()) / 2**30, ()
    return 0.0, ()


def describe(machine: Hardware) -> dict[str, Any]:
    """The machine as a run card stores it."""
    return {**asdict(machine), "system": platform.system(), "machine": platform.machine(), "python": platform.python_version()}


def versions() -> dict[str, str]:
    """Installed versions of the packages that decide a run's numbers."""
    names = (
        "torch",
        "torchvision",
        "transformers",
        "trl",
        "peft",
        "accelerate",
        "datasets",
        "diffusers",
        "huggingface_hub",
        "wandb",
    )
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if built := _vllm():
        found["vllm"] = built.version
    return found


def is_main_process() -> bool:
    """Whether this process speaks for the run: the only one, or the first of those that torchrun or accelerate started."""
    return os.environ.get("RANK", "0") == "0"


def quiet_libraries() -> None:
    """Turn the telemetry and the chatter of the libraries off, unless the user set them; call before they are imported."""
    for variable, value in {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "WANDB_ERROR_REPORTING": "false",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }.items():
        os.environ.setdefault(variable, value)
    if os.environ.get("WANDB_MODE") == "offline":  # transformers tells of that word on stdout, where answers stand alone
        os.environ["WANDB_MODE"] = "dryrun"


def driver(machine: Hardware, root: Path = Path("/")) -> str:
    """The version of the card's driver, or nothing where it does not tell."""
    if machine.kind == "cuda":
        return next(iter(_nvidia_smi("--query-gpu=driver_version")), "")
    version = root / "sys/module/amdgpu/version"
    return version.read_text().strip() if machine.kind == "rocm" and version.is_file() else ""


def torch_build() -> tuple[str, str]:
    """What torch was built for, `cuda`, `hip` or `cpu`, and of which version; read from its files, nothing is imported."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None or not (stated := Path(found.origin).with_name("version.py")).is_file():
        return "", ""
    lines = re.findall(r"^(cuda|hip)\b[^=\n]*= *'([^']+)'", stated.read_text(), re.MULTILINE)
    return lines[0] if lines else ("cpu", "")


def _visible(nodes: int, *variables: str) -> int:
    listed = next((listed for variable in variables if (listed := os.environ.get(variable))), "")
    return len([part for part in listed.split(",") if part.strip()]) or nodes


def _amd_name(root: Path) -> str:
    """The name of the first card that has a node here; the sysfs of a container shows the host's other cards, too."""
    for node in sorted(root.glob("dev/dri/renderD*")):
        device = root / "sys/class/drm" / node.name / "device/device"
        if device.is_file() and (card := INSTINCT.get(device.read_text().strip().lower())):
            return f"AMD Instinct {card}"
    return "AMD GPU"


def _nvidia_name() -> str:
    return next(iter(_nvidia_smi("--query-gpu=name")), "NVIDIA GPU")


def _nvidia_memory_gib() -> float | None:
    """The total less what the driver reserves: that is the total that CUDA and vLLM see."""
    sizes = []
    for line in _nvidia_smi("--query-gpu=memory.total,memory.reserved"):
        total, _, reserved = line.partition(",")
        if total.strip().isdigit():
            sizes.append(int(total) - (int(reserved) if reserved.strip().isdigit() else 0))
    return max(sizes) / 1024 if sizes else None


def _vllm() -> metadata.Distribution | None:
    """The installed package that brings the module vllm: vllm itself, or a build under another name."""
    try:
        return metadata.distribution("vllm")
    except metadata.PackageNotFoundError:
        if importlib.util.find_spec("vllm") is None:
            return None
        names = metadata.packages_distributions().get("vllm")  # slow: reads every package's list of files
        return metadata.distribution(names[0]) if names else None


def _required(lines: list[str], name: str, extra: str = "") -> Requirement | None:
    """A package's requirement of another, by its metadata on this machine."""
    for requirement in map(Requirement, lines):
        if requirement.name == name and (requirement.marker is None or requirement.marker.evaluate({"extra": extra})):
            return requirement
    return None


def _nvidia_smi(query: str, card: str | None = None) -> list[str]:
    """One line for each visible device, memory in MiB; nothing where the tool is missing or fails."""
    seen = card or os.environ.get("CUDA_VISIBLE_DEVICES")
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits", *([f"--id={seen}"] if seen else [])]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in listing.splitlines() if line.strip()]
