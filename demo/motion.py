"""The demonstration of clips: a tiny Qwen-VL policy learns which of four motions comes first, and loses it when time is taken away.

    make demo-video      # or: python -m demo.motion --seed 1

Every step but the clips and the tiny model is the product's own, as in a run of full size. The controls ask the trained checkpoint about
the same held-out clips without their time: one frame repeated, and the frames in a drawn order. Either leaves nothing to know (motions.py),
so a policy that is right more often than by chance does not look at the clip that it is given.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from demo.__main__ import OUTPUTS, arguments, console, in_one_line, seeded, speak, train  # sets the CPU first
from demo.seeds_table import between
from qwen_vl_grpo import config
from qwen_vl_grpo.interfaces import Clip, RunCard, Sample

VOCABULARY = 420
"""Entries of the tokenizer: the bytes, and what the question and its answers are made of."""


def video_config(seed: int, overrides: Sequence[str]) -> config.RunConfig:
    return seeded("video", run_id(seed), f"video-base-s{seed}", f"video-s{seed}", seed, overrides)


def run_id(seed: int) -> str:
    return "video-demo" if seed == 0 else f"video-demo-s{seed}"


def main() -> None:
    given = arguments("make demo-video", "Train a tiny policy on which of four motions comes first in a clip.", "video")
    speak()
    run = video_config(given.seed, given.set)
    started = time.perf_counter()
    prepare(run, given.seed)
    card = train(run)
    ends = {"controls": controls(run), "seconds": round(time.perf_counter() - started), "cpu_seconds": round(time.process_time())}
    ends_file(given.seed).write_text(json.dumps(ends, indent=2), encoding="utf-8")
    show(card, ends)


def prepare(run: config.RunConfig, seed: int) -> None:
    import torch
    from transformers.utils import logging as transformers_logging

    from demo import motions, tiny_qwen

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    transformers_logging.disable_progress_bar()
    rows = motions.write(Path(run.dataset_name), seed)
    console.print(f"data: {', '.join(f'{count} {name}' for name, count in rows.items())} clips in {run.dataset_name}")
    weights = tiny_qwen.build(run.model_name, seed=seed, phrases=motions.PHRASES, vocabulary=VOCABULARY)
    console.print(f"model: a random Qwen2.5-VL of {weights / 1e6:.2f} million weights in {run.model_name}")


def controls(run: config.RunConfig) -> dict[str, Any]:
    """Greedy answers of the trained checkpoint to the held-out clips: as they are, those played backwards, and without time."""
    from qwen_vl_grpo import answering, dataset, evaluation, policy, registry, splits, tasks, transformers_backend

    card, run_dir = registry.resolve(run.run_id)
    model, processor, _ = transformers_backend.load_run(card, run_dir)
    task = tasks.build(run.task)
    held_out = splits.load(run, task, policy.load_processor(run)).held_out
    assert held_out is not None
    samples = [replace(sample, videos=list(sample.videos)) for sample in dataset.to_samples(held_out)]
    generate = answering.with_transformers(model, processor, run.max_completion_length, run.evaluation.batch_size, run.seed)
    draw = random.Random(run.seed)
    shown: dict[str, Callable[[Clip], Clip]] = {
        "the clips as they are": lambda clip: clip,
        "one frame of each, repeated": partial(one_frame, draw),
        "their frames in a drawn order": partial(shuffled, draw),
        "white frames": evaluation.white,  # type: ignore[dict-item]
    }
    changed = {name: [with_clips(sample, change) for sample in samples] for name, change in shown.items()}
    changed |= {f"{way} alone": samples[place::2] for place, way in enumerate(("played forwards", "played backwards"))}
    return {name: evaluation.score(asked, generate(asked, 1, 0.0), task, []) for name, asked in changed.items()}


def with_clips(sample: Sample, change: Callable[[Clip], Clip]) -> Sample:
    return replace(sample, videos=[change(clip) for clip in sample.videos])


def one_frame(draw: random.Random, clip: Clip) -> Clip:
    return replace(clip, frames=clip.frames[[draw.randrange(len(clip.frames))] * len(clip.frames)])


def shuffled(draw: random.Random, clip: Clip) -> Clip:
    return replace(clip, frames=clip.frames[draw.sample(range(len(clip.frames)), len(clip.frames))])


def show(card: RunCard, ends: dict[str, Any]) -> None:
    """Lead with what reinforcement did; below it what is left of that without time."""
    before, after = card.metrics["before"], card.metrics["after"]
    table = Table(title=f"{card.run_id}: which motion is first in held-out clips, before and after GRPO", title_style="bold")
    for column in ("well-formed and right (chance: 0.25)", "n", "before", "after", "95 % interval"):
        table.add_column(column, justify="right" if len(column) < 20 else "left")
    for kind, name in (("sampled", "sampled answers, temperature 1"), ("greedy", "greedy answers")):
        table.add_row(name, str(after[kind]["n"]), f"{before[kind]['correct']:.3f}", f"{after[kind]['correct']:.3f}", between(after[kind]))
    table.add_section()
    for name, scores in ends["controls"].items():
        table.add_row(f"  greedy, {name}", str(scores["n"]), "", f"{scores['correct']:.3f}", between(scores))
    console.print(table)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
    console.print(
        f"{ends['seconds']} s in all ({ends['cpu_seconds']} s of them on a CPU), {card.metrics['train_seconds']:.0f} s of them GRPO; "
        f"{memory:.1f} GiB of memory at most."
    )


def ends_file(seed: int) -> Path:
    """What a card does not hold: time in all, and the scores of the controls."""
    return OUTPUTS / f"video-s{seed}.json"


if __name__ == "__main__":
    in_one_line(main)
