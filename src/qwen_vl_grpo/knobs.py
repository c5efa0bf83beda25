"""The knobs that make a run smaller, in the order in which they are worth turning: first what costs nothing, then what costs
time, then what changes what is learned. Each is tried on the config, never only named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from qwen_vl_grpo import rendered_footprint
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.footprint import Prompt, has_engine, measure
from qwen_vl_grpo.rendered_sections import RendererSection
from qwen_vl_grpo.shapes import Shapes

Changes = dict[str, Any]
"""Config key -> another value: what `--set` would be told."""


def advise(config: RunConfig, known: Shapes, prompt: Prompt, fits: Callable[[RunConfig], bool]) -> Changes:
    """The first knob whose turning alone makes the config fit; else as few of them together as do; else nothing.

    Among several, the engine's share is set anew for each trial, because the others move what it needs.
    """
    shares = utilization(config)
    options = [shares, context(config, known, prompt), *(knob(config) for knob in KNOBS)]
    for changes in (changes for choices in options for changes in choices):
        if fits(changed(config, changes)):
            return changes

    def with_share(changes: Changes) -> Changes | None:
        return next((share | changes for share in [{}, *shares] if fits(changed(config, share | changes))), None)

    turned: list[Changes] = []
    for choices in options[1:]:  # the strongest setting of one knob after the other
        turned.append(choices[-1] if choices else {})
        if with_share(_together(turned)) is not None:
            break
    else:
        return {}
    for i, choices in reversed(list(enumerate(options[1 : len(turned) + 1]))):  # and each one back as far as it goes
        milder = ([*turned[:i], setting, *turned[i + 1 :]] for setting in [{}, *choices])
        turned = next(trial for trial in milder if with_share(_together(trial)) is not None)
    return with_share(_together(turned)) or {}


def said(changes: Changes) -> str:
    """What to turn, as it is written on the command line."""
    turned = " ".join(f"--set {key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in changes.items())
    return f"turn first: {turned}" if turned else "no knob is enough: take a smaller model or several cards"


def changed(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """The config with some keys changed, as `--set` changes them."""
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        part = (getattr(config, section) or RendererSection()).model_copy(update={name: value}) if section else value
        config = config.model_copy(update={section or key: part})
    return config


def utilization(config: RunConfig) -> list[Changes]:
    """Other shares of the card for the engine: the smaller ones from the largest down, then the larger ones."""
    if not has_engine(config):
        return []
    now, others = config.vllm_gpu_memory_utilization, [round(0.05 * step, 2) for step in range(1, 20)]
    ordered = [share for share in reversed(others) if share < now] + [share for share in others if share > now]
    return [{"vllm_gpu_memory_utilization": share} for share in ordered]


def context(config: RunConfig, known: Shapes, prompt: Prompt) -> list[Changes]:
    """vLLM wants KV cache for one sequence of its whole context: let that be the run's longest sequence."""
    if not has_engine(config) or config.vllm_max_model_length is not None:
        return []
    return [{"vllm_max_model_length": 256 * math.ceil(measure(config, known, prompt).sequence / 256)}]


def micro_steps(config: RunConfig) -> list[Changes]:
    """Smaller micro-steps and more of them: the same optimizer step, a little slower."""
    size, count = config.batch_size, config.gradient_accumulation_steps
    parts = [2**power for power in range(1, size.bit_length()) if size % 2**power == 0]
    return [{"batch_size": size // part, "gradient_accumulation_steps": count * part} for part in parts]


def checkpointing(config: RunConfig) -> list[Changes]:
    every = config.gradient_checkpointing is True or config.gradient_checkpointing == "auto"
    return [] if every else [{"gradient_checkpointing": True}]


def sleep(config: RunConfig) -> list[Changes]:
    return [{"vllm_enable_sleep_mode": True}] if has_engine(config) and not config.vllm_enable_sleep_mode else []


def offload(config: RunConfig) -> list[Changes]:
    """Let the renderer's weights lie in host memory: all of them while the policy learns, or all but the part that draws."""
    drawing = rendered_footprint.measure(config)
    if drawing is None or drawing.places["renderer"] == rendered_footprint.HOST or not drawing.renderer:
        return []
    ways = ("none", "asleep", "model", "sequential")
    return [{"renderer.offload": way} for way in ways[ways.index(drawing.offload) + 1 :]]


def adapter(config: RunConfig) -> list[Changes]:
    return [] if config.lora.enabled else [{"lora.enabled": True}]


def quantization(config: RunConfig) -> list[Changes]:
    if config.lora.quantization:
        return []
    return [({} if config.lora.enabled else {"lora.enabled": True}) | {"lora.quantization": "4bit"}]


def completion(config: RunConfig) -> list[Changes]:
    lengths = [config.max_completion_length // 2**power for power in range(1, 10)]
    return [{"max_completion_length": length} for length in lengths if length >= 128]


def pixels(config: RunConfig) -> list[Changes]:
    counts = [config.data.max_pixels // 2**power for power in range(1, 4)]
    return [{"data.max_pixels": count} for count in counts if count >= config.data.min_pixels]


KNOBS = (micro_steps, checkpointing, sleep, offload, adapter, quantization, completion, pixels)
"""After the engine's share and context, which come first."""


def _together(choices: Iterable[Changes]) -> Changes:
    merged: Changes = {}
    for changes in choices:
        merged |= changes
    return merged
