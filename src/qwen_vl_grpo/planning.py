"""Does this config fit this card, and if not, which knob is the first to turn? Answered before anything is loaded.

Whatever decides a refusal is counted exactly: weights, adapter, optimizer, gradients, the engine's share, and vLLM's own check
at its start that this share is free beside the trainer's weights. Activations, and what driver and engine hold besides, are
estimates (footprint.py); docs/planning.md holds them against measured runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from qwen_vl_grpo import footprint, knobs, pace, rendered_footprint, shapes, spreading, storage, strategies
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import ConfigError, HardwareError, PolicyError
from qwen_vl_grpo.footprint import CONTEXT, GIB, Footprint, Prompt
from qwen_vl_grpo.pace import Asked, Pace
from qwen_vl_grpo.rendered_footprint import POLICY, Drawing
from qwen_vl_grpo.shapes import Shapes
from qwen_vl_grpo.spreading import ALONE, STRATEGIES, Spread
from qwen_vl_grpo.storage import Disk

CARDS = {"MI300X": ("MI300X 192 GB", 191.7), "H200": ("H200 141 GB", 139.8), "H100": ("H100 80 GB", 79.1), "24GB": ("24 GB", 23.5)}
"""Name on the command line -> the card, and the GiB that its driver gives to a process."""
TO_SPARE = 0.12
"""Share of a card that automatic checkpointing leaves free, since activations are estimates and memory fragments."""
IDLE = 0.5
"""GiB that a driver counts as used on a card that nobody uses."""
PHASES = ("load", "start", "split", "generate", "draw", "score", "backward", "optimizer", "evaluate", "save")
"""load: the policy alone; start: the engine starts beside it; generate, evaluate: it is awake; else it sleeps, if it may. split: what
each card has loaded whole is parted among them (fsdp2). draw: the completions are drawn and judged, where a run does that."""


@dataclass(frozen=True)
class Fit:
    """One card. `phases` and `gib` are in GiB, `kv_sequences` counts full-length sequences, `recomputed` the layers that gradient
    checkpointing recomputes, and `knobs` are changes under which it fits. `pictures` are drawn at once, and `others` holds the GiB in
    use on each further card that the run places something on. `pace` is None where no step was measured on such a card, and `strategy`
    how several of them would share the trainer."""

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
    pace: Pace | None = None
    strategy: str = "single"


@dataclass(frozen=True)
class Plan:
    """A config's weights by part, its footprint in bytes, what it takes of disk, host and judge, and how it fits each card. `kept` are the
    bytes of its activations were no layer recomputed; `steps` of `tokens` each, were every answer as long as it may be."""

    run_id: str
    model: str
    shapes_from: str
    tied: bool
    weights: dict[str, int]
    learning: int
    footprint: Footprint
    kept: int
    drawing: Drawing | None
    disk: Disk
    host: dict[str, int]
    asked: Asked | None
    steps: int
    tokens: int
    cards: list[Fit]


def plan(
    config: RunConfig,
    cards: Iterable[tuple[str, float]],
    prompt: Prompt | None = None,
    known: Shapes | None = None,
    ranks: int = 1,
    on_card: bool = True,
) -> Plan:
    """Judge a config on each (name, GiB), `ranks` of them together; raises PolicyError if the model's shapes are not known."""
    known, prompt = known or shapes.of(config), prompt or Prompt()
    judged = []
    for name, gib in cards:
        strategy = "single" if ranks == 1 else strategy_that_fits(config, gib, ranks, known, prompt) or STRATEGIES[-1]
        judged.append(_advised(config, known, prompt, name, gib, Spread(strategy, ranks)))
    measured, drawing = footprint.measure(config, known, prompt), rendered_footprint.measure(config)
    kept = footprint.measure(config.model_copy(update={"gradient_checkpointing": False}), known, prompt).backward
    completions = config.batch_size * config.gradient_accumulation_steps * ranks
    shared = Spread(judged[0].strategy, ranks) if judged else ALONE
    return Plan(
        config.run_id, config.model_name, known.source, known.tied, known.weights(), known.learning(config.lora), measured, kept, drawing,
        storage.disk(config, known, spreading.written(measured, config, known, shared)),
        storage.host(config, known, measured, on_card, drawing.on_host() if drawing else 0),
        pace.asked(config), config.max_steps, completions * measured.sequence, judged,
    )  # fmt: skip


def _advised(config: RunConfig, known: Shapes, prompt: Prompt, name: str, gib: float, spread: Spread) -> Fit:
    fit = judge(config, known, prompt, name, gib, spread)
    if fit.fits:
        return fit
    return replace(fit, knobs=knobs.advise(config, known, prompt, lambda trial: judge(trial, known, prompt, "", gib, spread).fits))


