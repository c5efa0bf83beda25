"""Two trainers on one policy and one engine, so that their steps can be interleaved on one warm machine.

`ours` is the product's trainer, built as `train` builds it. `published` is TRL's own with one mend, one token a picture, without
which its loss is 0 on pictures: the middle column of docs/rollouts.md.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback
from transformers.trainer_utils import SaveStrategy
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import grpo_trainer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from qwen_vl_grpo import assembly, engine_prompts, policy, processors
from qwen_vl_grpo import config as configs
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.ledger import Ledger
from qwen_vl_grpo.trainer import VisionGRPOTrainer

FOLDER, SMOKE = Path("outputs/gpu"), "configs/gpu/smoke.yaml"


def made(size: str, vocabulary: str) -> None:
    """Make the model of random weights and the data, where they are not there yet."""
    if not (FOLDER / f"{size}-random/config.json").exists():
        script = Path(__file__).with_name("random_checkpoint.py")
        command = [sys.executable, script, size, FOLDER / f"{size}-random", "--vocabulary", vocabulary, "--device", "cuda"]
        subprocess.run(command, check=True)
    if not (FOLDER / "digits/train.jsonl").exists():
        from demo import digits

        digits.write(FOLDER / "digits")


def ended(command: Sequence[str], log: Path, seconds: float, variables: Mapping[str, str] | None = None) -> int | str:
    """Run a command of Python's to its end, or kill it with all that it started: an engine that outlives its process holds the card."""
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, *command], stdout=file, stderr=file, env=os.environ | (variables or {}), start_new_session=True
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return "no answer in time"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def prepare(size: str, changes: Sequence[str]) -> tuple[RunConfig, assembly.Prepared]:
    """The GPU smoke's config for a model of this size, and its data."""
    config = settings(size, changes)
    return config, assembly.prepare(config)


def settings(size: str, changes: Sequence[str]) -> RunConfig:
    """The GPU smoke's config for a model of this size, answers of one forced length, nothing saved or scored."""
    return configs.load(SMOKE, [*fixed(size), *changes])


def fixed(size: str) -> list[str]:
    """What is changed in the GPU smoke's config for that."""
    return [
        f"model_name={FOLDER}/{size}-random", "evaluation.dataset_split=null", "parity_every=null", "vllm_max_model_length=4096",
        "max_completion_length=512", "max_steps=100", "trl.generation_kwargs={ignore_eos: true}", "trl.lr_scheduler_type=constant",
        f"run_id=rows-{size}",
    ]  # fmt: skip


def ours(config: RunConfig, prepared: assembly.Prepared, run_dir: Path = FOLDER / "rows") -> VisionGRPOTrainer:
    """The product's trainer with its engine, asleep."""
    run_dir.mkdir(parents=True, exist_ok=True)
    model = assembly.load_policy(config, prepared, run_dir)
    trainer = assembly.build_trainer(config, prepared, model, run_dir, Ledger(run_dir, config.max_steps))
    trainer.args.save_strategy = SaveStrategy.NO
    return trainer


class OneToken(VLLMGeneration):
    """TRL's engine with the one mend: one token a picture, and the prompts that the trainer has."""

    def generate(self, prompts: Any, images: Any, num_generations: int, profiler: Any = None) -> Any:
        vision = processors.vision_token_ids(self.processing_class)
        _, *rest = super().generate([engine_prompts.collapse(ids, vision) for ids in prompts], images, num_generations, profiler)
        return prompts, *rest


def published(config: RunConfig, prepared: assembly.Prepared, trainer: Any) -> GRPOTrainer:
    """TRL's trainer with TRL's defaults on the same policy, adapter and engine."""
    as_published(trainer)
    llm = trainer.vllm_generation.llm
    if config.vllm_enable_sleep_mode:
        llm.wake_up()  # TRL puts its engine to sleep when it has made one
    engine, generation = vllm_generation.LLM, grpo_trainer.VLLMGeneration  # pyright: ignore[reportPrivateImportUsage]
    vllm_generation.LLM, grpo_trainer.VLLMGeneration = lambda **_: llm, OneToken  # pyright: ignore
    try:
        bare = GRPOTrainer(
            model=trainer.model,
            reward_funcs=list(prepared.functions),
            train_dataset=prepared.rows,
            processing_class=prepared.processor,
            args=GRPOConfig(
                output_dir=str(FOLDER / "rows"), report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True,
                bf16=trainer.args.bf16, use_cpu=trainer.args.use_cpu,
                learning_rate=config.learning_rate, lr_scheduler_type="constant", max_steps=config.max_steps,
                per_device_train_batch_size=config.batch_size, gradient_accumulation_steps=config.gradient_accumulation_steps,
                num_generations=config.num_generations, max_completion_length=config.max_completion_length,
                gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False}, use_vllm=True, vllm_mode="colocate",
                vllm_enable_sleep_mode=config.vllm_enable_sleep_mode, vllm_gpu_memory_utilization=config.vllm_gpu_memory_utilization,
                generation_kwargs=dict(trainer.vllm_generation.generation_kwargs),
            ),
        )  # fmt: skip
    finally:
        vllm_generation.LLM, grpo_trainer.VLLMGeneration = engine, generation  # pyright: ignore
    bare.remove_callback(PrinterCallback)
    return bare


