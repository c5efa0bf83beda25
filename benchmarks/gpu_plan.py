"""What the plan predicted of configurations that did not set its constants, beside what each of them then took on a GPU.

Rows plan-3b and plan-7b of gpu_rows.py. Each configuration is predicted first and then takes two steps of 16 answers of 128 tokens in a
process of its own. Its record, outputs/gpu/rows/plan/NAME.json, is there as soon as it ends, and a record of the same prediction is
kept: a row that was cut short goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_rig
from benchmarks.gpu_rig import FOLDER
from benchmarks.phases import LEARN, Phases
from qwen_vl_grpo import assembly, dataset, footprint, hardware, parity, planning, pruning, shapes, spreading, storage
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.footprint import GIB, Prompt
from qwen_vl_grpo.planning import Fit
from qwen_vl_grpo.spreading import ALONE, Spread

PROMPT = Prompt(text=56, pictures=1, picture_tokens=256)
"""A row of the digits: what the shared template and the question take, and a picture of 448x448."""
UNTIL, LIMIT = 340, 200
"""Seconds after which no further configuration is begun, and those that one may take."""
AWAKE, WHOLE, EVERY = "vllm_enable_sleep_mode=false", "lora.enabled=false", "gradient_checkpointing=true"
CONFIGURATIONS = {
    "3b": {
        "lora-half-recomputed-asleep": ["gradient_checkpointing=18"],
        "lora-rank-64-awake": [AWAKE, EVERY, "lora.r=64", "vllm_gpu_memory_utilization=0.3"],
        "whole-asleep": [WHOLE, "gradient_checkpointing=false"],
        "whole-with-reference-awake": [WHOLE, AWAKE, EVERY, "beta=0.04", "vllm_gpu_memory_utilization=0.25"],
        "lora-without-engine": ["use_vllm=false", EVERY, "trl.generation_kwargs={min_new_tokens: 128}"],
    },
    "7b": {
        "lora-half-recomputed-awake": [AWAKE, "gradient_checkpointing=14"],
        "lora-micro-step-of-16-asleep": ["gradient_checkpointing=false", "batch_size=16", "gradient_accumulation_steps=1"],
        "whole-asleep": [WHOLE, EVERY, "vllm_gpu_memory_utilization=0.3"],
        "whole-awake": [WHOLE, AWAKE, EVERY, "vllm_gpu_memory_utilization=0.25"],
    },
}
"""Size -> name -> what is changed in the GPU smoke's config. The runs of docs/planning.md are LoRA of rank 16 with an engine that sleeps,
all layers recomputed or none."""


def measure(size: str) -> dict[str, Any]:
    """Predict and run every configuration of a size; what does not fit this card is not run."""
    started, machine = time.perf_counter(), hardware.detect()
    gib = hardware.memory_gib(machine)
    assert gib is not None
    found: dict[str, Any] = {}
    for name in CONFIGURATIONS[size]:
        path = FOLDER / f"rows/plan/{size}-{name}.json"
        fit, predicted = predict(settings(size, name), gib)
        if not fit.fits:
            found[name] = {"predicted": predicted, "not run": fit.reason}
        elif path.is_file() and (kept := json.loads(path.read_text()))["predicted"] == predicted:
            found[name] = kept
        elif time.perf_counter() - started > UNTIL:
            found[name] = {"predicted": predicted, "not run": "no time was left; make this row again"}
        else:
            print(f"{size} {name}: predicted {json.dumps(predicted)}", flush=True)
            held, begun = hardware.occupied(machine)[0], time.perf_counter()
            found[name] = {"predicted": predicted} | compared(predicted, alone(size, name, path), held)
            found[name]["wall seconds"] = round(time.perf_counter() - begun)
            if "measured" in found[name]:
                path.write_text(json.dumps(found[name], indent=1) + "\n", encoding="utf-8")
        print(f"{size} {name}: {json.dumps(found[name])}", flush=True)
    return {"configurations": found}


def settings(size: str, name: str) -> RunConfig:
    return gpu_rig.settings(size, ["max_completion_length=128", f"run_id={size}-{name}", *CONFIGURATIONS[size][name]])


def predict(config: RunConfig, gib: float, spread: Spread = ALONE) -> tuple[Fit, dict[str, Any]]:
    """The plan's answer for a card, one of `spread.ranks`, and the figures of it that can be measured, in GiB."""
    known = shapes.of(config)
    fit = planning.judge(config, known, PROMPT, "this card", gib, spread)
    config = planning.settled(config, known, PROMPT, gib, spread)
    held = spreading.split(footprint.measure(config, known, PROMPT), config, known, spread)
    sizes = {
        "allocated by torch at most": footprint.torch_peak(held, config, gib * GIB),
        "host": sum(storage.host(config, known, held, True).values()), "checkpoint": storage.disk(config, known, held).checkpoint,
    }  # fmt: skip
    return fit, {"in use": fit.phases, "layers recomputed": fit.recomputed} | {name: round(size / GIB, 3) for name, size in sizes.items()}


