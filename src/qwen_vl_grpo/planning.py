"""Does this config fit this card, and if not, which knob is the first to turn? Answered before anything is loaded.

Whatever decides a refusal is counted exactly: weights, adapter, optimizer, gradients, the engine's share, and vLLM's own check
at its start that this share is free beside the trainer's weights. Activations, and what driver and engine hold besides, are
estimates (footprint.py); docs/planning.md holds them against measured runs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from qwen_vl_grpo import footprint, knobs, rendered_footprint, shapes
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import ConfigError, HardwareError, PolicyError
from qwen_vl_grpo.footprint import CONTEXT, GIB, Footprint, Prompt
from qwen_vl_grpo.rendered_footprint import POLICY, Drawing
from qwen_vl_grpo.shapes import Shapes

CARDS = {"MI300X": ("MI300X 192 GB", 191.7), "H200": ("H200 141 GB", 139.8), "H100": ("H100 80 GB", 79.1), "24GB": ("24 GB", 23.5)}
"""Name on the command line -> the card, and the GiB that its driver gives to a process."""
TO_SPARE = 0.12
"""Share of a card that automatic checkpointing leaves free, since activations are estimates and memory fragments."""
IDLE = 0.5
"""GiB that a driver counts as used on a card that nobody uses."""
PHASES = ("start", "generate", "draw", "score", "backward", "save")
"""start: the engine starts beside the policy; generate: it is awake; from then on it sleeps, if it may. draw: the completions are drawn
and judged, where a run does that."""


@dataclass(frozen=True)
class Fit:
    """One card. `phases` and `gib` are in GiB, `kv_sequences` counts full-length sequences, `recomputed` the layers that gradient
    checkpointing recomputes, and `knobs` are changes under which it fits. `pictures` are drawn at once, and `others` holds the GiB in
    use on each further card that the run places something on."""

    card: str
    gib: float
    fits: bool
    reason: str
    phases: dict[str, float]
    kv_tokens: int
    kv_sequences: int
    recomputed: int
    knobs: knobs.Changes = field(default_factory=dict)
    pictures: int = 0
    others: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A config's weights by part, its footprint in bytes, and how it fits each card."""

    run_id: str
    model: str
    shapes_from: str
    tied: bool
    weights: dict[str, int]
    learning: int
    footprint: Footprint
    drawing: Drawing | None
    cards: list[Fit]


def plan(config: RunConfig, cards: Iterable[tuple[str, float]], prompt: Prompt | None = None, known: Shapes | None = None) -> Plan:
    """Judge a config on each (name, GiB); raises PolicyError if the model's shapes are not known."""
    known, prompt = known or shapes.of(config), prompt or Prompt()
    judged = []
    for name, gib in cards:
        fit = judge(config, known, prompt, name, gib)
        if not fit.fits:
            turned = knobs.advise(config, known, prompt, lambda trial, gib=gib: judge(trial, known, prompt, "", gib).fits)
            fit = replace(fit, knobs=turned)
        judged.append(fit)
    measured = footprint.measure(config, known, prompt)
    learning = known.learning(config.lora)
    drawing = rendered_footprint.measure(config)
    return Plan(config.run_id, config.model_name, known.source, known.tied, known.weights(), learning, measured, drawing, judged)


