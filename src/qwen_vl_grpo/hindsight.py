"""What the plan said of a run, beside what the run measured: predicted before the policy is loaded, compared when the run is finished."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qwen_vl_grpo import footprint, pace, planning, rendered_footprint, shapes, spreading, storage
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.footprint import GIB, Prompt
from qwen_vl_grpo.hardware import Hardware
from qwen_vl_grpo.plan_figures import CARD, CHECKPOINT, HOST, RESERVED, SECONDS, TORCH


def predict(config: RunConfig, machine: Hardware, gib: float | None, longest: int, shown: bool, recomputed: int) -> dict[str, Any]:
    """Figure -> {"predicted": value}, None where nothing is known; `longest` is the longest prompt in tokens, `gib` the card's.

    `shown` says whether prompts show pictures; `recomputed` is what automatic checkpointing came to. Of a trainer that is split
    among processes only the card is predicted, and nothing where TRL's own options split it.
    """
    if planning.shared_by_trl(config):
        return {}
    known, spread = shapes.of(config), spreading.launched_as()
    picture = min(known.picture_tokens(config.data.max_pixels), longest - 1) if shown else 0
    prompt = Prompt(text=longest - picture, pictures=int(shown), picture_tokens=picture)
    dtype = "float32" if config.dtype == "auto" and not machine.accelerated else config.dtype
    config = config.model_copy(update={"gradient_checkpointing": recomputed, "dtype": dtype})
    held = spreading.split(footprint.measure(config, known, prompt), config, known, spread)
    drawing = rendered_footprint.measure(config)
    host = storage.host(config, known, held, machine.accelerated, drawing.on_host() if drawing else 0)
    figures = {HOST: sum(host.values()) / GIB, CHECKPOINT: storage.disk(config, known, held).checkpoint / GIB}
    if gib is not None:
        fit = planning.judge(config, known, prompt, machine.name, gib, spread)
        peak = footprint.torch_peak(held, config, gib * GIB) / GIB
        figures |= {CARD.format(phase): size for phase, size in fit.phases.items()} | {TORCH: peak, RESERVED: peak}
    if planning.sharded(config):
        return {name: {"predicted": value} for name, value in figures.items() if name not in (HOST, CHECKPOINT)}
    speed = pace.of(config, known, held, recomputed, machine.name)
    return {name: {"predicted": value} for name, value in figures.items()} | {SECONDS: {"predicted": speed and speed.seconds}}


def compare(predicted: Mapping[str, Any], measured: Mapping[str, float]) -> dict[str, Any]:
    """Both figures and what was measured as a share of what was predicted; what was not measured stays as it was predicted."""
    found: dict[str, Any] = {}
    for name, said in predicted.items():
        if name in measured:
            expected, value = said["predicted"], measured[name]
            found[name] = {"predicted": expected, "measured": value, "ratio": value / expected if expected else None}
        else:
            found[name] = dict(said)
    return found


def text(plan: Mapping[str, Any]) -> str:
    """The comparison as a table."""
    lines = [f"{'the plan and the run':24} {'predicted':>9} {'measured':>9} {'ratio':>6}"]
    for name, said in plan.items():
        figures = [_shown(said.get(key)) for key in ("predicted", "measured")]
        lines.append(f"{name:24} {figures[0]:>9} {figures[1]:>9} {'' if said.get('ratio') is None else format(said['ratio'], '.2f'):>6}")
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.1f}"
