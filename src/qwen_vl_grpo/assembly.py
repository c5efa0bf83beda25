"""A config becomes what a run is made of: checked data, rewards and settings, then the policy and the trainer."""

from __future__ import annotations

import dataclasses
import difflib
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute
import torch
from peft import PeftModel
from transformers import PrinterCallback, ProgressCallback, set_seed
from trl.trainer import utils as trl_utils
from trl.trainer.grpo_config import GRPOConfig

from qwen_vl_grpo import (
    dataset,
    engine_prompts,
    footprint,
    hardware,
    planning,
    policy,
    processors,
    ranks,
    registry,
    reserve,
    rollouts,
    row_clips,
    server_rollouts,
    shapes,
    sharding,
    splits,
    spreading,
    strategies,
    tasks,
    tracking,
    vllm_server,
    warmup,
)
from qwen_vl_grpo.config import TRL_KEYS, RunConfig, arithmetic
from qwen_vl_grpo.errors import ConfigError, DataError
from qwen_vl_grpo.footprint import Prompt
from qwen_vl_grpo.interfaces import RewardFunction, Sample, Task
from qwen_vl_grpo.ledger import Bar, Ledger
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


def prepare(config: RunConfig, resume: bool = False) -> Prepared:
    """Check everything that can be checked before weights are read; raises the typed error of what is wrong."""
    if not resume:
        registry.refuse_existing(config)
    arithmetic(config)
    task = tasks.build(config.task)
    functions, weights = map(list, zip(*tasks.rewards(task, config), strict=True))
    check_trl_fields(config)
    policy.check(config)
    tracking.refuse(config)
    set_seed(config.seed)
    processor = policy.load_processor(config)
    grpo_config(config, processor, weights, config.run_dir)
    parts = splits.load(config, task, processor)
    rows, held_out = parts.train, dataset.to_samples(parts.held_out) if parts.held_out else []
    refuse_blind_rows(config, rows)
    refuse_clips_unshown(config, rows)
    reserve.check(config, task, rows)
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
    prepared = Prepared(task, functions, weights, processor, rows, held_out, warmup_rows, recomputed)
    if config.use_vllm and config.vllm_mode == "server":
        vllm_server.check(config, engine_options(config, prepared), longest + config.max_completion_length)
    return prepared


def refuse_blind_rows(config: RunConfig, rows: Any) -> None:
    """Raise DataError for a row without picture or clip where the language model is frozen: nothing that learns has seen it."""
    if config.lora.language:
        return
    seen = [rows[name] for name in ("picture_ids", "videos") if name in rows.column_names]
    if blind := [ident for ident, *shown in zip(rows["id"], *seen, strict=True) if not any(shown)]:
        raise DataError(
            f"{config.dataset_name}: {len(blind)} rows show nothing (first id: {blind[0]}), and lora.language: false trains what sees "
            "alone; leave them out, or let the language model learn"
        )


def refuse_clips_unshown(config: RunConfig, rows: Any) -> None:
    """Raise ConfigError for clips before a server, which is handed pictures alone."""
    if config.use_vllm and config.vllm_mode == "server" and clip_limits(rows):
        raise ConfigError(
            f"vllm_mode server: hands the engine pictures alone, and {config.dataset_name} has clips; set it to colocate, or take "
            "video.mode: frames"
        )


def layers_to_recompute(config: RunConfig, longest: int, machine: hardware.Hardware, memory: float | None) -> int:
    """How many language layers a machine of so many GiB makes the run recompute, for prompts of at most `longest` tokens."""
    known = shapes.of(config)
    if config.gradient_checkpointing == "auto" and not machine.accelerated:
        return 0
    if memory is not None:  # the worst prompt is all picture
        spread = spreading.ALONE if planning.shared_by_trl(config) else spreading.launched_as()
        config = planning.settled(config, known, Prompt(text=0, pictures=1, picture_tokens=longest), memory, spread)
    return footprint.recomputed_layers(config, known)


