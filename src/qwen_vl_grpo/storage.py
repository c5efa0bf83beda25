"""What a run takes beside its card, in bytes: the disk of its checkpoints and the memory of the machine."""

from __future__ import annotations

from dataclasses import dataclass

from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.footprint import GIB, Footprint, casts, has_engine
from qwen_vl_grpo.shapes import Shapes, local_file

PROCESSOR = 16 * 2**20
"""Tokenizer and processor of a published Qwen-VL; those of a local folder are looked at."""
WORDS = (".json", ".txt", ".jinja", ".model")
LIBRARIES, ENGINE, TOKEN = int(0.95 * GIB), int(1.6 * GIB), 1400
"""Host memory of Python with torch, transformers and TRL, what vLLM adds, and the tokenizer's bytes an entry: seen on a CPU with tiny
models (benchmarks/gpu_plan.py)."""
ENGINE_ON_A_CARD = int(0.6 * GIB)
"""What vLLM and the card's driver add where the engine's memory is the card's: 0.59 to 0.61 in six runs (docs/gpu_rows/plan-*.json)."""
ON_THE_CPU = 2.0
"""Activations on a CPU against those of the footprint in float32: without autocast all of them are float32 (1.3 to 1.6), and glibc keeps
for later what was freed."""


@dataclass(frozen=True)
class Disk:
    """`checkpoints` lie there at once, the one that is being written among them; `warmup` is the base that a warm-up leaves."""

    weights: int
    optimizer: int
    processor: int
    checkpoints: int
    warmup: int

    @property
    def checkpoint(self) -> int:
        return self.weights + self.optimizer + self.processor

    @property
    def whole(self) -> int:
        return self.checkpoints * self.checkpoint + self.warmup


def disk(config: RunConfig, shapes: Shapes, held: Footprint) -> Disk:
    """Count what a run writes: adapter or whole model, Adam's states and the processor, as often as checkpoints are kept."""
    saves = -(-config.max_steps // (config.save_steps or config.max_steps))
    kept = min(saves, config.save_total_limit + 1 if config.save_total_limit else saves)
    warmup = 4 * shapes.total() if config.warmup else 0  # a warm-up trains in float32
    states = 0 if config.trl.get("save_only_model") else held.optimizer
    return Disk(held.adapter or held.weights, states, _processor(config), kept, warmup)


def host(config: RunConfig, shapes: Shapes, held: Footprint, on_card: bool, drawn: int = 0) -> dict[str, int]:
    """Part -> bytes of host memory; `drawn` is what a renderer or judge keeps there. Without a card everything lies there."""
    libraries = LIBRARIES + TOKEN * shapes.vocabulary + (ENGINE_ON_A_CARD if on_card else ENGINE) * has_engine(config)
    parts = {"libraries": libraries, "renderer and judge": drawn}
    if on_card:  # the file is mapped while the card takes its weights, which it holds unpacked where they become 4-bit ones
        read = 2 * shapes.total() if config.lora.quantization else held.weights
        return {name: size for name, size in (parts | {"weights while they load": read}).items() if size}
    activations = round(ON_THE_CPU * max(held.backward - casts(config, shapes), held.score))
    learning = held.pictures + held.gradients + activations
    return parts | {"policy": held.resident + max(learning, held.generation, held.evaluation)}


def _processor(config: RunConfig) -> int:
    described = local_file(config.model_name, config.model_revision, "config.json")
    if described is None or not described.is_file():
        return PROCESSOR
    return sum(path.stat().st_size for path in described.parent.iterdir() if path.suffix in WORDS and "index" not in path.name)
