"""From run cards to policies that can answer: what lies where, which base it stands on, and whether its adapter fits that base."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image
from safetensors import safe_open
from transformers import AutoConfig, GenerationConfig
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES  # pyright: ignore[reportPrivateImportUsage]

from qwen_vl_grpo import dataset, model_card, policy, processors, registry, tasks
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import DataError, RegistryError
from qwen_vl_grpo.interfaces import Clip, RunCard, Sample, Task


@dataclass(frozen=True, eq=False)
class RunPolicy:
    """A run whose files are those of its card."""

    card: RunCard
    run_dir: Path
    config: RunConfig

    @property
    def run_id(self) -> str:
        return self.card.run_id

    @property
    def sha(self) -> str:
        return registry.checkpoint_sha(self.card)

    @cached_property
    def task(self) -> Task | None:
        """The task of the run; None for someone's own, whose file may be gone by now."""
        return tasks.build(self.config.task) if self.config.task.name in tasks.TASKS else None

    @cached_property
    def folder(self) -> Path:
        """Where its weights or its adapter lie."""
        return registry.checkpoint_folder(self.card, self.run_dir).resolve()

    @cached_property
    def has_adapter(self) -> bool:
        return (self.folder / "adapter_config.json").is_file()

    @property
    def base(self) -> str:
        """Name or folder of the model that is loaded: the base of an adapter, or the run's own weights."""
        if not self.has_adapter:
            return str(self.folder)
        return str((self.run_dir / "warmup").resolve()) if self.config.warmup else self.config.model_name

    @property
    def revision(self) -> str | None:
        return self.config.model_revision if self.base == self.config.model_name else None

    @cached_property
    def base_key(self) -> str:
        """The same for runs whose adapters can stand on one loaded base: warmed-up bases are told apart by their content."""
        warmed = {name: sha for name, sha in self.card.checkpoint_files.items() if name.startswith("warmup/") and _weights(name)}
        base = warmed if self.has_adapter and self.config.warmup else [self.base, self.revision]
        return json.dumps([base, self.config.lora.quantization, self.config.dtype], sort_keys=True)

    @cached_property
    def processor(self) -> Any:
        return policy.load_processor(self.config, str(self.folder))

    @cached_property
    def ends(self) -> list[int]:
        """Ids that end an answer: the model's own and the tokenizer's, as in TRL's rollouts."""
        try:
            own = GenerationConfig.from_pretrained(self.base, revision=self.revision or "main").eos_token_id
        except OSError:
            own = None
        return ending_ids(self.processor, own)

    @cached_property
    def tensors(self) -> dict[str, list[int]]:
        """Name -> shape of every tensor of the adapter."""
        with safe_open(self.folder / "adapter_model.safetensors", "pt") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - it is no dict

    @cached_property
    def rank(self) -> int:
        return max([self.adapter_config["r"], *(self.adapter_config.get("rank_pattern") or {}).values()])

    @cached_property
    def adapter_config(self) -> dict[str, Any]:
        """PEFT's settings of the adapter."""
        return json.loads((self.folder / "adapter_config.json").read_text(encoding="utf-8"))

    def learned(self) -> dict[str, int]:
        """Part of the model (vision, merger, language) -> tensors of the adapter that are not all zeros there."""
        counts: dict[str, int] = {}
        with safe_open(self.folder / "adapter_model.safetensors", "pt") as file:
            for name in self.tensors:
                if ".lora_B." in name and file.get_tensor(name).any():
                    counts[policy.part(name)] = counts.get(policy.part(name), 0) + 1
        return counts


@dataclass(frozen=True)
class Question:
    """One question to one run, its pictures sized as that run learned with them."""

    run: RunPolicy
    sample: Sample
    max_new_tokens: int
    temperature: float
    top_p: float = 1.0
    seed: int | None = None
    """Of the sampler; none takes the run's own, so that one question gets one answer."""

    @cached_property
    def ids(self) -> list[int]:
        """The prompt, as `prompt_ids` has it, written once for all that need it."""
        return prompt_ids(self.run.processor, self.sample)

    @property
    def drawn_with(self) -> int:
        return self.run.config.seed if self.seed is None else self.seed


@dataclass(frozen=True)
class Completion:
    token_ids: list[int]
    """Without the token that ended it."""
    finish_reason: str
    """stop or length, as OpenAI calls them."""
    prompt_tokens: int


def finished(ids: Sequence[int], ends: Sequence[int], prompt_tokens: int) -> Completion:
    """A row of new ids up to the one that ends it."""
    stop = next((place for place, token in enumerate(ids) if token in ends), None)
    return Completion(list(ids[:stop]), "length" if stop is None else "stop", prompt_tokens)


