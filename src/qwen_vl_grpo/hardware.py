"""What accelerator this machine has, found without importing torch, and what a run needs of it."""

from __future__ import annotations

import glob
import importlib.util
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import HardwareError

ROCM_MEMORY = "/sys/class/drm/card*/device/mem_info_vram_total"
"""Where the amdgpu driver tells the bytes of a card's memory."""


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


def detect() -> Hardware:
    """Look for device nodes and drivers; a few milliseconds, no torch."""
    cores = os.cpu_count() or 1
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == "" or os.environ.get("HIP_VISIBLE_DEVICES") == ""
    if not hidden and (nodes := glob.glob("/dev/nvidia[0-9]*")):
        return Hardware("cuda", _visible(len(nodes), "CUDA_VISIBLE_DEVICES"), _nvidia_name(), cores)
    if not hidden and os.path.exists("/dev/kfd") and (nodes := glob.glob("/dev/dri/renderD*")):
        return Hardware("rocm", _visible(len(nodes), "HIP_VISIBLE_DEVICES"), "AMD GPU", cores)
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return Hardware("mps", 1, "Apple GPU", cores)
    return Hardware("cpu", 0, platform.processor() or platform.machine(), cores)


def require(config: RunConfig, machine: Hardware) -> None:
    """Raise HardwareError in one sentence if this machine cannot run the config."""
    if not config.use_vllm:
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


def memory_gib(machine: Hardware) -> float | None:
    """GiB of the largest accelerator that this process may see, as its driver gives them out; None where nothing is known."""
    if machine.kind == "cuda":
        return _nvidia_memory_gib()
    if machine.kind == "rocm":
        sizes = [int(Path(path).read_text()) for path in glob.glob(ROCM_MEMORY)]
        return max(sizes) / 2**30 if sizes else None
    return None


def describe(machine: Hardware) -> dict[str, Any]:
    """The machine as a run card stores it."""
    return {**asdict(machine), "system": platform.system(), "machine": platform.machine(), "python": platform.python_version()}


def versions() -> dict[str, str]:
    """Installed versions of the packages that decide a run's numbers."""
    names = ("torch", "torchvision", "transformers", "trl", "peft", "accelerate", "datasets", "vllm", "huggingface_hub", "wandb")
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def quiet_libraries() -> None:
    """Turn the telemetry and the chatter of the libraries off, unless the user set them; call before they are imported."""
    for variable, value in {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "WANDB_ERROR_REPORTING": "false",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }.items():
        os.environ.setdefault(variable, value)


def _visible(nodes: int, variable: str) -> int:
    listed = os.environ.get(variable)
    return len([part for part in listed.split(",") if part.strip()]) if listed else nodes


def _nvidia_name() -> str:
    return next(iter(_nvidia_smi("name")), "NVIDIA GPU")


def _nvidia_memory_gib() -> float | None:
    """The total less what the driver reserves: that is the total that CUDA and vLLM see."""
    sizes = []
    for line in _nvidia_smi("memory.total,memory.reserved"):
        total, _, reserved = line.partition(",")
        if total.strip().isdigit():
            sizes.append(int(total) - (int(reserved) if reserved.strip().isdigit() else 0))
    return max(sizes) / 1024 if sizes else None


def _nvidia_smi(query: str) -> list[str]:
    """One line for each visible device, memory in MiB; nothing where the tool is missing or fails."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", *([f"--id={seen}"] if seen else [])]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in listing.splitlines() if line.strip()]
