"""The run config: one YAML file, checked before anything heavy is imported.

The flat keys are the documented ones; sections (sections.py) group the rest; `trl:` hands any other GRPOConfig field to TRL. The text
under each field is its documentation: docs/configuration.md is generated from it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from qwen_vl_grpo import config_file
from qwen_vl_grpo.errors import ConfigError
from qwen_vl_grpo.rendered_sections import JudgeSection, PenaltiesSection, PlacementSection, RendererSection
from qwen_vl_grpo.sections import (
    AlarmsSection,
    DataSection,
    DynamicSamplingSection,
    EvaluationSection,
    LoraSection,
    RegistrySection,
    RewardEntry,
    RunId,
    Section,
    TaskSection,
    TrackingSection,
    WarmupSection,
)
from qwen_vl_grpo.video_sections import VideoSection


class RunConfig(Section):
    run_id: RunId
    """The primary key of the run: folder, checkpoints, W&B run, predictions and reports are found by it."""
    output_dir: str = "outputs/qwen-vl-grpo"
    """The run lives in {output_dir}/{run_id}/."""
    model_name: str = "Qwen/Qwen2.5-VL-7B-Instruct"
    """A Qwen2-VL, Qwen2.5-VL or Qwen3-VL checkpoint, or for a task without pictures a text-only Qwen2.5 or Qwen3: Hub id or local
    folder."""
    init_from: RunId | None = None
    """A run whose last checkpoint this one starts from (weights or adapter alone); a KL term still counts from model_name."""
    model_revision: str | None = None
    """Hub revision of the model (branch, tag or commit)."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Weights of the policy; `auto` is bfloat16 on a GPU and float32 on a CPU."""
    attn_implementation: Literal["auto", "flash_attention_2", "sdpa"] = "auto"
    """`auto` takes flash_attention_2 where it is installed and sdpa elsewhere; the one in use is printed and stored."""
    seed: int = Field(default=0, ge=0)
    """Seeds the data order, the adapter's start and the sampler."""
    learning_rate: float = Field(default=5.0e-6, gt=0)
    """Peak learning rate."""
    max_steps: int = Field(default=100, ge=1)
    """Optimizer steps."""
    batch_size: int = Field(default=8, ge=1)
    """Completions (not prompts) a device and micro-step."""
    gradient_accumulation_steps: int = Field(default=2, ge=1)
    """Micro-steps that make one optimizer step."""
    prompts_per_step: int | None = Field(default=None, ge=1)
    """In place of `gradient_accumulation_steps`: prompts an optimizer step, on any number of devices. The accumulation follows, and
    `batch_size` is the most completions a device and micro-step."""
    num_generations: int = Field(default=8, ge=2)
    """Completions for each prompt: the group whose mean is the baseline."""
    max_completion_length: int = Field(default=512, ge=1)
    """Longest completion, in tokens."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of the rollouts."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL term; 0 needs no reference model."""
    loss_type: Literal["grpo", "dr_grpo", "dapo", "bnpo"] = "dapo"
    """How token losses are averaged (TRL's names)."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """What the advantage is divided by: the group's spread, the batch's, or nothing."""
    reward_scale: float = Field(default=1.0, gt=0)
    """The weights of all rewards are multiplied by this: how much they count against `beta`. With `scale_rewards` of group or batch the
    advantage is divided by it again, and only what is logged changes."""
    dataset_name: str = "AI4Math/MathVista"
    """Hub id, local folder (`<split>.jsonl` or `<split>.parquet` in it) or file."""
    dataset_use: str | None = None
    """In place of `dataset_name`: names of `data.registry`, with commas between them; `name%50` takes half of its rows, always the same."""
    dataset_split: str = "testmini"
    """The part to train on."""
    use_vllm: bool = True
    """Generate rollouts with vLLM; false uses transformers."""
    vllm_mode: Literal["colocate", "server"] = "colocate"
    """`colocate` runs vLLM in the trainer's process; `server` asks a `vllm serve` of its own, on another card (docs/rollouts.md)."""
    vllm_server_base_url: str = Field(default="http://127.0.0.1:8000", pattern="^https?://")
    """Where that server answers."""
    vllm_server_weights: str = "/dev/shm"  # noqa: S108 - memory, and each hand-over has a folder of its own in it
    """Folder that hands the policy's weights to that server: both see it under this path, and it has room for them."""
    vllm_gpu_memory_utilization: float = Field(default=0.7, gt=0, le=1)
    """Share of the card that vLLM may take while it is awake."""
    vllm_enable_sleep_mode: bool = True
    """vLLM frees its memory while the policy learns."""
    vllm_max_model_length: int | None = Field(default=None, ge=16)
    """Context of the engine in tokens, prompt and completion; none takes the model's own."""
    importance_correction: Literal["sequence_mean", "token_truncate", "sequence_mask", "none"] = "sequence_mean"
    """What the loss does about the gap between vLLM's probabilities and the trainer's (docs/rollouts.md)."""
    parity_every: int | None = Field(default=50, ge=1)
    """Check every so many steps that the engine's log-probabilities are the policy's; none checks before the first step only."""
    gradient_checkpointing: bool | Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """Language layers whose activations are computed again in the backward pass, for less memory and more time: `auto` takes as few
    as the plan says this card needs (none on a CPU), true all, false none, a number so many."""
    allow_tight_memory: bool = False
    """Start although the plan says that the card's memory is not enough, or that another process holds what the run needs."""
    allow_biased_sampling: bool = False
    """Let `trl:` set top_p, top_k or min_p, although the trainer's ratios are then biased."""
    save_steps: int | None = Field(default=None, ge=1)
    """Steps between checkpoints; none saves the last one only."""
    save_total_limit: int | None = Field(default=None, ge=1)
    """How many checkpoints are kept, the newest; none keeps all."""
    keep_best: str | None = None
    """A metric of metrics.jsonl (`eval/greedy/correct`): the checkpoint where it was highest is kept beside the newest and named in the
    card. `-` before it keeps the lowest (`-kl`)."""
    logging_steps: int = Field(default=1, ge=1)
    """Steps between two lines of metrics."""
    task: TaskSection = TaskSection()
    """What is asked and how an answer is judged."""
    lora: LoraSection = LoraSection()
    """Which weights learn."""
    rewards: tuple[RewardEntry, ...] = ()
    """The rewards and their weights; none takes the task's."""
    data: DataSection = DataSection()
    """How rows become prompts."""
    dynamic_sampling: DynamicSamplingSection | None = None
    """Replace groups that teach nothing; none trains on the groups as they are drawn."""
    warmup: WarmupSection | None = None
    """Supervised steps before GRPO; the warmed-up model is then the base of the run."""
    evaluation: EvaluationSection = EvaluationSection()
    """Scores on held-out rows."""
    video: VideoSection = VideoSection()
    """Which frames of a clip the policy sees."""
    renderer: RendererSection | None = None
    """What draws a completion, for a task that has it drawn; none takes the defaults."""
    judge: JudgeSection | None = None
    """What scores the picture; none takes the defaults."""
    penalties: PenaltiesSection | None = None
    """What is taken off the score of a rewritten prompt; none takes nothing off."""
    placement: PlacementSection | None = None
    """Where renderer and judge live; none leaves them on the policy's card."""
    tracking: TrackingSection = TrackingSection()
    """W&B, trackio, TensorBoard (docs/tracking.md)."""
    alarms: AlarmsSection = AlarmsSection()
    """What goes wrong without an error."""
    registry: RegistrySection = RegistrySection()
    """How the run is kept."""
    engine: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    """Any argument of vLLM's LLM, over TRL's: max_num_batched_tokens, enforce_eager, kv_cache_dtype, limit_mm_per_prompt, …"""
    trl: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    """Any other field of TRL's GRPOConfig."""

    @model_validator(mode="before")
    @classmethod
    def _one_name_of_the_data(cls, raw: Any) -> Any:
        """What is used is the name of the data from here on, in every report and message."""
        if not isinstance(raw, Mapping) or not isinstance(raw.get("dataset_use"), str):
            return raw
        used = raw["dataset_use"]
        if raw.get("dataset_name") not in (None, used):
            raise ValueError(f"dataset_use {used}: dataset_name {raw['dataset_name']} names the data, too; keep one of them")
        return {**raw, "dataset_name": used}

    @model_validator(mode="after")
    def _registry_is_used(self) -> RunConfig:
        if (self.dataset_use is None) != (self.data.registry is None):
            has, lacks = ("data.registry", "dataset_use") if self.dataset_use is None else ("dataset_use", "data.registry")
            raise ValueError(f"{lacks}: is needed with {has}: names of data sets, and the YAML file that says where they are")
        return self

    @field_validator("gradient_checkpointing", mode="wrap")
    @classmethod
    def _auto_or_layers(cls, value: Any, checked: Callable[[Any], Any]) -> Any:
        try:
            return checked(value)
        except ValidationError:  # one fault for each of the three types, and none that names the others
            raise ValueError(f"{value!r} is no choice; write auto, true, false, or a number of layers") from None

    @field_validator("trl", "engine")
    @classmethod
    def _repeats_nothing(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        taken = TRL_KEYS if info.field_name == "trl" else ENGINE_KEYS
        for key in value:
            if key in taken:
                raise ValueError(f"{key} repeats the key {taken[key]!r}; set that one instead")
        return value

    @model_validator(mode="after")
    def _sampling_is_the_policy(self) -> RunConfig:
        sampling = self.trl.get("generation_kwargs", {}) | self.trl
        for key, off in {"top_p": (1, 1.0), "top_k": (0, -1), "min_p": (None, 0, 0.0)}.items():
            if sampling.get(key, off[0]) not in off and not self.allow_biased_sampling:
                raise ValueError(
                    f"trl.{key}: a truncated sampler renormalises its probabilities and the trainer does not, so every ratio is biased; "
                    "remove it, or set allow_biased_sampling: true"
                )
        return self

    @model_validator(mode="after")
    def _context_has_room_for_a_prompt(self) -> RunConfig:
        if self.use_vllm and self.vllm_max_model_length is not None and self.vllm_max_model_length <= self.max_completion_length:
            raise ValueError(
                f"vllm_max_model_length {self.vllm_max_model_length}: is the room of prompt and completion together, and "
                f"max_completion_length {self.max_completion_length} leaves no token for a prompt; raise the one or lower the other"
            )
        return self

    @model_validator(mode="after")
    def _server_takes_whole_weights(self) -> RunConfig:
        if self.use_vllm and self.vllm_mode == "server" and self.lora.quantization:
            raise ValueError("vllm_mode: a server takes whole weights, and a 4-bit base has none; remove lora.quantization, or colocate")
        return self

    @model_validator(mode="after")
    def _held_out_rows_are_others(self) -> RunConfig:
        held_out, one_file = self.evaluation, self.dataset_name.endswith((".jsonl", ".parquet", ".csv", ".txt", ".json"))
        if held_out.dataset_name is not None and held_out.dataset_split is None:
            raise ValueError("evaluation.dataset_name: says where evaluation.dataset_split is; name that, too")
        if held_out.dataset_name not in (None, self.dataset_name):
            return self
        if held_out.dataset_split is not None and (one_file or held_out.dataset_split == self.dataset_split):
            raise ValueError(
                "evaluation.dataset_split: would score the rows that are trained on; "
                + ("name a folder with one file a split as dataset_name" if one_file else "name another split")
            )
        return self

    @model_validator(mode="after")
    def _data_keys_are_the_tasks(self) -> RunConfig:
        for key, task in {"complexity": "image_edit", "levels": "text_to_image", "disciplines": "text_to_image"}.items():
            if getattr(self.data, key) and self.task.name != task and ".py:" not in self.task.name:
                raise ValueError(
                    f"data.{key}: is read by task {task} alone, and task.name is {self.task.name}; remove it, or set task.name"
                )
        return self

    @model_validator(mode="after")
    def _begins_once(self) -> RunConfig:
        if self.init_from is not None and self.warmup is not None:
            raise ValueError("init_from: starts from what a run has learned, and a warm-up would write over it; remove one of the two")
        return self

    @model_validator(mode="after")
    def _solve_rates_are_of_what_learns(self) -> RunConfig:
        if self.data.uses_probe and self.warmup is not None and self.data.probe is None:
            raise ValueError(
                "data.probe: the run starts from a warmed-up model that nobody has probed; name a run that was warmed up so, or a model"
            )
        if self.data.curriculum != "none" and self.trl.get("shuffle_dataset"):
            raise ValueError("trl.shuffle_dataset: would undo the order of data.curriculum; remove one of the two")
        return self

    @model_validator(mode="after")
    def _saves_fall_on_the_generation_window(self) -> RunConfig:
        window = self.trl.get("steps_per_generation", self.gradient_accumulation_steps) * self.trl.get("num_iterations", 1)
        if self.save_steps and self.save_steps * self.gradient_accumulation_steps % window:
            raise ValueError(
                f"save_steps {self.save_steps}: falls between two generations, whose completions a resumed run would not have; one is "
                f"used for {window} micro-steps, so take a multiple of {window // math.gcd(window, self.gradient_accumulation_steps)}"
            )
        return self

    @model_validator(mode="after")
    def _best_is_measured(self) -> RunConfig:
        if (self.keep_best or "").removeprefix("-").startswith("eval/") and self.evaluation.every is None:
            raise ValueError("keep_best: is measured with evaluation.every alone; set that to save_steps, or name a metric of every step")
        return self

    @model_validator(mode="after")
    def _held_out_once(self) -> RunConfig:
        if sum(value is not None for value in (self.evaluation.dataset_split, self.evaluation.held_out, self.evaluation.ids_file)) > 1:
            raise ValueError("evaluation: dataset_split, held_out and ids_file each name the held-out part; keep one of them")
        return self

    @model_validator(mode="after")
    def _adapter_can_be_switched_off(self) -> RunConfig:
        if self.evaluation.without_adapter and not self.lora.enabled:
            raise ValueError("evaluation.without_adapter: there is no adapter with lora.enabled: false; remove one of the two")
        if self.evaluation.without_adapter and self.lora.quantization and self.use_vllm:
            raise ValueError("evaluation.without_adapter: a 4-bit base reaches vLLM with its adapter merged only; set use_vllm: false")
        return self

    @property
    def run_dir(self) -> Path:
        return Path(self.output_dir) / self.run_id

    @property
    def judging(self) -> JudgeSection:
        """The judge of the run; unless it says where, it counts what it spends in the run's folder: a resumed run has one budget."""
        section = self.judge or JudgeSection()
        return section if section.spending else section.model_copy(update={"spending": str(self.run_dir / "spending.json")})


TRL_KEYS = {
    "output_dir": "output_dir",
    "run_name": "run_id",
    "seed": "seed",
    "learning_rate": "learning_rate",
    "max_steps": "max_steps",
    "per_device_train_batch_size": "batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "num_generations": "num_generations",
    "max_completion_length": "max_completion_length",
    "temperature": "temperature",
    "beta": "beta",
    "loss_type": "loss_type",
    "scale_rewards": "scale_rewards",
    "use_vllm": "use_vllm",
    "vllm_mode": "vllm_mode",
    "vllm_server_base_url": "vllm_server_base_url",
    "vllm_server_host": "vllm_server_base_url",
    "vllm_server_port": "vllm_server_base_url",
    "vllm_gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "vllm_enable_sleep_mode": "vllm_enable_sleep_mode",
    "vllm_max_model_length": "vllm_max_model_length",
    "vllm_importance_sampling_correction": "importance_correction",
    "vllm_importance_sampling_mode": "importance_correction",
    "gradient_checkpointing": "gradient_checkpointing",
    "save_steps": "save_steps",
    "save_strategy": "save_steps",
    "save_total_limit": "save_total_limit",
    "logging_steps": "logging_steps",
    "reward_weights": "rewards",
    "report_to": "tracking.report_to",
    "project": "tracking.project",
    "log_completions": "tracking.log_completions",
    "eval_strategy": "evaluation.every",
    "eval_steps": "evaluation.every",
    "bf16": "dtype",
    "fp16": "dtype",
    "model_init_kwargs": "dtype, attn_implementation and model_revision",
}
"""GRPOConfig fields that a key of ours sets -> that key; `trl:` may not repeat them."""

ENGINE_KEYS = {
    "model": "model_name",
    "seed": "seed",
    "dtype": "dtype",
    "gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "max_model_len": "vllm_max_model_length",
    "enable_sleep_mode": "vllm_enable_sleep_mode",
}
"""Arguments of vLLM's LLM that a key of ours sets -> that key; `engine:` may not repeat them."""


def load(path: str | Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a YAML file, apply `a.b=c` overrides and check everything.

    Raises ConfigError: a missing or broken file, an unknown key (the nearest one is named), a value out of its range.
    """
    raw = config_file.read(path)
    for given in overrides:
        config_file.override(raw, given)
    return check(raw, str(path))


def check(raw: Mapping[str, Any], where: str = "config") -> RunConfig:
    """Check a config that is already a mapping; raises ConfigError with the first fault in one sentence."""
    try:
        return RunConfig.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"{where}: {config_file.first_fault(error, RunConfig)}") from None


def arithmetic(config: RunConfig, devices: int | None = None) -> str:
    """Say how many completions and prompts a step holds on so many devices, this launch's if none are given.

    Raises ConfigError if the groups do not fit into what is generated at once (TRL's rule, GRPOConfig.__post_init__).
    """
    devices = devices or launched()
    window = config.trl.get("steps_per_generation", config.gradient_accumulation_steps)
    step = config.batch_size * config.gradient_accumulation_steps * devices
    generated = config.trl.get("generation_batch_size", config.batch_size * window * devices)
    if generated % config.num_generations:
        cause = next((f"trl.{key}" for key in ("generation_batch_size", "steps_per_generation") if key in config.trl), "num_generations")
        raise ConfigError(
            f"{cause}: groups of {config.num_generations} do not divide the {generated} completions that are generated at once "
            f"({config.batch_size} a device x {window} micro-steps x {devices} device(s)); change batch_size or "
            f"gradient_accumulation_steps so that it is a multiple of {config.num_generations}"
            + (_ways_out(config, devices) if cause == "num_generations" else "")
        )
    return (
        f"{config.batch_size} completions a device x {config.gradient_accumulation_steps} accumulation x {devices} device(s) = "
        f"{step} completions a step = {step / config.num_generations:g} prompts x {config.num_generations} generations; "
        f"{config.max_steps} steps = {step * config.max_steps} completions"
    )


def elsewhere(config: RunConfig) -> str:
    """How a step is made up, for commands that start no run: a config that fills not even one group here is meant for more devices.

    They are then counted as the fewest on which its groups fit. Raises ConfigError as arithmetic does.
    """
    devices = launched()
    if config.batch_size * config.gradient_accumulation_steps * devices >= config.num_generations:
        return arithmetic(config)
    return f"{arithmetic(config, devices * _missing(config, devices))} (on the fewest devices that fill a group)"


def _ways_out(config: RunConfig, devices: int) -> str:
    times = _missing(config, devices)
    return (
        f": gradient_accumulation_steps={config.gradient_accumulation_steps * times} makes it one here, and {devices * times} devices "
        f"make it one of the config as it is (accelerate launch --num_processes {devices * times}, or a multiple of that)"
    )


def _missing(config: RunConfig, devices: int) -> int:
    """How many times as many completions have to be generated at once for whole groups."""
    window = config.trl.get("steps_per_generation", config.gradient_accumulation_steps)
    return config.num_generations // math.gcd(config.num_generations, config.batch_size * window * devices)


def launched() -> int:
    """How many processes a launcher has started for this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))
