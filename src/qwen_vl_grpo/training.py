"""The story of a run: config -> data -> policy -> warm-up -> GRPO -> scores -> card."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute
import torch
import yaml
from transformers import PrinterCallback, ProgressCallback, set_seed
from trl.trainer.grpo_config import GRPOConfig

from qwen_vl_grpo import (
    answering,
    dataset,
    evaluation,
    footprint,
    hardware,
    parity,
    planning,
    policy,
    publishing,
    registry,
    rewards,
    rollouts,
    shapes,
    splits,
    tasks,
    tracking,
    warmup,
)
from qwen_vl_grpo.config import TRL_KEYS, RewardEntry, RunConfig, arithmetic, digest
from qwen_vl_grpo.errors import ConfigError
from qwen_vl_grpo.footprint import Prompt
from qwen_vl_grpo.interfaces import Generate, RewardFunction, RunCard, Sample, Task
from qwen_vl_grpo.ledger import Bar, Every, Ledger
from qwen_vl_grpo.rescue import Rescue, Terminated
from qwen_vl_grpo.saves import Saves
from qwen_vl_grpo.trainer import VisionGRPOTrainer

log = logging.getLogger("qwen_vl_grpo")


@dataclass(frozen=True)
class Prepared:
    """All that a run needs besides its model: checked, and nothing written yet."""

    task: Task
    functions: list[RewardFunction]
    weights: list[float]
    processor: Any
    rows: Any
    held_out: list[Sample]
    warmup_rows: Any
    recomputed: int
    """Language layers whose activations are recomputed in the backward pass."""


def train(config: RunConfig) -> RunCard:
    """Run a config to its end and return the finished card; every refusal comes before the run's folder is made."""
    prepared = prepare(config)
    run_dir = registry.claim(config)
    card = _card(config, prepared)
    registry.write(card, run_dir)
    (run_dir / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), encoding="utf-8")
    ledger, rescue = Ledger(run_dir, config.max_steps), Rescue()
    try:
        rescue.listen()
        card = card.model_copy(update={"tracking": tracking.start(config, card.task, run_dir), "alarms": ledger.watch.rang})
        log.info(arithmetic(config))
        log.info("attention %s, weights %s", card.preprocessing["attn_implementation"], card.preprocessing["dtype"])
        log.info("gradient checkpointing (%s): %d layers are recomputed", config.gradient_checkpointing, prepared.recomputed)
        model = load_policy(config, prepared, run_dir)
        trainer = build_trainer(config, prepared, model, run_dir, ledger)
        rescue.watch(trainer)
        if config.registry.push == "save":
            trainer.add_callback(Saves(lambda step: _publish_save(card, config, run_dir, step)))
        for name, (learning, total) in policy.trainable_parts(trainer.model).items():
            log.info("%s: %s of %s weights learn", name, f"{learning:,}", f"{total:,}")
        card.metrics |= _train_and_score(config, prepared, trainer, ledger)
        card = _finish(card, config, trainer, run_dir)
        registry.write(card, run_dir)
    except BaseException as error:
        state = "interrupted" if isinstance(error, KeyboardInterrupt | Terminated) else "failed"
        stopped = {"state": state, "error": f"{type(error).__name__}: {error}", "finished": registry.now()}
        if checkpoint := rescue.keep():
            stopped |= _kept(config, run_dir, checkpoint)
            kept = f"step {checkpoint.split('-')[1]} of {config.max_steps} is kept in {run_dir / checkpoint}"
            error.add_note(kept)
            if state == "interrupted":
                log.info(kept)
        registry.write(card.model_copy(update=stopped), run_dir)
        raise
    finally:
        tracking.finish()
        ledger.close()
        rescue.release()
    return card if config.registry.push == "none" else publishing.attempt(card, config.registry.public)


