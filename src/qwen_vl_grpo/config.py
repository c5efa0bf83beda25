"""The run config: one YAML file, checked before anything heavy is imported.

The flat keys are the documented ones; sections group the rest; `trl:` hands any other GRPOConfig field to TRL. The text
under each field is its documentation: docs/configuration.md is generated from it.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from qwen_vl_grpo.errors import ConfigError

RUN_ID_PATTERN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,62}")


def check_run_id(run_id: str) -> str:
    """Return `run_id` if it may name a folder, a Hub tag and a W&B run alike; raise ConfigError otherwise."""
    if run_id.lower() == "all":
        raise ConfigError("run_id: 'all' is the word for every run, so no run may have it as its id; choose another")
    if not RUN_ID_PATTERN.fullmatch(run_id) or run_id.endswith((".", ".lock")):  # git allows no tag that ends so
        raise ConfigError(
            f"run_id: {run_id[:80]!r} is not a run id; use 1 to 63 letters, digits, '-', '_' and single dots, "
            "starting with a letter or digit"
        )
    return run_id


def _run_id(value: str) -> str:
    try:
        return check_run_id(value)
    except ConfigError as error:
        raise ValueError(str(error).removeprefix("run_id: ")) from None


class Section(BaseModel):
    """A part of the config: unknown keys fail, values do not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class TaskSection(Section):
    name: str = "visual_reasoning"
    """The task: a built-in name, or `path/to/module.py:function` for your own (a function that returns a Task)."""
    mode: Literal["strict", "documented"] = "strict"
    """The rewards of a run that lists none: `strict` has no holes, `documented` pays the published values (docs/reward_logic.md)."""
    system_prompt: str | None = None
    """Replaces the task's system prompt."""


class LoraSection(Section):
    enabled: bool = True
    """False trains every language weight (full fine-tuning)."""
    r: int = Field(default=16, ge=1)
    """Rank of the adapter."""
    alpha: int = Field(default=32, ge=1)
    """Scale: the adapter's update is multiplied by alpha / r."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout on the adapter's input while training."""
    target_modules: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Linear layers of the language model that get an adapter."""
    vision: bool = False
    """Train the vision tower too: with LoRA adapters on its linear layers, or all of it in full fine-tuning."""
    quantization: Literal["4bit"] | None = None
    """`4bit` holds the frozen base in 4 bits (QLoRA; needs bitsandbytes)."""


class RewardEntry(Section):
    function: str
    """A documented reward by name, or `path/to/module.py:function` for your own."""
    weight: float = 1.0
    """The reward is multiplied by this before the rewards are added."""


ColumnName = Literal["image", "images", "question", "answer", "id", "choices", "precision", "unit", "question_type", "answer_type"]


class DataSection(Section):
    columns: dict[ColumnName, str] = {}
    """Our name -> the data set's column (`question: query` reads `query`), for: image, images, question, answer, id, and what an answer
    is judged by: choices, precision, unit, question_type, answer_type."""
    subset: str | None = None
    """Configuration of a data set on the Hub that has several."""
    revision: str | None = None
    """Branch, tag or commit of a data set on the Hub."""
    min_pixels: int = Field(default=56 * 56, ge=28 * 28)
    """Smaller pictures are enlarged to this many pixels, once, before training."""
    max_pixels: int = Field(default=1280 * 28 * 28, ge=28 * 28)
    """Larger pictures are shrunk to this many pixels, once, before training."""
    limit: int | None = Field(default=None, ge=1)
    """Use only the first rows of each part."""
    overlong: Literal["refuse", "drop"] = "refuse"
    """What to do with a prompt that leaves no room for max_completion_length in the context."""
    unusable: Literal["refuse", "drop"] = "refuse"
    """What to do with a row whose picture, question or answer cannot be used."""
    workers: int | None = Field(default=None, ge=1)
    """Processes that prepare rows; none takes the CPUs that there are, 8 at most, and one for a small set."""

    @model_validator(mode="after")
    def _pixel_limits_in_order(self) -> DataSection:
        if self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels {self.min_pixels} is more than max_pixels {self.max_pixels}; raise one or lower the other")
        return self


class WarmupSection(Section):
    dataset_name: str
    """JSON Lines, Parquet or folder with the columns of the training data and `target`, the completion to imitate."""
    dataset_split: str = "warmup"
    """The part of it to use."""
    steps: int = Field(default=100, ge=1)
    """Optimizer steps."""
    batch_size: int = Field(default=32, ge=1)
    """Examples a step."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Peak learning rate; it falls linearly to 0."""


