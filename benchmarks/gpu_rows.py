"""Measure one row of docs/rollouts.md on a GPU: make bench-gpu ROW=step-3b VOCABULARY=FOLDER/qwen.tiktoken

Each row is a command of its own and ends within nine minutes on an H100; they are ranked by what they say. What a row finds is
printed and written to outputs/gpu/rows/ROW.json with the card, the versions and the settings.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks import gpu_answers, gpu_clips, gpu_faults, gpu_plan, gpu_rig
from benchmarks.gpu_rig import FOLDER
from qwen_vl_grpo import engine_prompts, hardware, parity, policy, processors

MIXED_SIZES = ((448, 448), (392, 560), (672, 336), (504, 504))
"""Pictures of one prompt in the row on faithful rollouts: one to four of these."""
COUNTS = (16, 128)
"""Completions of one rollout phase."""
H100_BYTES = int(79.2 * 2**30)
"""What a card of 80 GB has."""


def step(size: str, changes: list[str], rounds: int, each: int, cold: Sequence[str] = ()) -> dict[str, Any]:
    """Whole steps of TRL with one token a picture and of ours, in turns."""
    config, prepared = gpu_rig.prepare(size, changes)
    trainer: Any = gpu_rig.ours(config, prepared)
    bare = gpu_rig.published(config, prepared, trainer)

    def published() -> list[float]:
        gpu_rig.as_published(trainer)
        return gpu_rig.steps(bare, each)

    def ours() -> list[float]:
        gpu_rig.as_ours(trainer, prepared.recomputed)
        return gpu_rig.steps(trainer, each)

    arms = {"published": published, "ours": ours}
    seconds = gpu_rig.interleaved(arms, rounds, cold)
    found = {
        "seconds": seconds,
        "median": {name: round(statistics.median(taken), 3) for name, taken in seconds.items()},
        "ours / published": gpu_rig.ratio(seconds["ours"], seconds["published"]),
        "layers recomputed": prepared.recomputed,
        "responses a second": round(config.batch_size * config.gradient_accumulation_steps / statistics.median(seconds["ours"]), 2),
        "ours, logged": gpu_rig.logged(trainer, "rollouts/", "step_time"),
        "published, logged": gpu_rig.logged(bare, "sampling/", "step_time"),
        "allocated at most, GiB": round(torch.cuda.max_memory_allocated() / 2**30, 1),
    }
    gpu_rig.as_ours(trainer, prepared.recomputed)
    (FOLDER / f"rows/profile-{size}.txt").write_text(gpu_rig.profiled(trainer), encoding="utf-8")
    return found


def memory(size: str) -> dict[str, Any]:
    """The peak on a card of 80 GB with sleep mode on and off, every layer recomputed, and the sample size at 2,048 tokens.

    A larger card is filled up to what an H100 has, and the filling is not counted.
    """
    total = torch.cuda.get_device_properties(0).total_memory
    filling = torch.empty(max(0, total - H100_BYTES), dtype=torch.uint8, device="cuda")
    share = f"vllm_gpu_memory_utilization={(total - filling.numel()) / total / 2:.3f}"
    config, prepared = gpu_rig.prepare(size, [share, "allow_tight_memory=true"])
    trainer: Any = gpu_rig.ours(config, prepared)
    engine: Any = trainer.vllm_generation
    gpu_rig.as_ours(trainer, 100)
    with gpu_rig.peak() as on:
        gpu_rig.steps(trainer, 2)
    found: dict[str, Any] = {
        "card, GiB": round((total - filling.numel()) / 2**30, 1),
        "sleep on, peak GiB": round(on["gib"] - filling.numel() / 2**30, 1),
        "phases, free GiB": {k: round(v, 1) for k, v in engine.memory.items()},
    }
    trainer.max_completion_length = engine.max_completion_length = 2048
    gpu_rig.steps(trainer, 2)
    found["2,048 tokens"] = gpu_rig.logged(trainer, "rollouts/", "step_time")
    trainer.max_completion_length = engine.max_completion_length = config.max_completion_length
    engine.sync_weights()
    engine._wake("kv_cache")
    engine.enable_sleep_mode = False
    with gpu_rig.peak() as off:
        gpu_rig.steps(trainer, 2)
    return found | {"sleep off, peak GiB": round(off["gib"] - filling.numel() / 2**30, 1)}


def phase(size: str, changes: list[str]) -> dict[str, Any]:
    """The rollout phase beside bare LLM.generate on the same requests, and beside transformers generation."""
    config, prepared = gpu_rig.prepare(size, changes)
    trainer: Any = gpu_rig.ours(config, prepared)
    engine: Any = trainer.vllm_generation
    found: dict[str, Any] = {}
    for count in COUNTS:
        samples = [gpu_rig.assembly.dataset.to_sample(prepared.rows[i]) for i in range(count // config.num_generations)]
        prompts = policy.unpadded(policy.encode(prepared.processor, samples))
        repeated = [ids for ids in prompts for _ in range(config.num_generations)]
        pictures = [sample.images for sample in samples for _ in range(config.num_generations)]
        vision = processors.vision_token_ids(prepared.processor)
        requests = [
            {"prompt_token_ids": engine_prompts.collapse(ids, vision), "multi_modal_data": {"image": row}}
            for ids, row in zip(repeated, pictures, strict=True)
        ]

        def whole(repeated: Any = repeated, pictures: Any = pictures) -> list[float]:
            started = time.perf_counter()
            engine.generate(repeated, pictures, config.num_generations)
            return [time.perf_counter() - started]

        sampling = gpu_rig.vllm_generation.SamplingParams(**engine._sampling(1))  # pyright: ignore[reportPrivateImportUsage]

        def bare(requests: Any = requests, sampling: Any = sampling) -> list[float]:
            engine.sync_weights()
            engine._wake("kv_cache")
            torch.cuda.synchronize()
            started = time.perf_counter()
            engine.llm.generate(requests, sampling_params=sampling, use_tqdm=False)
            taken = time.perf_counter() - started
            engine.llm.sleep(level=engine.sleep_level)
            engine._llm_weights_sleeping = True
            return [taken]

        engine.figures()
        seconds = gpu_rig.interleaved({"rollout phase": whole, "bare": bare}, 5)
        parts = {name: round(value / 6, 3) for name, value in engine.seconds.items()}
        repeat = [i for i in range(len(samples)) for _ in range(config.num_generations)]
        slow = transformers_seconds(trainer, policy.encode(prepared.processor, [samples[i] for i in repeat]), config.max_completion_length)
        found[f"{count} completions"] = {
            "seconds": seconds, "parts, mean (wake and sync of both arms)": parts, "transformers": round(slow, 1),
            "bare / rollout phase": gpu_rig.ratio(seconds["bare"], seconds["rollout phase"]),
            "transformers / rollout phase": round(slow / statistics.median(seconds["rollout phase"]), 1),
        }  # fmt: skip
    return found


def transformers_seconds(trainer: Any, encoded: Any, length: int) -> float:
    """One generation of this length by transformers with the same policy; one at this length says enough."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    model.eval()
    torch.cuda.synchronize()
    started = time.perf_counter()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        model.generate(**encoded.to("cuda"), do_sample=True, max_new_tokens=length, min_new_tokens=length)
    torch.cuda.synchronize()
    model.train()
    torch.cuda.empty_cache()
    return time.perf_counter() - started


