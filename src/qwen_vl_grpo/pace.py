"""How long a step takes on a card that was measured, and how much a judge is asked.

The rates are what rows of docs/gpu_rows wrote, and count for what those measured: LoRA, an engine that sleeps, one picture a prompt. A
test compares them with the files. Whatever is outside has no rate here, and gets none.
"""

from __future__ import annotations

from dataclasses import dataclass

from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.footprint import Footprint, has_engine
from qwen_vl_grpo.rendered_footprint import draws
from qwen_vl_grpo.rendered_sections import JudgeSection, RendererSection
from qwen_vl_grpo.shapes import Shapes, published


@dataclass(frozen=True)
class Rate:
    """Seconds of a step's two halves, medians of a row: generation with all before the loss, and learning."""

    row: str
    date: str
    card: str
    model: str
    completions: int
    prompt: int
    tokens: int
    recomputed: int
    generate: float
    learn: float


RATES = (
    Rate("step-3b", "2026-11-28", "H100", "Qwen/Qwen2.5-VL-3B", 16, 312, 512, 36, 2.6868, 1.501),
    Rate("step-7b", "2026-11-28", "H100", "Qwen/Qwen2.5-VL-7B", 16, 312, 512, 0, 4.1238, 1.788),
    Rate("many-7b", "2026-11-28", "H100", "Qwen/Qwen2.5-VL-7B", 128, 312, 512, 0, 6.6628, 14.026),
)
REACH = 2
"""A rate counts for at most so many times its completions, and so many times fewer."""
QUESTIONS = {"complex_edit": ((2, 2630), (1, 1293)), "mmmg": ((1, 2065),)}
"""Judge -> its questions on one picture: pictures shown, and characters of its instructions (judges/*.md)."""
PIXELS, CHARACTERS = 750, 4
"""Of a token, as judges/questions.py estimates it."""


@dataclass(frozen=True)
class Pace:
    """Seconds of a step in which every answer is as long as it may be, evaluations and drawing aside, and the row that they come from."""

    seconds: float
    source: str


@dataclass(frozen=True)
class Asked:
    """What the training steps ask a judge: pictures, requests, and the tokens and cost of what is sent; what it answers is not known."""

    pictures: int
    requests: int
    input_tokens: int
    input_cost: float


def of(config: RunConfig, known: Shapes, held: Footprint, recomputed: int, card: str) -> Pace | None:
    """The pace on a card of this name; None where no row measured anything near."""
    if not has_engine(config) or not config.vllm_enable_sleep_mode or not config.lora.enabled or config.lora.quantization:
        return None
    widths = (known.family, known.hidden, known.layers, known.mlp)
    slower = any(kind in card for kind in ("PCIe", "NVL"))  # all rows are of the SXM card
    rates = [rate for rate in RATES if rate.card in card and not slower and widths == _widths(rate.model)]
    near = [rate for rate in rates if rate.completions / REACH <= held.completions <= rate.completions * REACH]
    if len(rates) > 1 and rates[0].completions <= held.completions <= rates[-1].completions:
        near = rates
    if not near or draws(config):
        return None
    completions = config.batch_size * config.gradient_accumulation_steps
    generations = completions / held.completions
    tokens = held.sequence - held.prompt_tokens
    generate = generations * tokens * _between(near, held.completions)
    rate = min(near, key=lambda rate: abs(rate.completions - held.completions))
    read = rate.completions * (rate.prompt + rate.tokens) * _passes(rate.recomputed, known.layers)
    learn = completions * held.sequence * _passes(recomputed, known.layers) * rate.learn / read
    rows = " and ".join(rate.row for rate in near)
    return Pace(generate + learn, f"{rows} ({near[0].card}, {near[0].date})")


def asked(config: RunConfig) -> Asked | None:
    """What a run's steps ask of its judge; None where nothing is judged. What the cache holds already is not asked again."""
    judging, rendering = config.judge or JudgeSection(), config.renderer or RendererSection()
    if not draws(config) or judging.replay == "only":
        return None
    pictures = config.batch_size * config.gradient_accumulation_steps * config.max_steps
    questions = QUESTIONS.get(judging.name, ())
    shrunk = min(1.0, judging.image_side / max(rendering.width, rendering.height)) ** 2
    pixels = rendering.width * rendering.height * shrunk
    sent = pictures * sum(round(shown * pixels) // PIXELS + letters // CHARACTERS for shown, letters in questions)
    return Asked(pictures, pictures * len(questions), sent, sent * judging.input_price / 1e6)


def _between(rates: list[Rate], completions: int) -> float:
    """Seconds of one token of each of so many completions: between two rows on the line through them, else those of the nearest."""
    low, high = rates[0], rates[-1]
    first, last = low.generate / low.tokens, high.generate / high.tokens
    if low is high:
        return first
    return first + (last - first) * (completions - low.completions) / (high.completions - low.completions)


def _passes(recomputed: int, layers: int) -> float:
    """Forward passes that learning an adapter comes to: forward, backward through a frozen base, and the layers that are recomputed."""
    return 2 + recomputed / layers


def _widths(model: str) -> tuple[str, int, int, int] | None:
    known = published(model)
    return known and (known.family, known.hidden, known.layers, known.mlp)