def prepare(config: RunConfig) -> Prepared:
    """Check everything that can be checked before weights are read; raises the typed error of what is wrong."""
    registry.refuse_existing(config)
    arithmetic(config)
    task = tasks.build(config.task)
    entries = config.rewards or tuple(RewardEntry(function=name, weight=weight) for name, weight in task.rewards)
    functions = [rewards.find(entry.function) for entry in entries]
    weights = [entry.weight for entry in entries]
    check_trl_fields(config)
    policy.check(config)
    set_seed(config.seed)
    processor = policy.load_processor(config)
    grpo_config(config, processor, weights, config.run_dir)
    parts = splits.load(config, task, processor)
    rows, held_out = parts.train, dataset.to_samples(parts.held_out) if parts.held_out else []
    warmup_rows = None
    if config.warmup is not None:
        warmup_rows = dataset.load(config, task, processor, config.warmup.dataset_name, config.warmup.dataset_split)
        warmup.check(warmup_rows, config.warmup)
    longest = max(rows["prompt_tokens"])
    machine = hardware.detect()
    memory = hardware.memory_gib(machine)
    if memory is not None and not config.allow_tight_memory:
        planning.refuse_tight(config, memory, longest)
    recomputed = layers_to_recompute(config, longest, machine, memory)
    return Prepared(task, functions, weights, processor, rows, held_out, warmup_rows, recomputed)


def layers_to_recompute(config: RunConfig, longest: int, machine: hardware.Hardware, memory: float | None) -> int:
    """How many language layers a machine of so many GiB makes the run recompute, for prompts of at most `longest` tokens."""
    known = shapes.of(config)
    if config.gradient_checkpointing == "auto" and not machine.accelerated:
        return 0
    if memory is not None:  # the worst prompt is all picture
        config = planning.settled(config, known, Prompt(text=0, pictures=1, picture_tokens=longest), memory)
    return footprint.recomputed_layers(config, known)


def load_policy(config: RunConfig, prepared: Prepared, run_dir: Path) -> Any:
    """The model that GRPO starts from, warmed up first if the config says so."""
    if config.warmup is None:
        model = policy.load_model(config)
    else:
        model = policy.load_model(config.model_copy(update={"dtype": "float32"}))  # bfloat16 would round small updates away
        log.info("warm-up: %d supervised steps of %d", config.warmup.steps, config.warmup.batch_size)
        bar = Bar("warm-up", config.warmup.steps)
        warmup.run(model, prepared.processor, prepared.warmup_rows, config, run_dir / "warmup", [bar])
        model = policy.load_model(config, str(run_dir / "warmup"))
    policy.freeze(model, config.lora)
    return model


def build_trainer(config: RunConfig, prepared: Prepared, model: Any, run_dir: Path, ledger: Ledger) -> VisionGRPOTrainer:
    """TRL's trainer for this config, on our engine where vLLM generates."""
    policy.forbid(model, rollouts.vision_token_ids(prepared.processor))
    policy.recompute(model, prepared.recomputed)
    args = grpo_config(config, prepared.processor, prepared.weights, run_dir)
    args.gradient_checkpointing = prepared.recomputed > 0
    settings = rollouts.EngineSettings(seed=config.seed, options=engine_options(config, prepared))
    with rollouts.injected(settings) if config.use_vllm else nullcontext():
        trainer = VisionGRPOTrainer(
            model=model,
            reward_funcs=prepared.functions,
            args=args,
            train_dataset=prepared.rows,
            processing_class=prepared.processor,
            peft_config=policy.adapter(config.lora),
            callbacks=[ledger],
            correction=config.importance_correction,
        )
    settings.moment = lambda: trainer.state.global_step
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    return trainer


def engine_options(config: RunConfig, prepared: Prepared) -> dict[str, Any]:
    """Arguments of vLLM's LLM that follow from the run: no more pictures than the data holds, the trainer's dtype and pixel limits.

    vLLM loads a processor of its own with the limits of the model's folder, and would resize what the trainer does not.
    """
    counts = pyarrow.compute.call_function("list_value_length", [prepared.rows.data.column("images")])
    most = max(counts.to_pylist())
    dtype = str(policy.weight_dtype(config)).removeprefix("torch.")
    pixels = {"min_pixels": config.data.min_pixels, "max_pixels": config.data.max_pixels}
    return {"limit_mm_per_prompt": {"image": max(1, most), "video": 0}, "mm_processor_kwargs": pixels, "dtype": dtype} | config.engine