def faithful(size: str, changes: list[str]) -> dict[str, Any]:
    """Prompts and log-probabilities on one to four pictures, before and after 100 LoRA steps; the base after 100 syncs; the faults."""
    trainer, samples, few = on_mixed_pictures(size, changes)
    engine: Any = trainer.vllm_generation
    found: dict[str, Any] = {"at the start": parity.check(trainer, samples, "at the start")}
    gpu_rig.steps(trainer, 100)
    found["after 100 LoRA steps"] = parity.check(trainer, samples, "after 100 LoRA steps")
    found["training"] = gpu_rig.logged(trainer, "rollouts/", "step_time")
    before = gpu_faults.fingerprint(trainer.model)
    for _ in range(100):
        engine.sync_weights()
    found["base weights changed after 100 of our syncs"] = gpu_faults.changed(trainer.model, before)
    found["faults"] = gpu_faults.inject(trainer, samples, few)
    for _ in range(100):
        trainer.model.merge_adapter()
        trainer.model.unmerge_adapter()
    found["base weights changed after 100 of TRL's merges"] = gpu_faults.changed(trainer.model, before)
    return found


def faults(size: str, changes: list[str]) -> dict[str, Any]:
    """What the gate says of each injected fault, of a policy that has not trained."""
    return {"faults": gpu_faults.inject(*on_mixed_pictures(size, changes))}