def alone(size: str, name: str, path: Path) -> dict[str, Any]:
    """Run one configuration in a process of its own; what it measured, or how it ended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    log = path.with_suffix(".log")
    ended = gpu_rig.ended(["-m", "benchmarks.gpu_plan", size, name, str(path)], log, LIMIT)
    if ended or not path.is_file():
        return {"ended with": ended, "said": log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]}
    return json.loads(path.read_text(encoding="utf-8"))


def compared(predicted: dict[str, Any], measured: dict[str, Any], held: float) -> dict[str, Any]:
    """What was measured, less what others held of the card, and its ratio to what was predicted."""
    if "in use" not in measured:
        return measured
    measured["in use"] = {phase: round(gib - held, 2) for phase, gib in measured["in use"].items()}
    ratios = {phase: round(gib / predicted["in use"][phase], 3) for phase, gib in measured["in use"].items()}
    others = {"allocated by torch at most": max(measured["allocated by torch"].values(), default=0.0), "host": measured["host"]["at most"]}
    others |= {"checkpoint": measured["checkpoint"]} if measured["checkpoint"] else {}
    ratios |= {name: round(gib / predicted[name], 3) for name, gib in others.items()}
    return {"measured": measured, "held by others": round(held, 2), "measured / predicted": ratios}


class Emptied(Phases):
    """Before a phase torch gives back what it keeps of the one before, which is not what this one needs."""

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        torch.cuda.empty_cache()
        with super().during(phase):
            yield


def run(size: str, name: str) -> dict[str, Any]:
    """Two steps of a configuration and a checkpoint: memory by phase, seconds, host memory, disk."""
    config = settings(size, name)
    prepared = assembly.prepare(config)
    run_dir, phases = FOLDER / f"rows/plan/{size}-{name}", Emptied()
    with phases.during("start"):
        trainer: Any = gpu_rig.ours(config, prepared, run_dir)
    host = {"start": host_gib()}
    with phases.watching():  # from here on, since an engine that starts captures graphs, and they bear no look at the card
        for holder, method in generating(trainer, config):
            phases.follow(holder, method, "generate")
        score = trainer._get_per_token_logps_and_entropies

        def scored(*given: Any, **named: Any) -> Any:
            with nullcontext() if torch.is_grad_enabled() else phases.during("score"):
                return score(*given, **named)

        trainer._get_per_token_logps_and_entropies = scored
        trainer.args.max_steps = 2
        trainer.add_callback(phases)
        trainer.train()
        if config.use_vllm:  # after the steps, when the optimizer has its states: in the first runs it was before, with less in use
            parity.check(trainer, [dataset.to_sample(prepared.rows[row]) for row in range(parity.ROWS)], "after the steps")
        saved = None
        if config.lora.enabled or size != "7b":  # a whole 7B and its optimizer are minutes of writing
            with phases.during("save"):
                trainer._save_checkpoint(trainer.model, None)
            saved = round(pruning.size(run_dir / "checkpoint-2") / GIB, 3)
            shutil.rmtree(run_dir / "checkpoint-2")
    names = {LEARN: "backward"}
    in_use = {names.get(phase, phase): max(cards.values()) for phase, cards in phases.in_use.items()}
    if config.use_vllm and torch.cuda.is_available():
        free = trainer.vllm_generation.memory["engine awake"]
        in_use["start"] = round(torch.cuda.mem_get_info()[1] / GIB - free, 2)
    return {
        "in use": in_use,
        "allocated by torch": {names.get(phase, phase): max(cards.values()) for phase, cards in phases.allocated.items()},
        "seconds a step": [{phase: round(seconds, 2) for phase, seconds in step.items()} for step in phases.steps],
        "host": host | {"at most": host_gib()},
        "checkpoint": saved,
        "layers recomputed": prepared.recomputed,
        "prompt tokens": max(prepared.rows["prompt_tokens"]),
    }


def generating(trainer: Any, config: RunConfig) -> list[tuple[Any, str]]:
    """Where completions are made, in training and for the parity gate."""
    engine = [(trainer.vllm_generation, method) for method in ("sync_weights", "generate")] if config.use_vllm else []
    return [(trainer, "_generate"), *engine]


def host_gib() -> float:
    """The most memory that this process has held on the host."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run one configuration of the rows plan-3b and plan-7b.")
    parser.add_argument("size", choices=list(CONFIGURATIONS))
    parser.add_argument("name")
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    hardware.quiet_libraries()
    told = run(given.size, given.name)
    given.file.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # an engine takes its time to end, and everything is written
