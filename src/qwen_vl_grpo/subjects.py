"""Who is evaluated: a run by its id, what a run's GRPO began from, or a model that no run has touched; each answers as a run does."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from qwen_vl_grpo import index, loading, policy, registry, tasks
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import RegistryError
from qwen_vl_grpo.interfaces import RunCard
from qwen_vl_grpo.loading import RunPolicy
from qwen_vl_grpo.run_id import BASE

OWN = (
    "model_name", "model_revision", "dtype", "attn_implementation", "lora", "warmup", "init_from", "run_id", "output_dir", "engine",
    "vllm_max_model_length", "vllm_gpu_memory_utilization",
)  # fmt: skip
"""Keys of a run's config that say who it is; all others come from the config that it is evaluated under."""


@dataclass(frozen=True, eq=False)
class ModelPolicy(RunPolicy):
    """A model by its Hub id or folder, with a card that says so and lies nowhere."""

    base_of: str | None = None
    """The run that began from it, where it was named as that."""

    @property
    def sha(self) -> str:
        """Of its files in a folder, or the Hub's commit."""
        if self.folder.is_dir():
            return hashlib.sha256(repr(registry.hash_files(self.folder.parent, self.folder.name)).encode()).hexdigest()
        loaded: Any = AutoConfig.from_pretrained(self.config.model_name, revision=self.config.model_revision)
        return loaded._commit_hash or self.config.model_revision or ""

    @cached_property
    def folder(self) -> Path:
        return Path(self.config.model_name)

    @cached_property
    def has_adapter(self) -> bool:
        return False


def find(name: str, config: RunConfig | None, beside: RunPolicy | None = None) -> RunPolicy:
    """The run of an id, or the model of a name, which takes everything but its name from `config`; `base` is that of the run `beside`.

    Raises RegistryError for what is neither, and ConfigError for a model without a config to evaluate it under.
    """
    if beside is not None and name == BASE:
        if isinstance(beside, ModelPolicy):
            raise RegistryError(f"--against base: {beside.config.model_name} is no run, so nothing is its base; name a model")
        if beside.card.parent:
            return loading.load(*registry.resolve(beside.card.parent["run_id"]))
        name = str((beside.run_dir / "warmup").resolve()) if beside.config.warmup else beside.config.model_name
        return replace(_model(name, beside.config), base_of=beside.run_id)
    if registry.names_run(name):
        return loading.load(*registry.resolve(name))
    if config is None:
        raise registry.without_config(name)
    if (Path(name) / "adapter_config.json").is_file():
        raise RegistryError(f"{name}: holds an adapter alone; evaluate the run by its id, or export it whole first")
    return _model(name, config)


def under(subject: RunPolicy, config: RunConfig) -> RunPolicy:
    """The same, asked and judged as `config` says."""
    return replace(subject, config=config.model_copy(update={key: getattr(subject.config, key) for key in OWN}))


def home(subject: RunPolicy) -> Path:
    """Where its evaluations lie: beside the run, or for a model in a folder of its name."""
    if not isinstance(subject, ModelPolicy):
        return subject.run_dir / "evaluations"
    name = subject.config.model_name
    known = hashlib.sha256(name.encode()).hexdigest()[:8]
    return index.home() / "evaluations" / f"{re.sub(r'[^A-Za-z0-9_-]+', '-', name)[-60:].strip('-')}-{known}"


def described(subject: RunPolicy) -> dict[str, Any]:
    """What a result says of who answered."""
    model = {"model": subject.config.model_name}
    who = {"name": name_of(subject)} | (model if isinstance(subject, ModelPolicy) else {"run_id": subject.run_id})
    template = hashlib.sha256(str(subject.processor.chat_template).encode()).hexdigest()
    return who | {
        "sha256": subject.sha, "base": subject.base, "revision": subject.revision, "chat_template_sha256": template,
        "dtype": str(policy.weight_dtype(subject.config)).removeprefix("torch."), "attention": policy.attention(subject.config),
        "quantization": subject.config.lora.quantization,
    }  # fmt: skip


def name_of(subject: RunPolicy) -> str:
    """What people call it; the folder of a warmed-up base would tell them nothing."""
    if isinstance(subject, ModelPolicy):
        return f"base of {subject.base_of}" if subject.base_of else subject.config.model_name
    return subject.run_id


def _model(name: str, config: RunConfig) -> ModelPolicy:
    revision = config.model_revision if name == config.model_name else None
    own = config.model_copy(update={"model_name": name, "model_revision": revision, "warmup": None, "init_from": None})
    task = tasks.build(own.task)
    prompt = own.task.system_prompt or task.system_prompt
    return ModelPolicy(RunCard(run_id="model", task=task.name, base_model=name, system_prompt=prompt), Path(), own)
