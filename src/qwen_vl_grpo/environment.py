"""Environment variables that a card wants, each with its reason; what the user has set stays, and is named where we would differ.

Set before torch and vLLM are imported, which read most of them once.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass

from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.findings import Finding
from qwen_vl_grpo.hardware import ALLOCATOR_VARIABLES, Hardware


@dataclass(frozen=True)
class Setting:
    """`several`: only where one process group spans several cards."""

    variable: str
    value: str
    reason: str
    several: bool = False


ROCM = (
    Setting("HSA_NO_SCRATCH_RECLAIM", "1", "RCCL needs the scratch memory that the runtime would take back"),
    Setting("HIP_FORCE_DEV_KERNARG", "1", "kernel arguments in the card's own memory start kernels sooner"),
    Setting(
        "VLLM_ROCM_USE_AITER",
        "0",
        "AITER's faster kernels differ more from the trainer's; `grpo doctor --rollouts` says whether they agree with 1",
    ),
    Setting("NCCL_MIN_NCHANNELS", "112", "RCCL uses all links between MI300X cards only with this many channels", several=True),
)
"""NVIDIA needs none: NCCL's defaults know NVLink, and vLLM finds its attention backend by itself."""

EXPANDABLE = Setting("PYTORCH_ALLOC_CONF", "expandable_segments:True", "no engine sleeps here, and segments that grow fragment less")


def settle(machine: Hardware, config: RunConfig | None = None, environ: MutableMapping[str, str] = os.environ) -> list[Finding]:
    """Set what the card wants and the user has not set; returns one finding a variable."""
    wanted = [setting for setting in ROCM if machine.kind == "rocm" and (machine.devices > 1 or not setting.several)]
    if machine.kind == "cuda" and config and not config.use_vllm and not any(name in environ for name in ALLOCATOR_VARIABLES):
        wanted.append(EXPANDABLE)
    if machine.kind == "rocm" and (listed := environ.get("CUDA_VISIBLE_DEVICES")) and "HIP_VISIBLE_DEVICES" not in environ:
        wanted.append(Setting("HIP_VISIBLE_DEVICES", listed, "CUDA_VISIBLE_DEVICES, which names the cards here, is AMD's old name for it"))
    return [_set(setting, environ) for setting in wanted]


def visibility(machine: Hardware, environ: MutableMapping[str, str] = os.environ) -> Finding:
    """Whether one variable alone says which cards are seen: two that disagree hide all of them, or the wrong ones."""
    hip, cuda, rocr = (environ.get(f"{vendor}_VISIBLE_DEVICES") for vendor in ("HIP", "CUDA", "ROCR"))
    if machine.kind == "cuda":
        others = [name for name, value in (("HIP", hip), ("ROCR", rocr)) if value]
        if others:
            named = " and ".join(f"{name}_VISIBLE_DEVICES" for name in others)
            return Finding("visible cards", "warn", f"{named} says nothing to an NVIDIA card", f"unset {named}, use CUDA_VISIBLE_DEVICES")
    if hip and cuda and hip != cuda:
        fighting = "CUDA_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES" if rocr else "CUDA_VISIBLE_DEVICES"
        return Finding(
            "visible cards",
            "fail",
            f"HIP_VISIBLE_DEVICES={hip} and CUDA_VISIBLE_DEVICES={cuda} name different cards, and vLLM refuses that",
            f"unset {fighting} on an AMD card, HIP_VISIBLE_DEVICES on an NVIDIA card",
        )
    if machine.kind != "cuda" and rocr and (hip or cuda):
        upper = "HIP_VISIBLE_DEVICES" if hip else "CUDA_VISIBLE_DEVICES"
        return Finding(
            "visible cards",
            "fail",
            f"ROCR_VISIBLE_DEVICES={rocr} renumbers the cards before {upper}={hip or cuda} chooses among them",
            f"unset ROCR_VISIBLE_DEVICES, keep {upper}",
        )
    said = next((f"{name}_VISIBLE_DEVICES={value}" for name, value in (("HIP", hip), ("CUDA", cuda), ("ROCR", rocr)) if value), "all")
    return Finding("visible cards", "ok", said)


def _set(setting: Setting, environ: MutableMapping[str, str]) -> Finding:
    own = environ.setdefault(setting.variable, setting.value)
    if own != setting.value:
        found = f"{setting.variable}={own} is yours and stays; {setting.value} would be set here, since {setting.reason}"
        return Finding(setting.variable, "warn", found)
    return Finding(setting.variable, "ok", f"{setting.value}: {setting.reason}")