class EvaluationSection(Section):
    dataset_split: str | None = None
    """The held-out part: another split of the data set. Without it, held_out or ids_file the run is not evaluated."""
    held_out: float | None = Field(default=None, gt=0, lt=1)
    """Hold out this share of the pictures of dataset_split, with all their rows, always the same ones."""
    ids_file: str | None = None
    """Hold out the rows of dataset_split whose ids stand in this file, one a line; others that show one of their pictures are left out."""
    every: int | None = Field(default=None, ge=1)
    """Score the held-out part every so many steps, too, and not only before and after."""
    every_limit: int = Field(default=64, ge=1)
    """How many held-out rows the evaluations during training use."""
    samples: int = Field(default=4, ge=1)
    """Sampled completions for each held-out row, beside one greedy completion."""
    blind: bool = True
    """After training, also answer with a white picture: a policy that looks falls to chance."""
    without_adapter: bool = False
    """After training, also score with the LoRA adapter switched off: what is lost again is what GRPO taught it."""
    batch_size: int = Field(default=64, ge=1)
    """Completions generated at once."""

    @property
    def part(self) -> str | None:
        """What is held out, in words; None for a run that is not evaluated."""
        shared = f"{self.held_out:g} of the pictures" if self.held_out else None
        return self.dataset_split or shared or self.ids_file


class TrackingSection(Section):
    report_to: Literal["wandb", "none"] = "wandb"
    """Where metrics go beside the run's own metrics.jsonl."""
    project: str = "grpo"
    """W&B project."""
    mode: Literal["auto", "online", "offline"] = "auto"
    """`auto` is online when WANDB_API_KEY is set and offline otherwise; `wandb sync` uploads an offline run later."""
    tags: tuple[str, ...] = ()
    """W&B tags."""
    log_completions: bool = True
    """Keep tables of completions with their rewards (Parquet in the run's folder, and W&B)."""


class RegistrySection(Section):
    demo: bool = False
    """A demonstration run: the only kind that a new run of the same id replaces."""
    push: Literal["none", "end", "save"] = "none"
    """Publish the run to the repository of HF_REGISTRY_REPO at its `end`, or at every `save` and its end; a failed push fails no run."""
    public: bool = False
    """Publish even if anyone can read the repository."""


class RunConfig(Section):
    run_id: Annotated[str, AfterValidator(_run_id)]
    """The primary key of the run: folder, checkpoints, W&B run, predictions and reports are found by it."""
    output_dir: str = "outputs/qwen-vl-grpo"
    """The run lives in {output_dir}/{run_id}/."""
    model_name: str = "Qwen/Qwen2.5-VL-7B-Instruct"
    """A Qwen2-VL, Qwen2.5-VL or Qwen3-VL checkpoint: Hub id or local folder."""
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
    dataset_name: str = "AI4Math/MathVista"
    """Hub id, local folder (`<split>.jsonl` or `<split>.parquet` in it) or file."""
    dataset_split: str = "testmini"
    """The part to train on."""
    use_vllm: bool = True
    """Generate rollouts with vLLM in the trainer's process; false uses transformers."""
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
    warmup: WarmupSection | None = None
    """Supervised steps before GRPO; the warmed-up model is then the base of the run."""
    evaluation: EvaluationSection = EvaluationSection()
    """Scores on held-out rows."""
    tracking: TrackingSection = TrackingSection()
    """W&B."""
    registry: RegistrySection = RegistrySection()
    """How the run is kept."""
    engine: dict[str, Any] = {}
    """Any argument of vLLM's LLM, over TRL's: max_num_batched_tokens, enforce_eager, kv_cache_dtype, limit_mm_per_prompt, …"""
    trl: dict[str, Any] = {}
    """Any other field of TRL's GRPOConfig."""

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
    def _held_out_rows_are_others(self) -> RunConfig:
        one_file = self.dataset_name.endswith((".jsonl", ".parquet"))
        if self.evaluation.dataset_split is not None and (one_file or self.evaluation.dataset_split == self.dataset_split):
            raise ValueError(
                "evaluation.dataset_split: would score the rows that are trained on; "
                + ("name a folder with one file a split as dataset_name" if one_file else "name another split")
            )
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
    "vllm_gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "vllm_enable_sleep_mode": "vllm_enable_sleep_mode",
    "vllm_max_model_length": "vllm_max_model_length",
    "vllm_importance_sampling_correction": "importance_correction",
    "vllm_importance_sampling_mode": "importance_correction",
    "gradient_checkpointing": "gradient_checkpointing",
    "save_steps": "save_steps",
    "save_strategy": "save_steps",
    "logging_steps": "logging_steps",
    "reward_weights": "rewards",
    "report_to": "tracking.report_to",
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