def as_published(trainer: Any, checkpointing: bool = True) -> None:
    """Give the policy the library's own way of checkpointing."""
    model: Any = trainer.model.get_base_model()
    for name in ("gradient_checkpointing_enable", "enable_input_require_grads"):
        model.__dict__.pop(name, None)
    if checkpointing:
        model.enable_input_require_grads()


def as_ours(trainer: Any, layers: int) -> None:
    """Give the policy our way of checkpointing: so many layers are recomputed."""
    model: Any = trainer.model.get_base_model()
    as_published(trainer, checkpointing=False)
    for module in model.modules():
        for key in [key for key, hook in module._forward_hooks.items() if getattr(hook, "__name__", "") == "make_inputs_require_grads"]:
            del module._forward_hooks[key]
    model.gradient_checkpointing_disable()
    trainer.args.gradient_checkpointing = layers > 0
    policy.recompute(model, layers)


class Clock(TrainerCallback):
    """Seconds of each whole step, from the end of the one before."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.last = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds.append(now - self.last)
        self.last = now


def steps(trainer: GRPOTrainer, count: int) -> list[float]:
    """Take so many steps and return the seconds of each; never one alone, or TRL would not see that the weights moved."""
    clock = Clock()
    trainer.args.max_steps = count
    trainer.add_callback(clock)
    try:
        trainer.train()
    finally:
        trainer.remove_callback(clock)
    return clock.seconds


def interleaved(arms: dict[str, Callable[[], list[float]]], rounds: int, cold: Sequence[str] = ()) -> dict[str, list[float]]:
    """Seconds of every step by arm: one round to warm up (of the `cold` arms alone, if given), then `rounds` in turning order."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(rounds + 1):
        for name in sorted(cold or arms) if turn == 0 else sorted(arms, reverse=turn % 2 == 1):
            taken = arms[name]()
            print(f"round {turn}, {name}: {[round(second, 2) for second in taken]}", flush=True)
            if turn:
                seconds[name] += taken
    return seconds


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> dict[str, float]:
    """The ratio of two medians with the range of the ratios of single measurements, pair by pair."""
    pairs = [first / second for first, second in zip(numerator, denominator, strict=True)]
    return {
        "ratio": round(statistics.median(numerator) / statistics.median(denominator), 3),
        "low": round(min(pairs), 3), "high": round(max(pairs), 3), "n": len(pairs),
    }  # fmt: skip


def logged(trainer: GRPOTrainer, *prefixes: str) -> dict[str, float]:
    """Medians of what a trainer's last steps logged."""
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    names = sorted({name for entry in entries for name in entry if name.startswith(prefixes)})
    return {name: round(statistics.median(entry[name] for entry in entries if name in entry), 4) for name in names}


@contextmanager
def peak() -> Iterator[dict[str, float]]:
    """The most memory that the card held inside, in GiB, everything counted; looked at every 5 ms."""
    found = {"gib": 0.0}
    done = Event()

    def look() -> None:
        while not done.wait(0.005):
            free, total = torch.cuda.mem_get_info()
            found["gib"] = max(found["gib"], (total - free) / 2**30)

    watcher = Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()


def profiled(trainer: Any, rows: int = 25) -> str:
    """A table of what the card does in one micro-step of forward and backward, the generation not among it."""
    published, seen = trainer.training_step, []

    def step(*given: Any) -> Any:
        seen.append(None)
        if len(seen) != 2:
            return published(*given)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]) as profile:
            result = published(*given)
            torch.cuda.synchronize()
        seen.append(profile.key_averages().table(sort_by="self_cuda_time_total", row_limit=rows, max_name_column_width=60))
        return result

    trainer.training_step = step
    steps(trainer, 2)
    del trainer.training_step
    return next(entry for entry in seen if entry)