def load_policy(config: RunConfig, prepared: Prepared, run_dir: Path) -> Any:
    """The model that GRPO starts from, warmed up first if the config says so."""
    warmed = run_dir / "warmup"
    if config.warmup is not None and not warmed.is_dir():
        log.info("warm-up: %d supervised steps of %d", config.warmup.steps, config.warmup.batch_size)
        bar, aside = Bar("warm-up", config.warmup.steps), run_dir / ".warmup"
        model = policy.load_model(config.model_copy(update={"dtype": "float32"}))  # bfloat16 would round small updates away
        warmup.run(model, prepared.processor, prepared.warmup_rows, config, aside, [bar])
        ranks.first(lambda: aside.rename(warmed))  # a kill in the middle leaves nothing that a resumed run would take
    model = policy.load_model(config, str(warmed) if config.warmup else None)
    set_seed(config.seed)  # the adapter's start is the same whether the warm-up ran in this attempt or in an earlier one
    policy.freeze(model, config.lora)
    return model


def build_trainer(config: RunConfig, prepared: Prepared, model: Any, run_dir: Path, ledger: Ledger) -> VisionGRPOTrainer:
    """TRL's trainer for this config, on our engine where vLLM generates."""
    policy.forbid(model, processors.vision_token_ids(prepared.processor))
    policy.recompute(model, prepared.recomputed)
    args = grpo_config(config, prepared.processor, prepared.weights, run_dir)
    args.gradient_checkpointing = prepared.recomputed > 0
    if config.placement is not None and args.n_gpu > 1:
        args._n_gpu = 1  # the other cards are the renderer's and the judge's, and transformers would put the policy on all of them
    settings, engine = engine_of(config, prepared)
    trl_utils.maybe_gather_lm_head_ctx = sharding.gathered_head
    with rollouts.injected(settings, engine) if config.use_vllm else nullcontext():
        trainer = VisionGRPOTrainer(
            model=model,
            reward_funcs=prepared.functions,
            args=args,
            train_dataset=prepared.rows,
            processing_class=prepared.processor,
            peft_config=policy.adapter(config.lora),
            callbacks=[ledger],
            correction=config.importance_correction,
            checkpoint_limit=config.save_total_limit,
            keep_best=config.keep_best,
            clip_of=row_clips.trained_on,
        )
    if config.dynamic_sampling:
        trainer.reserve = reserve.Reserve(prepared.rows, prepared.task, config.dynamic_sampling.reserve, config.seed)
    if trainer.ref_model is not None:  # full fine-tuning with a KL term: the same tokens, or two equal policies would differ
        policy.forbid(trainer.accelerator.unwrap_model(trainer.ref_model), processors.vision_token_ids(prepared.processor))
    if footprint.has_engine(config) and config.vllm_enable_sleep_mode and not trainer.vllm_generation.enable_sleep_mode:
        machine = hardware.detect()
        plan_awake(config, prepared, trainer, machine, hardware.memory_gib(machine))
    settings.moment = lambda: trainer.state.global_step
    for model in [trainer.accelerator.unwrap_model(each) for each in (trainer.model, trainer.ref_model) if each is not None]:
        causal = model.get_base_model() if isinstance(model, PeftModel) else model
        sharding.call_the_head(causal)
        if processors.sees(prepared.processor):
            sharding.look_alike(causal, zero=trainer.is_deepspeed_enabled)
    for function in prepared.functions:
        if hold := getattr(function, "hold", None):  # a reward that draws from the policy's own states
            hold(trainer.accelerator.unwrap_model(trainer.model), prepared.processor)
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    return trainer


def plan_awake(config: RunConfig, prepared: Prepared, trainer: Any, machine: hardware.Hardware, memory: float | None) -> None:
    """Plan again for an engine that stays awake, since its sleep frees nothing here: more layers are recomputed, or the run is refused.

    `memory` is the card's, in GiB; raises HardwareError in one sentence if the run does not fit beside the engine.
    """
    awake, longest = config.model_copy(update={"vllm_enable_sleep_mode": False}), max(prepared.rows["prompt_tokens"])
    if memory is not None and not config.allow_tight_memory:
        planning.refuse_tight(awake, memory, longest)
    layers = layers_to_recompute(awake, longest, machine, memory)
    log.warning("planned again with the engine awake: %d layers are recomputed, before %d", layers, prepared.recomputed)
    model = trainer.accelerator.unwrap_model(trainer.model)
    policy.recompute(model.get_base_model() if isinstance(model, PeftModel) else model, layers)
    trainer.args.gradient_checkpointing = layers > 0