HARMLESS_KEYS = ("max_steps", "save_steps", "logging_steps", "tracking", "allow_tight_memory")
"""Keys that may differ between a run and its resumption; data.workers, registry.push and registry.public are others."""


def load(path: str | Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a YAML file, apply `a.b=c` overrides and check everything.

    Raises ConfigError: a missing or broken file, an unknown key (the nearest one is named), a value out of its range.
    """
    try:
        raw = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_StrictLoader)  # noqa: S506 - a SafeLoader
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config file; configs/ holds the documented ones") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: a run config is a list of `key: value` lines; this file holds {type(raw).__name__}")
    for override in overrides:
        _apply(raw, override)
    return check(raw, str(path))


def check(raw: Mapping[str, Any], where: str = "config") -> RunConfig:
    """Check a config that is already a mapping; raises ConfigError with the first fault in one sentence."""
    try:
        return RunConfig.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"{where}: {_first_fault(error)}") from None


def digest(config: RunConfig) -> str:
    """Hash what makes a run this run: two configs with one digest differ in harmless keys at most."""
    content = config.model_dump(mode="json", exclude=set(HARMLESS_KEYS))
    del content["data"]["workers"], content["registry"]["push"], content["registry"]["public"]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def arithmetic(config: RunConfig, devices: int | None = None) -> str:
    """Say how many completions and prompts a step holds; raises ConfigError if the groups do not fit into it."""
    devices = devices or int(os.environ.get("WORLD_SIZE", "1"))
    window = config.trl.get("steps_per_generation", config.gradient_accumulation_steps)
    step = config.batch_size * config.gradient_accumulation_steps * devices
    generated = config.trl.get("generation_batch_size", config.batch_size * window * devices)
    if generated % config.num_generations:
        cause = next((f"trl.{key}" for key in ("generation_batch_size", "steps_per_generation") if key in config.trl), "num_generations")
        raise ConfigError(
            f"{cause}: groups of {config.num_generations} do not divide the {generated} completions that are generated at once "
            f"({config.batch_size} a device x {window} micro-steps x {devices} device(s)); change batch_size or "
            f"gradient_accumulation_steps so that it is a multiple of {config.num_generations}"
        )
    return (
        f"{config.batch_size} completions a device x {config.gradient_accumulation_steps} accumulation x {devices} device(s) = "
        f"{step} completions a step = {step / config.num_generations:g} prompts x {config.num_generations} generations; "
        f"{config.max_steps} steps = {step * config.max_steps} completions"
    )


class _StrictLoader(yaml.SafeLoader):
    """YAML takes the last of two equal keys in silence; a run config may not hold two."""


def _mapping_without_repeats(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.YAMLError(f"the key {key!r} stands twice{node.start_mark}")
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_without_repeats)


def _apply(raw: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise ConfigError(f"--set {override}: write --set key=value, or --set section.key=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"--set {override}: the value is not valid YAML; quote it") from None
    *sections, key = dotted.split(".")
    target = raw
    for section in sections:
        if target.get(section) is None:
            target[section] = {}
        target = target[section]
        if not isinstance(target, dict):
            raise ConfigError(f"--set {override}: {section} is a value, not a section")
    target[key] = value


def _first_fault(error: ValidationError) -> str:
    fault = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    where = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        key = str(fault["loc"][-1])
        known = _fields_at(fault["loc"][:-1])
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        return f"unknown key {where!r}; " + (f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}")
    if fault["type"] == "missing":
        return f"{where} is missing; add it"
    message = fault["msg"].removeprefix("Value error, ")
    given = "" if fault["type"] == "value_error" else f" (given: {fault['input']!r})"
    return f"{where}: {message}{given}" if where else message


def _fields_at(location: tuple[int | str, ...]) -> list[str]:
    model: Any = RunConfig
    for part in location:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        model = next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
    return list(model.model_fields)