def grpo_config(config: RunConfig, processor: Any, weights: Sequence[float], run_dir: Path) -> GRPOConfig:
    """The one place where our keys become TRL's."""
    on_gpu = torch.cuda.is_available()
    given = dict(config.trl)
    sampling = rollouts.forbid_vision_tokens(processor, config.use_vllm) | given.pop("generation_kwargs", {})
    engine: dict[str, Any] = {}
    if config.use_vllm:
        engine = {
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_gpu_memory_utilization": config.vllm_gpu_memory_utilization,
            "vllm_enable_sleep_mode": config.vllm_enable_sleep_mode,
            "vllm_max_model_length": config.vllm_max_model_length,
        }
    settings = {
        "output_dir": str(run_dir),
        "run_name": config.run_id,
        "seed": config.seed,
        "learning_rate": config.learning_rate,
        "max_steps": config.max_steps,
        "per_device_train_batch_size": config.batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "num_generations": config.num_generations,
        "max_completion_length": config.max_completion_length,
        "temperature": config.temperature,
        "beta": config.beta,
        "loss_type": config.loss_type,
        "scale_rewards": config.scale_rewards,
        "reward_weights": list(weights),
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "save_strategy": "steps",
        "save_steps": config.save_steps or config.max_steps,
        "logging_steps": config.logging_steps,
        "log_completions": config.tracking.log_completions,
        "log_multimodal": False,
        "num_completions_to_print": 0,
        "report_to": [] if config.tracking.report_to == "none" else [config.tracking.report_to],
        "bf16": on_gpu,
        "use_cpu": not on_gpu,
        "disable_tqdm": True,
        "generation_kwargs": sampling,
    }
    try:
        return GRPOConfig(**(settings | engine | given))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"TRL refuses these settings: {' '.join(str(error).split())}") from None


def check_trl_fields(config: RunConfig) -> None:
    """Raise ConfigError for a key under `trl:` that GRPOConfig does not have."""
    known = [field.name for field in dataclasses.fields(GRPOConfig)]
    for key in config.trl:
        if key not in known:
            near = difflib.get_close_matches(key, [name for name in known if name not in TRL_KEYS], n=1)
            raise ConfigError(f"trl.{key}: GRPOConfig has no such field" + (f"; did you mean {near[0]!r}?" if near else ""))


def _train_and_score(config: RunConfig, prepared: Prepared, trainer: VisionGRPOTrainer, ledger: Ledger) -> dict[str, Any]:
    task, functions, held_out = prepared.task, prepared.functions, prepared.held_out
    generate = _generator(config, trainer, prepared.processor)
    metrics: dict[str, Any] = {}

    def scores(samples: list[Sample]) -> dict[str, Any]:
        log.info("scoring %d held-out rows: greedy, and %d sampled answers each", len(samples), config.evaluation.samples)
        return evaluation.evaluate(samples, task, functions, generate, config.evaluation.samples, config.temperature)

    if held_out:
        metrics["before"] = scores(held_out)
        log.info("before: %s", _line(metrics["before"]))
        if config.evaluation.every:
            some = held_out[: config.evaluation.every_limit]
            trainer.add_callback(Every(config.evaluation.every, trainer, lambda step: evaluation.flat(scores(some))))
    if config.use_vllm:
        checked = [dataset.to_sample(row) for row in prepared.rows.select(range(min(parity.ROWS, len(prepared.rows))))]
        metrics["parity"] = parity.check(trainer, checked, "before the first step")
        if config.parity_every:
            trainer.add_callback(Every(config.parity_every, trainer, lambda step: parity.check(trainer, checked, f"after step {step}")))
    started = time.perf_counter()
    trainer.train()
    metrics["train_seconds"] = round(time.perf_counter() - started, 1)
    metrics["last_step"] = ledger.last
    if held_out:
        metrics["after"] = scores(held_out)
        log.info("after: %s", _line(metrics["after"]))
        if config.evaluation.blind:
            metrics["blind"] = evaluation.blind(held_out, task, functions, generate)
            log.info("blind (white picture): correct %.3f", metrics["blind"]["correct"])
        if config.evaluation.without_adapter:
            with trainer.accelerator.unwrap_model(trainer.model).disable_adapter():
                metrics["without_adapter"] = scores(held_out)
            log.info("without the adapter: %s", _line(metrics["without_adapter"]))
    return metrics