def on_mixed_pictures(size: str, changes: list[str]) -> tuple[Any, list[Any], list[Any]]:
    """A trainer with its engine, eight samples of one to four pictures, and eight of one."""
    config, prepared = gpu_rig.prepare(size, ["engine.limit_mm_per_prompt={image: 4, video: 0}", *changes])
    mixed, few = (gpu_faults.mixed(prepared, sizes) for sizes in (MIXED_SIZES, MIXED_SIZES[:1]))
    return gpu_rig.ours(config, prepared), mixed, few


def doctor(_: str) -> dict[str, Any]:
    """What `grpo doctor --json` says here, and what it says where the allocator's segments are told to grow."""
    command, found = [sys.executable, "-m", "qwen_vl_grpo", "doctor", "--json"], {}
    for name, variables in (("as it is", {}), ("expandable segments", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})):
        done = subprocess.run(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True, check=False)
        found[name] = {"exit code": done.returncode} | json.loads(done.stdout)
    return found


SHORT = ["max_completion_length=64", "gradient_accumulation_steps=1", "learning_rate=1e-4"]
MANY = ["gradient_accumulation_steps=16", "data.limit=128"]
HALF = ["vllm_gpu_memory_utilization=0.5"]
ROWS: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    "doctor": ("", doctor),
    "step-3b": ("3b", partial(step, changes=["gradient_checkpointing=true"], rounds=5, each=2)),
    "step-7b": ("7b", partial(step, changes=HALF, rounds=5, each=2)),
    "faithful-3b": ("3b", partial(faithful, changes=SHORT)),
    "faults-3b": ("3b", partial(faults, changes=SHORT)),
    "many-7b": ("7b", partial(step, changes=[*HALF, *MANY], rounds=1, each=2, cold=["ours"])),
    "phase-3b": ("3b", partial(phase, changes=MANY)),
    "video-3b": ("3b", gpu_clips.measure),
    "answers-3b": ("3b", gpu_answers.measure),
    "memory-7b": ("7b", memory),
    "plan-3b": ("3b", gpu_plan.measure),
    "plan-7b": ("7b", gpu_plan.measure),
    "faithful-qwen3-4b": ("qwen3-4b", partial(faithful, changes=SHORT)),
    "faithful-7b": ("7b", partial(faithful, changes=[*HALF, *SHORT])),
}
"""Ranked: row -> the size of the policy, if it needs one, and what is measured."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one row of docs/rollouts.md on this GPU.")
    parser.add_argument("row", choices=list(ROWS))
    parser.add_argument("--vocabulary", required=True, help="qwen.tiktoken, as for benchmarks/random_checkpoint.py")
    given = parser.parse_args()
    hardware.quiet_libraries()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("qwen_vl_grpo").setLevel(logging.INFO)
    size, measure = ROWS[given.row]
    if size:
        gpu_rig.made(size, given.vocabulary)
    path = FOLDER / "rows" / f"{given.row}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    found = measure(size) | {
        "row": given.row, "date": time.strftime("%Y-%m-%d"), "card": hardware.detect().name, "versions": hardware.versions(),
        "wall seconds": round(time.perf_counter() - started),
    }  # fmt: skip
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
