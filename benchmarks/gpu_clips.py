"""Clips in the policy's own video path beside their frames as pictures: tokens, seconds of a step, memory, and whether rollouts agree.

One policy, one engine, the same frames of noise in every arm; the arms take turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import datasets
import numpy
import torch
from PIL import Image

from benchmarks import gpu_rig
from qwen_vl_grpo import policy, row_clips
from qwen_vl_grpo.interfaces import Clip, Sample

SIDE = 224
"""Pixels a side of a frame: 64 tokens of Qwen2.5-VL."""
FPS = 2.0
PROMPTS = 2
FRAMES = (16, 64)
ASKED = [{"type": "text", "text": "Which of these happen? (1) reach (2) grasp (3) place"}]
CHANGES = [
    "batch_size=4", "gradient_accumulation_steps=4", "max_completion_length=128", "vllm_max_model_length=8192", "data.min_pixels=3136",
    f"data.max_pixels={SIDE * SIDE}",
    f"engine.limit_mm_per_prompt={{image: {{count: {FRAMES[-1]}, width: {SIDE}, height: {SIDE}}}, "
    f"video: {{count: 1, num_frames: {FRAMES[-1]}, width: {SIDE}, height: {SIDE}}}}}",
]  # fmt: skip


def measure(size: str, rounds: int = 2, each: int = 2) -> dict[str, Any]:
    """Steps of the four arms in turns, every layer recomputed, the engine asleep while the policy learns."""
    config, prepared = gpu_rig.prepare(size, CHANGES)
    rows = {f"{count} frames, {name}": arm(count, mode) for count in FRAMES for name, mode in (("a clip", True), ("as pictures", False))}
    trainer: Any = gpu_rig.ours(config, replace(prepared, rows=next(iter(rows.values()))))
    trainer._clip_of = clip_of
    gpu_rig.as_ours(trainer, 100)
    found: dict[str, dict[str, Any]] = {name: {"peak GiB": 0.0} | tokens(prepared.processor, data[0]) for name, data in rows.items()}

    def steps(name: str) -> list[float]:
        trainer.train_dataset = rows[name]
        torch.cuda.reset_peak_memory_stats()
        with gpu_rig.peak() as card:
            seconds = gpu_rig.steps(trainer, each)
        held, allocated = max(found[name]["peak GiB"], card["gib"]), torch.cuda.max_memory_allocated() / 2**30
        found[name] |= {"peak GiB": round(held, 1), "allocated by torch at most, GiB": round(allocated, 1)}
        found[name]["logged"] = gpu_rig.logged(trainer, "rollouts/", "step_time")
        return seconds

    seconds = gpu_rig.interleaved({name: lambda name=name: steps(name) for name in rows}, rounds)
    for name, taken in seconds.items():
        found[name] |= {"seconds": [round(second, 3) for second in taken], "median": round(statistics.median(taken), 3)}
    ratios = {}
    for count in FRAMES:
        clip, pictures = (f"{count} frames, {name}" for name in ("a clip", "as pictures"))
        ratios[f"{count} frames, a clip / as pictures"] = {
            "step": gpu_rig.ratio(seconds[clip], seconds[pictures]),
            "vision tokens": round(found[clip]["vision tokens"] / found[pictures]["vision tokens"], 3),
        }
    return {"arms": found, "ratios": ratios, "completions a step": config.batch_size * config.gradient_accumulation_steps}


def arm(count: int, as_clip: bool) -> datasets.Dataset:
    """Prepared rows of one clip each, as `video.mode: video` or `frames` makes them."""
    made: list[dict[str, Any]] = []
    for number in range(PROMPTS):
        kept = {"sha256": str(number), "indices": list(range(count)), "fps": FPS, "total": count, "width": SIDE, "height": SIDE}
        sample = Sample(str(number), [{"role": "user", "content": [{"type": "video", "text": ""}, *ASKED]}], [], "")
        images: list[Image.Image] = []
        prompt = sample.prompt
        if not as_clip:
            prompt, images = row_clips.as_pictures(sample, [clip_of(kept)])
        made.append({"id": str(number), "prompt": prompt, "answer": "", "videos": [kept] if as_clip else [], "images": images})
    columns = {name: [row[name] for row in made] for name in made[0]}
    if not as_clip:
        del columns["videos"]
    features = datasets.Dataset.from_dict({name: column for name, column in columns.items() if name != "images"}).features
    features["images"] = datasets.List(datasets.Image())
    return datasets.Dataset.from_dict(columns, features=features)


def clip_of(kept: Mapping[str, Any]) -> Clip:
    """The frames of a row: noise, always the same."""
    shape = (len(kept["indices"]), kept["height"], kept["width"], 3)
    frames = numpy.random.default_rng(int(kept["sha256"])).integers(0, 256, shape, dtype=numpy.uint8)
    return Clip(frames, tuple(kept["indices"]), kept["fps"], kept["total"], kept["sha256"])


def tokens(processor: Any, row: Mapping[str, Any]) -> dict[str, int]:
    """Tokens of a prompt, and how many of them are seen."""
    sample = Sample("", row["prompt"], row["images"], "", videos=[clip_of(kept) for kept in row.get("videos") or []])
    encoded = policy.encode(processor, [sample])
    return {"prompt tokens": encoded["input_ids"].shape[1], "vision tokens": int((encoded["mm_token_type_ids"] > 0).sum())}