def _generator(config: RunConfig, trainer: VisionGRPOTrainer, processor: Any) -> Generate:
    if not config.use_vllm:
        model = trainer.accelerator.unwrap_model(trainer.model)
        return answering.with_transformers(model, processor, config.max_completion_length, config.evaluation.batch_size, config.seed)

    def generate(samples: Sequence[Sample], count: int, temperature: float) -> list[list[str]]:
        engine = trainer.vllm_generation
        assert isinstance(engine, rollouts.FaithfulGeneration)
        engine.sync_weights()
        encoded = [policy.encode(processor, [sample])["input_ids"][0].tolist() for sample in samples]
        ids = engine.sample(encoded, [list(sample.images) for sample in samples], count, temperature)
        return [processor.batch_decode(row, skip_special_tokens=True) for row in ids]

    return generate


def _card(config: RunConfig, prepared: Prepared) -> RunCard:
    task, rows, template = prepared.task, prepared.rows, str(prepared.processor.chat_template)
    return RunCard(
        run_id=config.run_id,
        demo=config.registry.demo,
        task=task.name,
        base_model=config.model_name,
        base_revision=config.model_revision,
        dataset={
            "name": config.dataset_name, "split": config.dataset_split, "rows": len(rows), "fingerprint": dataset.fingerprint(rows),
            "held_out": config.evaluation.part, "held_out_rows": len(prepared.held_out),
        },
        config=config.model_dump(mode="json"),
        digest=digest(config),
        git=registry.git_state(),
        versions=hardware.versions(),
        hardware=hardware.describe(hardware.detect()),
        system_prompt=config.task.system_prompt or task.system_prompt,
        preprocessing={
            "min_pixels": config.data.min_pixels, "max_pixels": config.data.max_pixels,
            "chat_template_sha256": hashlib.sha256(template.encode()).hexdigest(),
            "attn_implementation": policy.attention(config), "dtype": str(policy.weight_dtype(config)).removeprefix("torch."),
            "layers_recomputed": prepared.recomputed,
        },
        created=registry.now(),
    )  # fmt: skip


def _finish(card: RunCard, config: RunConfig, trainer: VisionGRPOTrainer, run_dir: Path) -> RunCard:
    if torch.cuda.is_available():
        card.metrics["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    finished = {"state": "finished", "finished": registry.now()}
    return card.model_copy(update=finished | _kept(config, run_dir, f"checkpoint-{trainer.state.global_step}"))


def _kept(config: RunConfig, run_dir: Path, checkpoint: str) -> dict[str, Any]:
    files = registry.hash_files(run_dir, checkpoint) | (registry.hash_files(run_dir, "warmup") if config.warmup else {})
    return {"checkpoint": checkpoint, "checkpoint_files": files}


def _publish_save(card: RunCard, config: RunConfig, run_dir: Path, step: int) -> RunCard:
    card = card.model_copy(update=_kept(config, run_dir, f"checkpoint-{step}"))
    return publishing.publish(card, run_dir, config.registry.public, f"save/{config.run_id}/{step}")


def _line(scores: dict[str, Any]) -> str:
    return ", ".join(
        f"{kind} correct {values['correct']:.3f} format {values['format']:.3f} (n {values['n']})" for kind, values in scores.items()
    )