def judge(config: RunConfig, known: Shapes, prompt: Prompt, name: str, gib: float) -> Fit:
    """Whether the config fits a card of so many GiB, and the first thing that does not."""
    config = settled(config, known, prompt, gib)
    measured, card = footprint.measure(config, known, prompt), gib * GIB
    drawing = rendered_footprint.measure(config)
    used = in_use(measured, config, drawing, card)
    pictures, others = 0, {}
    if drawing:
        pictures = drawing.fitting({POLICY: card - used["save"] + drawing.resting(POLICY)} | _free(drawing, card))
        used["draw"] += drawing.drawing(POLICY, max(1, pictures)) - drawing.drawing(POLICY, drawing.pictures)
        others = {place: CONTEXT + drawing.drawing(place, max(1, pictures)) for place in drawing.cards}
    tokens = footprint.kv_tokens(measured, config, card) if footprint.has_engine(config) else 0
    reason = ""
    if footprint.has_engine(config) and used["start"] > card:
        share = config.vllm_gpu_memory_utilization * gib
        reason = f"vLLM refuses to start: its {share:.1f} GiB are not free beside the trainer's {measured.at_start / GIB:.1f}"
    elif footprint.has_engine(config) and tokens < measured.engine_context:
        reason = f"vLLM refuses to start: {tokens:,} tokens of KV cache hold no sequence of its context, {measured.engine_context:,}"
    else:
        phase = max(used, key=lambda phase: used[phase])
        if used[phase] > card:
            reason = f"{phase} takes {used[phase] / GIB:.1f} GiB"
        elif drawing:
            capped = others if footprint.has_engine(config) else {POLICY: used[phase]} | others  # the engine's share is a key of its own
            over = [place for place, size in capped.items() if size - CONTEXT > drawing.share(place) * card or size > card]
            reason = "".join(f"{place} takes {capped[place] / GIB:.1f} GiB of its {drawing.share(place) * gib:.1f}" for place in over[:1])
    phases, beside = ({key: round(size / GIB, 2) for key, size in sizes.items()} for sizes in (used, others))
    layers = footprint.recomputed_layers(config, known)
    return Fit(name, gib, not reason, reason, phases, tokens, tokens // measured.sequence, layers, {}, pictures, beside)


def in_use(measured: Footprint, config: RunConfig, drawing: Drawing | None, card: float) -> dict[str, float]:
    """Phase -> bytes in use on the policy's card, renderer and judge included: loaded with the first picture, and there from then on."""
    used = footprint.phases(measured, config, card)
    if drawing is None:
        return used
    drawn = used["save"] + drawing.drawing(POLICY, drawing.pictures)
    used = {phase: size + drawing.resting(POLICY) * (phase != "start") for phase, size in used.items()} | {"draw": drawn}
    return {phase: used[phase] for phase in PHASES}


def _free(drawing: Drawing, card: float) -> dict[str, float]:
    """Bytes for weights and pictures on each card that is not the policy's."""
    return {place: min(drawing.share(place) * card, card - CONTEXT) for place in drawing.cards}


def settled(config: RunConfig, known: Shapes, prompt: Prompt, gib: float) -> RunConfig:
    """The config with `gradient_checkpointing: auto` as the number of layers that this card makes it recompute.

    As few as leave the card TO_SPARE in the backward pass: what is kept costs memory that a sleeping engine gave back, and what
    is recomputed costs a forward pass.
    """
    if config.gradient_checkpointing != "auto":
        return config
    drawing = rendered_footprint.measure(config)
    for layers in range(known.layers):
        trial = config.model_copy(update={"gradient_checkpointing": layers})
        measured = footprint.measure(trial, known, prompt)
        if in_use(measured, trial, drawing, gib * GIB)["backward"] <= (1 - TO_SPARE) * gib * GIB:
            return trial
    return config.model_copy(update={"gradient_checkpointing": known.layers})


def refuse(config: RunConfig, card_memory_gib: float) -> None:
    """Raise HardwareError in one sentence if the engine's share cannot fit beside the trainer: exact counts and the driver's context.

    A model whose shapes are not known is let through: vLLM makes the same check once it is loaded.
    """
    if not footprint.has_engine(config) or _sharded(config):
        return
    try:
        measured = footprint.measure(config, shapes.of(config))
    except PolicyError:
        return
    card = card_memory_gib * GIB
    share, room = config.vllm_gpu_memory_utilization * card, card - CONTEXT - measured.resident
    where = f"run {config.run_id}: vllm_gpu_memory_utilization {config.vllm_gpu_memory_utilization:g}"
    highest = f"{math.floor(100 * room / card) / 100:g}"
    learns, copy = measured.resident - measured.weights, f"vLLM's copy of the weights, {measured.engine_weights / GIB:.1f} GiB"
    holds = f"the trainer holds {measured.resident / GIB:.1f} GiB (weights {measured.weights / GIB:.1f}, what learns {learns / GIB:.1f})"
    this_card = f"this card's {card_memory_gib:.1f} GiB"
    if room < measured.engine_weights:
        raise HardwareError(f"{where}: no share of {this_card} is enough: {holds} beside {copy}; `grpo plan` names the knob to turn")
    if share > room:
        raise HardwareError(
            f"{where}: takes {share / GIB:.1f} of {this_card} for vLLM and {holds} beside; set it to {highest} at most, or see `grpo plan`"
        )
    if share < measured.engine_weights:
        raise HardwareError(
            f"{where}: takes {share / GIB:.1f} of {this_card}, which do not hold {copy}; set it higher, up to {highest}, or see `grpo plan`"
        )


def refuse_tight(config: RunConfig, card_memory_gib: float, longest: int) -> None:
    """Raise HardwareError in one sentence if a run whose prompts hold at most `longest` tokens does not fit by the estimates too.

    The prompt counts as all text, the least that it can cost, since a run that would have fitted must not be refused.
    """
    if _sharded(config):
        return
    fit = plan(config, [("this card", card_memory_gib)], Prompt(text=longest, pictures=0)).cards[0]
    if not fit.fits:
        raise HardwareError(
            f"run {config.run_id}: does not fit this card's {card_memory_gib:.1f} GiB by `grpo plan`, with prompts of up to {longest} "
            f"tokens: {fit.reason}; {_advice(fit)}, or set allow_tight_memory: true to try anyway"
        )


def refuse_occupied(config: RunConfig, card_memory_gib: float, held_gib: float, processes: Sequence[int] = ()) -> None:
    """Raise HardwareError in one sentence if what other processes hold of the card leaves too little for the exact counts of `refuse`."""
    if held_gib < IDLE or _sharded(config):
        return
    try:
        trainer = footprint.measure(config, shapes.of(config)).resident / GIB + CONTEXT / GIB
    except PolicyError:
        return
    share = config.vllm_gpu_memory_utilization * card_memory_gib if footprint.has_engine(config) else 0.0
    if held_gib + trainer + share <= card_memory_gib:
        return
    who = "another process holds" if len(processes) < 2 else "other processes hold"
    named = f" (pid {', '.join(map(str, processes))})" if processes else ""
    raise HardwareError(
        f"run {config.run_id}: {who} {held_gib:.1f} of this card's {card_memory_gib:.1f} GiB{named}, and the run needs "
        f"{trainer + share:.1f} ({trainer:.1f} for the trainer, {share:.1f} for vLLM) before it has computed anything; wait until it ends, "
        "take another card with CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES, or set allow_tight_memory: true"
    )


def named(card: str) -> tuple[str, float]:
    """A card by the name in CARDS, or by its GiB; raises ConfigError."""
    for name, known in CARDS.items():
        if card.lower() == name.lower():
            return known
    try:
        gib = float(card)
    except ValueError:
        gib = 0.0
    if not 0 < gib < 10_000:
        raise ConfigError(f"--card {card}: no such card; name one of {', '.join(CARDS)}, or give the GiB of yours")
    return f"{gib:g} GiB", gib


def text(plan: Plan) -> str:
    """The plan as a person reads it; sizes in GiB of 2**30 bytes."""
    held, parts = plan.footprint, plan.weights | ({"head": "tied"} if plan.tied else {})
    total = sum(plan.weights.values())
    exact = {
        "weights": held.weights, "reference": held.reference, "adapter": held.adapter, "optimizer": held.optimizer,
        "gradients": held.gradients, "vLLM's weights": held.engine_weights,
    }  # fmt: skip
    estimated = {
        "activations scoring": held.score, "and learning": held.backward, "transformers' generation": held.generation,
        "pictures": held.pictures, "driver": CONTEXT, "vLLM beyond its share": footprint.ENGINE_AWAKE * bool(held.engine_weights),
    }  # fmt: skip
    lines = [
        f"{plan.model}: {total:,} weights, read from {plan.shapes_from}; {plan.learning:,} learn",
        "  " + ", ".join(f"{part} {count if isinstance(count, str) else f'{count:,}'}" for part, count in parts.items()),
        f"a micro-step: {held.sequences} sequences of {held.prompt_tokens:,} + {held.sequence - held.prompt_tokens:,} tokens; "
        f"{held.completions} completions are generated at once",
        "counted, GiB: " + ", ".join(f"{name} {size / GIB:.2f}" for name, size in exact.items() if size),
        "estimated, GiB: " + ", ".join(f"{name} {size / GIB:.2f}" for name, size in estimated.items() if size),
        *_drawn(plan.drawing),
        "",
        f"{'GiB in use':20} {'card':>6} " + " ".join(f"{phase:>8}" for phase in PHASES if plan.drawing or phase != "draw"),
    ]
    for card in plan.cards:
        sizes = " ".join(f"{size:8.1f}" for size in card.phases.values())
        lines += [f"{card.card[:20]:20} {card.gib:6.1f} {sizes}  {'fits' if card.fits else 'does not fit'}", *_remarks(card)]
    return "\n".join([*lines, "", "What is estimated is held against measured runs in docs/planning.md."])


def _drawn(drawing: Drawing | None) -> list[str]:
    """What renderer and judge hold, part by part, and where."""
    if drawing is None:
        return []
    lines = []
    if drawing.renderer:
        parts = ", ".join(f"{part} {size / GIB:.2f}" for part, size in drawing.renderer.items())
        lines.append(f"renderer ({_where(drawing, 'renderer')}), GiB: {parts}; a picture while it is drawn {drawing.picture / GIB:.2f}")
    if drawing.judge:
        lines.append(f"judge ({_where(drawing, 'judge')}), GiB: {drawing.judge / GIB:.2f}")
    if host := drawing.on_host():
        lines.append(f"host memory, GiB: {host / GIB:.2f}")
    return lines + [f"not counted, for its size is not known here: {name}" for name in drawing.unknown]


def _where(drawing: Drawing, part: str) -> str:
    place = {POLICY: "the policy's card", rendered_footprint.HOST: "the CPU"}.get(drawing.places[part], drawing.places[part])
    return f"{place}, offload {drawing.offload}" if part == "renderer" and drawing.offload != "none" else place


def _remarks(card: Fit) -> list[str]:
    if card.fits:
        cache = f"; KV cache: {card.kv_tokens:,} tokens, {card.kv_sequences:,} full-length sequences at once" if card.kv_tokens else ""
        spare = f"    {card.gib - max(card.phases.values()):.1f} to spare"
        lines = [f"{spare}; {card.recomputed} layers recomputed in the backward pass{cache}"]
        beside = "; ".join(f"{place}: {gib:.1f}" for place, gib in card.others.items())
        drawn = f"    {card.pictures} pictures drawn at once" + f"; in use on {beside}" * bool(beside)
        return lines + [drawn] * bool(card.pictures)
    return [f"    {card.reason}", f"    {_advice(card)}"]


def _advice(card: Fit) -> str:
    turned = " ".join(f"--set {key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in card.knobs.items())
    return f"turn first: {turned}" if turned else "no knob is enough: take a smaller model or several cards"


def _sharded(config: RunConfig) -> bool:
    """Whether a card holds only a part of the trainer or of the engine."""
    launched = any(os.environ.get(f"ACCELERATE_USE_{kind}") == "true" for kind in ("DEEPSPEED", "FSDP"))
    return launched or any(config.trl.get(key) for key in ("deepspeed", "fsdp")) or config.trl.get("vllm_tensor_parallel_size", 1) > 1