def engine_of(config: RunConfig, prepared: Prepared) -> tuple[rollouts.EngineSettings, type[rollouts.FaithfulGeneration]]:
    """What the engine is told, and its class: in the trainer's process, or a server of its own that was started with these options."""
    if config.vllm_mode == "server":
        settings = server_rollouts.ServerSettings(config.seed, url=config.vllm_server_base_url, weights=config.vllm_server_weights)
        return settings, server_rollouts.ServerGeneration
    return rollouts.EngineSettings(seed=config.seed, options=engine_options(config, prepared)), rollouts.FaithfulGeneration


def engine_options(config: RunConfig, prepared: Prepared) -> dict[str, Any]:
    """Arguments of vLLM's LLM that follow from the run: no more pictures than the data holds, the trainer's dtype and pixel limits.

    For a model that takes pictures vLLM loads a processor of its own with the limits of the model's folder, and would resize what the
    trainer does not; one that reads text alone is told nothing of pictures.
    """
    dtype = str(policy.weight_dtype(config)).removeprefix("torch.")
    if not processors.sees(prepared.processor):
        return {"dtype": dtype} | config.engine
    counts = pyarrow.compute.call_function("list_value_length", [prepared.rows.data.column("images")])
    limits = {"image": max(1, *counts.to_pylist()), "video": clip_limits(prepared.rows)}
    pixels = {"min_pixels": config.data.min_pixels, "max_pixels": config.data.max_pixels}
    return {"limit_mm_per_prompt": limits, "mm_processor_kwargs": pixels, "dtype": dtype} | config.engine


def clip_limits(rows: Any) -> Any:
    """What vLLM may be shown of clips in one prompt: their number and the largest, or it makes room for one of thousands of frames."""
    shown = [row for row in rows["videos"] if row] if "videos" in rows.column_names else []
    if not shown:
        return 0
    clips = [clip for row in shown for clip in row]
    return {
        "count": max(map(len, shown)), "num_frames": max(len(clip["indices"]) for clip in clips),
        "width": max(clip["width"] for clip in clips), "height": max(clip["height"] for clip in clips),
    }  # fmt: skip


def grpo_config(config: RunConfig, processor: Any, weights: Sequence[float], run_dir: Path) -> GRPOConfig:
    """The one place where our keys become TRL's."""
    on_gpu = torch.cuda.is_available()
    given = dict(config.trl)
    sampling = engine_prompts.forbid_vision_tokens(processor, config.use_vllm) | given.pop("generation_kwargs", {})
    engine: dict[str, Any] = {}
    if config.model_revision and config.beta and not config.lora.enabled:
        given["model_init_kwargs"] = {"revision": config.model_revision}  # TRL loads the reference with it, though it warns it would not
    if config.use_vllm:
        engine = {
            "use_vllm": True,
            "vllm_mode": "colocate",  # in server mode, too: TRL's own client of a server takes weights over NCCL alone
            "vllm_gpu_memory_utilization": config.vllm_gpu_memory_utilization,
            "vllm_enable_sleep_mode": config.vllm_enable_sleep_mode,
            "vllm_max_model_length": config.vllm_max_model_length,
        }
    each_batch = {"sync_each_batch": True}  # else each card adds up whole gradients, in bfloat16, until a step's last micro-step
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
        "accelerator_config": {"gradient_accumulation_kwargs": each_batch if strategies.named() == "fsdp2" else None},
        "reward_weights": list(weights),
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "ddp_find_unused_parameters": not {"vision", "merger"}.isdisjoint(config.lora.parts),  # a batch of text uses neither
        "save_strategy": "steps",
        "save_steps": config.save_steps or config.max_steps,
        "logging_steps": config.logging_steps,
        "log_completions": config.tracking.log_completions,
        "log_multimodal": False,
        "num_completions_to_print": 0,
        "shuffle_dataset": config.data.curriculum == "none",
        "report_to": list(config.tracking.trackers),
        "project": config.tracking.project,
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
