"""A plan as a person reads it."""

from __future__ import annotations

from qwen_vl_grpo import footprint, knobs, rendered_footprint
from qwen_vl_grpo.footprint import CONTEXT, GIB
from qwen_vl_grpo.pace import Asked
from qwen_vl_grpo.planning import PHASES, Fit, Plan
from qwen_vl_grpo.rendered_footprint import POLICY, Drawing

DOCUMENTED = {"policy": 25, "DiT": 15, "pipeline": 20, "activations": 15}
"""GB that the documentation gives for image editing on one card."""


def text(plan: Plan) -> str:
    """The whole plan; sizes in GiB of 2**30 bytes."""
    held, parts = plan.footprint, plan.weights | ({"head": "tied"} if plan.tied else {})
    total = sum(plan.weights.values())
    exact = {
        "weights": held.weights, "reference": held.reference, "adapter": held.adapter, "optimizer": held.optimizer,
        "gradients": held.gradients, "vLLM's weights": held.engine_weights,
    }  # fmt: skip
    estimated = {
        "activations scoring": held.score, "learning": held.backward, "with every layer kept": plan.kept, "logits among them": held.logits,
        "transformers' generation": max(held.generation, held.evaluation), "pictures": held.pictures, "driver": CONTEXT,
        "vLLM beyond its share": footprint.ENGINE_AWAKE * bool(held.engine_weights),
    }  # fmt: skip
    lines = [
        f"{plan.model}: {total:,} weights, read from {plan.shapes_from}; {plan.learning:,} learn",
        "  " + ", ".join(f"{part} {count if isinstance(count, str) else f'{count:,}'}" for part, count in parts.items()),
        f"a micro-step: {held.sequences} sequences of {held.prompt_tokens:,} + {held.sequence - held.prompt_tokens:,} tokens; "
        f"{held.completions} completions are generated at once",
        "counted, GiB: " + ", ".join(f"{name} {size / GIB:.2f}" for name, size in exact.items() if size),
        "estimated, GiB: " + ", ".join(f"{name} {size / GIB:.2f}" for name, size in estimated.items() if size),
        *_drawn(plan),
        "host memory, GiB: " + ", ".join(f"{part} {size / GIB:.2f}" for part, size in plan.host.items() if size),
        f"disk: {_size(plan.disk.checkpoint)} a checkpoint (weights {_size(plan.disk.weights)}, optimizer {_size(plan.disk.optimizer)}), "
        f"{plan.disk.checkpoints} at once" + f", warmed-up base {_size(plan.disk.warmup)}" * bool(plan.disk.warmup),
        f"{plan.steps} steps of at most {plan.tokens:,} tokens",
        *_asked(plan.asked),
        "",
    ]
    phases = [phase for phase in PHASES if any(phase in card.phases for card in plan.cards)]
    if plan.cards:
        lines += [f"{'GiB in use':20} {'card':>6} " + " ".join(f"{phase:>9}" for phase in phases)]
    for card in plan.cards:
        sizes = " ".join(f"{card.phases[phase]:9.1f}" if phase in card.phases else " " * 9 for phase in phases)
        lines += [f"{card.card[:20]:20} {card.gib:6.1f} {sizes}  {'fits' if card.fits else 'does not fit'}", *_remarks(card, plan.steps)]
    return "\n".join([*lines, "", "What is estimated is held against measured runs in docs/planning.md."])


def documented(plan: Plan) -> dict[str, float]:
    """Our figures for the parts that the documentation names, in GB of 10**9 bytes; its card is large enough to keep every layer."""
    held, drawing = plan.footprint, plan.drawing
    policy = held.weights + held.adapter + held.optimizer + held.gradients
    parts, picture = (drawing.renderer, drawing.one) if drawing else ({}, 0)
    ours = {"policy": policy, "DiT": parts.get("transformer", 0), "pipeline": sum(parts.values()) + picture, "activations": plan.kept}
    return {part: size / 1e9 for part, size in ours.items()}


def _size(size: float) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / 2**20:.1f} MiB"


def _asked(asked: Asked | None) -> list[str]:
    """What the steps ask of a judge."""
    if asked is None:
        return []
    told = f"judge: {asked.pictures:,} pictures"
    if asked.requests:
        told += f", {asked.requests:,} requests that send about {asked.input_tokens:,} tokens"
    return [told + f" for {asked.input_cost:,.2f}" * bool(asked.input_cost) + "; answers, votes and evaluations beside"]


def _drawn(plan: Plan) -> list[str]:
    """What renderer and judge hold, part by part, and where."""
    drawing = plan.drawing
    if drawing is None:
        return []
    lines = []
    if drawing.renderer:
        parts = ", ".join(f"{part} {size / GIB:.2f}" for part, size in drawing.renderer.items())
        lines.append(f"renderer ({_where(drawing, 'renderer')}), GiB: {parts}; a picture while it is drawn {drawing.one / GIB:.2f}")
    if drawing.judge:
        lines.append(f"judge ({_where(drawing, 'judge')}), GiB: {drawing.judge / GIB:.2f}")
    if "transformer" in drawing.renderer and "text_encoder" not in drawing.renderer:  # Qwen-Image, whose text encoder is the policy
        rows = ", ".join(f"{part} {DOCUMENTED[part]} and {size:.1f}" for part, size in documented(plan).items())
        lines.append(f"the documented rows and ours, GB: {rows}")
    return lines + [f"not counted, for its size is not known here: {name}" for name in drawing.unknown]


def _where(drawing: Drawing, part: str) -> str:
    place = {POLICY: "the policy's card", rendered_footprint.HOST: "the CPU"}.get(drawing.places[part], drawing.places[part])
    return f"{place}, offload {drawing.offload}" if part == "renderer" and drawing.offload != "none" else place


def _remarks(card: Fit, steps: int) -> list[str]:
    shared = [f"    {card.strategy} is the first way to share the trainer that fits"] * (card.strategy != "single" and card.fits)
    if card.fits:
        cache = f"; KV cache: {card.kv_tokens:,} tokens, {card.kv_sequences:,} full-length sequences at once" if card.kv_tokens else ""
        spare = f"    {card.gib - max(card.phases.values()):.1f} to spare"
        lines = [f"{spare}; {card.recomputed} layers recomputed in the backward pass{cache}"]
        beside = "; ".join(f"{place}: {gib:.1f}" for place, gib in card.others.items())
        drawn = f"    {card.pictures} pictures drawn at once" + f"; in use on {beside}" * bool(beside)
        return [*shared, *lines, *[drawn] * bool(card.pictures), f"    {_hours(card, steps)}"]
    return [f"    {card.reason}", f"    {knobs.said(card.knobs)}"]


def _hours(card: Fit, steps: int) -> str:
    if card.pace is None:
        return "no step like this was measured on such a card, so it tells no hours"
    return f"{card.pace.seconds:.1f} s a step, {steps * card.pace.seconds / 3600:.2f} hours, at the rate of {card.pace.source}"