def strategy_that_fits(
    config: RunConfig,
    gib: float,
    ranks: int,
    known: Shapes | None = None,
    prompt: Prompt | None = None,
    among: Sequence[str] = STRATEGIES[1:],
) -> str | None:
    """The first way to share a trainer among `ranks` cards of so many GiB under which the config fits; None if none is enough.

    One that cannot be had (zero2 and zero3 need DeepSpeed) is left out of `among`. Raises PolicyError if the model's shapes are not known.
    """
    known, prompt = known or shapes.of(config), prompt or Prompt()
    return next((name for name in among if judge(config, known, prompt, "", gib, Spread(name, ranks)).fits), None)


def judge(config: RunConfig, known: Shapes, prompt: Prompt, name: str, gib: float, spread: Spread = ALONE) -> Fit:
    """Whether the config fits a card of so many GiB, and the first thing that does not."""
    config = settled(config, known, prompt, gib, spread)
    measured, card = spreading.split(footprint.measure(config, known, prompt), config, known, spread), gib * GIB
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
    speed = pace.of(config, known, measured, layers, name) if spread.ranks == 1 else None
    return Fit(
        name, gib, not reason, reason, phases, tokens, tokens // measured.sequence, layers, {}, pictures, beside, speed, spread.strategy
    )


def in_use(measured: Footprint, config: RunConfig, drawing: Drawing | None, card: float) -> dict[str, float]:
    """Phase -> bytes in use on the policy's card, renderer and judge included: loaded with the first picture, and there from then on."""
    used = footprint.phases(measured, config, card)
    if drawing is None:
        return used
    drawn = used["save"] + drawing.drawing(POLICY, drawing.pictures)
    used = {phase: size + drawing.resting(POLICY) * (phase not in ("load", "start", "split")) for phase, size in used.items()}
    used["draw"] = drawn
    return {phase: used[phase] for phase in PHASES if phase in used}


def _free(drawing: Drawing, card: float) -> dict[str, float]:
    """Bytes for weights and pictures on each card that is not the policy's."""
    return {place: min(drawing.share(place) * card, card - CONTEXT) for place in drawing.cards}


def settled(config: RunConfig, known: Shapes, prompt: Prompt, gib: float, spread: Spread = ALONE) -> RunConfig:
    """The config with `gradient_checkpointing: auto` as the number of layers that this card makes it recompute.

    As few as leave the card TO_SPARE in the backward pass: what is kept costs memory that a sleeping engine gave back, and what
    is recomputed costs a forward pass.
    """
    if config.gradient_checkpointing != "auto":
        return config
    drawing = rendered_footprint.measure(config)
    for layers in range(known.layers):
        trial = config.model_copy(update={"gradient_checkpointing": layers})
        measured = spreading.split(footprint.measure(trial, known, prompt), trial, known, spread)
        if in_use(measured, trial, drawing, gib * GIB)["backward"] <= (1 - TO_SPARE) * gib * GIB:
            return trial
    return config.model_copy(update={"gradient_checkpointing": known.layers})


def refuse(config: RunConfig, card_memory_gib: float) -> None:
    """Raise HardwareError in one sentence if the engine's share cannot fit beside the trainer: exact counts and the driver's context.

    A model whose shapes are not known is let through: vLLM makes the same check once it is loaded.
    """
    if not footprint.has_engine(config) or sharded(config):
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
    if shared_by_trl(config) or strategies.named() not in STRATEGIES:
        return
    fit = _advised(config, shapes.of(config), Prompt(text=longest, pictures=0), "this card", card_memory_gib, spreading.launched_as())
    if not fit.fits:
        raise HardwareError(
            f"run {config.run_id}: does not fit this card's {card_memory_gib:.1f} GiB by `grpo plan`, with prompts of up to {longest} "
            f"tokens: {fit.reason}; {knobs.said(fit.knobs)}, or set allow_tight_memory: true to try anyway"
        )


def refuse_occupied(config: RunConfig, card_memory_gib: float, held_gib: float, processes: Sequence[int] = ()) -> None:
    """Raise HardwareError in one sentence if what other processes hold of the card leaves too little for the exact counts of `refuse`."""
    if held_gib < IDLE or sharded(config):
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


def sharded(config: RunConfig) -> bool:
    """Whether a card holds only a part of the trainer or of the engine."""
    return shared_by_trl(config) or strategies.named() not in strategies.WHOLE


def shared_by_trl(config: RunConfig) -> bool:
    """Whether TRL's own options share trainer or engine among cards, of which no plan is made."""
    return any(config.trl.get(key) for key in ("deepspeed", "fsdp")) or config.trl.get("vllm_tensor_parallel_size", 1) > 1
