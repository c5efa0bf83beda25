"""One run on one card and on several of a machine, as people start it: `grpo launch`, from config to card.

    make bench-scaling VOCABULARY=FOLDER/qwen.tiktoken          # or: python -m benchmarks.gpu_scaling --vocabulary … --only lora-ddp

Every arm has the same completions a card and step. What an arm says is printed and written to outputs/gpu/rows/scaling/ARM.json as soon as
it ends, and an arm whose record is there is not run again; docs/scaling.md is made from those records.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_plan, gpu_rig
from benchmarks.gpu_rig import FOLDER, SMOKE
from qwen_vl_grpo import assembly, attempts, hardware, vllm_server
from qwen_vl_grpo import config as configs
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import EngineError
from qwen_vl_grpo.spreading import Spread

STEPS, WARM = 10, 2
"""Steps of an arm, and the first of them that do not count."""
SERVER = "http://127.0.0.1:18473"
"""Where the second card's engine listens, in the arm whose engine is a process of its own."""
EVERY_ARM = ["max_completion_length=256", f"max_steps={STEPS}", f"parity_every={STEPS // 2}", "trl.save_only_model=true"]
WHOLE = ["lora.enabled=false", "vllm_gpu_memory_utilization=0.3", "gradient_checkpointing=true"]


@dataclass(frozen=True)
class Arm:
    size: str
    strategy: str
    changes: tuple[str, ...] = ()


ARMS = {
    "lora-single": Arm("3b", "single"),
    "lora-ddp": Arm("3b", "ddp"),
    "full-zero3": Arm("7b", "zero3", tuple(WHOLE)),
    "full-fsdp2": Arm("3b", "fsdp2", tuple(WHOLE)),
    "lora-zero2": Arm("3b", "zero2"),
    "qlora-ddp": Arm("3b", "ddp", ("lora.quantization=4bit",)),
    "qlora-zero2": Arm("3b", "zero2", ("lora.quantization=4bit",)),
    "lora-tensor-parallel": Arm("3b", "ddp", ("trl.vllm_tensor_parallel_size=2",)),
    "lora-server": Arm("3b", "single", ("vllm_mode=server", "vllm_gpu_memory_utilization=0.8", f"vllm_server_base_url={SERVER}")),
}
"""Ranked by what they say."""


def changes(name: str, cards: int) -> list[str]:
    """What an arm changes in the GPU smoke's config."""
    return [*gpu_rig.fixed(ARMS[name].size), *EVERY_ARM, f"run_id=scaling-{name}-{cards}", *ARMS[name].changes]


def planned(name: str, config: RunConfig, cards: int, gib: float) -> float:
    """What the plan says that torch hands out at most on each card, in GiB; the sleeping engine's pool counts."""
    return round(gpu_plan.predict(config, gib, Spread(ARMS[name].strategy, cards))[1]["allocated by torch at most"], 2)


def command(name: str, cards: int, changed: list[str]) -> list[str]:
    sets = [part for change in changed for part in ("--set", change)]
    launch = ["launch", "--config", SMOKE, "--gpus", str(cards), "--strategy", ARMS[name].strategy]
    return [sys.executable, "-m", "qwen_vl_grpo", *launch, *sets]


def run(name: str, cards: int, log: Path, limit: float) -> dict[str, Any]:
    """Launch an arm and read what its run has written; how it ended, where it did not end well."""
    started = time.perf_counter()
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(command(name, cards, changes(name, cards)), stdout=file, stderr=file)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.terminate()  # the ranks save and end
            code = process.wait()
    told: dict[str, Any] = {"model": ARMS[name].size, "strategy": ARMS[name].strategy, "cards": cards}
    told["wall seconds"] = round(time.perf_counter() - started)
    if code:
        return told | {"ended with": code, "said": log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]}
    return told | found(FOLDER / f"scaling-{name}-{cards}")


@contextmanager
def serving(name: str, log: Path) -> Iterator[None]:
    """The server that an arm in server mode asks for, on the second card, by the command that the product prints."""
    config = configs.load(SMOKE, [*changes(name, 1), "vllm_mode=colocate"])
    prepared = assembly.prepare(config)
    variable, _, _, *arguments = shlex.split(vllm_server.command(config, assembly.engine_options(config, prepared)))
    program = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", *arguments]
    environment = os.environ | dict([variable.split("=")]) | {"CUDA_VISIBLE_DEVICES": "1"}
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(program, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        while process.poll() is None:
            try:
                vllm_server.VLLMServer(SERVER).get("/health")
                break
            except EngineError:
                time.sleep(0.5)
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def found(run_dir: Path) -> dict[str, Any]:
    """Seconds a step, memory, and how far the engine of each card is from its policy."""
    card = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    lines = attempts.metrics(run_dir)
    steps = [line for line in lines if "reward" in line][WARM:]
    parity = [card["metrics"]["parity"], *(line for line in lines if "parity/pictures" in line)]
    config = card["config"]
    return {
        "completions a card and step": config["batch_size"] * config["gradient_accumulation_steps"],
        "tokens a completion": config["max_completion_length"],
        "seconds a step": [round(line["step_time"], 3) for line in steps],
        "seconds a step, median": round(statistics.median(line["step_time"] for line in steps), 3),
        "of which": {
            name.removeprefix("rollouts/seconds/"): round(statistics.median(line[name] for line in steps if name in line), 3)
            for name in sorted({name for line in steps for name in line if name.startswith("rollouts/seconds/")})
        },
        "allocated by torch at most, GiB": card["metrics"].get("peak_gib"),
        "log-probabilities apart in training": round(statistics.median(line["rollouts/logp_difference/mean"] for line in steps), 4),
        "parity": [{name: round(value, 4) for name, value in line.items() if name.startswith("parity/")} for line in parity],
        "layers recomputed": card["preprocessing"]["layers_recomputed"],
        "loss": [round(line["loss"], 6) for line in steps],
        "gradient norm": [round(line["grad_norm"], 4) for line in steps],
        "versions": card["versions"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the arms of docs/scaling.md on the cards of this machine.")
    parser.add_argument("--vocabulary", required=True, help="qwen.tiktoken, as for benchmarks/random_checkpoint.py")
    parser.add_argument("--only", nargs="*", choices=ARMS, default=list(ARMS))
    parser.add_argument("--cards", type=int, default=torch.cuda.device_count())
    parser.add_argument("--limit", type=float, default=240, help="Seconds that an arm may take.")
    given = parser.parse_args()
    machine = hardware.detect()
    gib = hardware.memory_gib(machine)
    assert gib is not None
    folder = FOLDER / "rows/scaling"
    folder.mkdir(parents=True, exist_ok=True)
    for size in dict.fromkeys(ARMS[name].size for name in given.only):
        gpu_rig.made(size, given.vocabulary)
    for name in given.only:
        cards = 1 if ARMS[name].strategy == "single" else given.cards
        path = folder / f"{name}-{cards}.json"
        if path.is_file():
            continue
        told: dict[str, Any] = {"card": machine.name, "date": time.strftime("%Y-%m-%d")}
        told["planned, GiB"] = planned(name, configs.load(SMOKE, changes(name, cards)), cards, gib)
        with serving(name, folder / "server.log") if "vllm_mode=server" in ARMS[name].changes else nullcontext():
            told |= run(name, cards, path.with_suffix(".log"), given.limit)
        print(f"{name}, {cards} cards: {json.dumps(told)}", flush=True)
        if "ended with" not in told:
            path.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