def prompt_ids(processor: Any, sample: Sample) -> list[int]:
    """The ids of a prompt with its pictures and clips expanded, as `policy.encode` has them, without computing pixels.

    Raises DataError for a text with a placeholder in it, which would ask for something to see that is not there.
    """
    images, videos = list(sample.images), list(sample.videos)
    text = processors.prompt_text(processor, sample.prompt, images, videos)
    if processors.sees(processor):
        if (text.count(processor.image_token), text.count(processor.video_token)) != (len(images), len(videos)):
            raise DataError(f"its text holds {processor.image_token} or {processor.video_token}, which stand for pictures; take them out")
        if images and not videos:
            return processors.with_pictures(processor, processors.tokenizer(processor)(text)["input_ids"], images)
        text = processors.expanded(processor, text, images, videos)
    return processors.tokenizer(processor)(text)["input_ids"]


def positions(run: RunPolicy) -> int:
    """Tokens that a run's base can place."""
    return dataset.positions(run.base, run.revision)


def ending_ids(processor: Any, own: int | list[int] | None) -> list[int]:
    return sorted({processors.tokenizer(processor).eos_token_id, *(own if isinstance(own, list) else [own] if own is not None else [])})


def load(card: RunCard, run_dir: Path) -> RunPolicy:
    """Check everything about a run that needs no model in memory; raises RegistryError, or ConfigError for a card of another version.

    An adapter whose names or shapes fit nothing would be left out in silence, and the base model would answer in its name
    (vllm#34186).
    """
    registry.checkpoint_folder(card, run_dir)
    registry.verify_files(card, run_dir)
    run = RunPolicy(card, run_dir, registry.config_of(card))
    if run.has_adapter:
        check_adapter(run)
    return run


def check_adapter(run: RunPolicy) -> None:
    """Raise RegistryError if the adapter was trained on another base, a tensor of it fits no layer, or all of it is zero."""
    policy.check(run.config, run.base)
    config = AutoConfig.from_pretrained(run.base, revision=run.revision)
    _check_base(run, config.model_type)
    with torch.device("meta"):
        model = policy.auto_class(config).from_config(config)
    weights = {name: list(weight.shape) for name, weight in model.named_parameters(remove_duplicate=False)}
    for name, shape in run.tensors.items():
        layer, _, kind = name.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".")
        weight = weights.get(f"{layer}.weight")
        if weight is None or kind not in ("lora_A", "lora_B"):
            raise RegistryError(
                f"run_id {run.run_id}: its adapter holds {name}, which {run.base} has no place for; it is for another model"
            )
        if shape[1 if kind == "lora_A" else 0] != weight[1 if kind == "lora_A" else 0]:
            raise RegistryError(
                f"run_id {run.run_id}: its adapter holds {name} of {shape} for a layer of {weight} in {run.base}; it is for another model"
            )
    if not run.learned():
        raise RegistryError(f"run_id {run.run_id}: its adapter is all zeros, so its answers would be the base model's")


def _check_base(run: RunPolicy, family: str) -> None:
    """Layers of the same names and sizes are in bases of other families and versions, too; folders may have been moved, Hub ids not."""
    trained_on = run.adapter_config.get("base_model_name_or_path") or run.base
    if model_card.HUB_ID.fullmatch(trained_on) and model_card.HUB_ID.fullmatch(run.base) and trained_on != run.base:
        raise RegistryError(f"run_id {run.run_id}: its adapter was trained on {trained_on} and its card names {run.base}; restore the card")
    text = family in policy.TEXT_FAMILIES
    if text == processors.sees(run.processor) or (not text and PROCESSOR_MAPPING_NAMES[family] != type(run.processor).__name__):
        raise RegistryError(
            f"run_id {run.run_id}: it was trained with a {type(run.processor).__name__} and {run.base} is of the family {family}, so its "
            "adapter is for another model"
        )


def canary(run: RunPolicy, watched: bool = False) -> Question:
    """A question that no one asked, with a picture where the run takes one, or that picture as a clip, to see whether an adapter
    changes anything."""
    chat = [{"role": "system", "content": run.card.system_prompt}, {"role": "user", "content": "What is this?"}]
    shown: dict[str, Any] = {"images": []}
    if processors.sees(run.processor):
        picture = dataset.fit(Image.linear_gradient("L").resize((112, 112)).convert("RGB"), run.processor, run.config)
        clip = Clip(numpy.stack([numpy.asarray(picture)] * 2), (0, 1), 1.0, 2, "canary")
        shown = {"images": [], "videos": [clip]} if watched else {"images": [picture]}
    return Question(run, Sample("canary", chat, answer="", **shown), 1, 0.0)


def groups(runs: Sequence[RunPolicy]) -> list[list[RunPolicy]]:
    """Runs that can answer from one loaded base together."""
    found: dict[str, list[RunPolicy]] = {}
    for run in runs:
        found.setdefault(run.base_key, []).append(run)
    return list(found.values())


def _weights(name: str) -> bool:
    return name.endswith((".safetensors", "config.json"))
