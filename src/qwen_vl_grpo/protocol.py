"""What decides a score beside the policy, so that two results can be told apart, and what the rows have to do with training."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwen_vl_grpo import __version__, answering, dataset, registry, splits, subjects, tasks
from qwen_vl_grpo.answering import BackendName
from qwen_vl_grpo.config import RunConfig, check
from qwen_vl_grpo.errors import ConfigError, GrpoError
from qwen_vl_grpo.interfaces import RewardFunction, Task
from qwen_vl_grpo.loading import RunPolicy

EXTRACTORS = ("answers", "actions", "segments", "quantities", "mathvista", "knowledge", "enhancement", "tasks/*", "judges/*")
"""The code that reads an answer, and with it decides a score."""


@dataclass(frozen=True)
class Asked:
    """What a person may say beside the config."""

    limit: int | None = None
    """Only the first rows."""
    samples: int | None = None
    """Sampled completions a row, beside one greedy one; None takes the config's, 0 samples nothing."""
    backend: BackendName = "auto"
    batch_size: int | None = None
    """Completions at once; None takes the config's."""


def pinned(config: RunConfig, task: Task, functions: Sequence[RewardFunction], rows: Any, asked: Asked) -> dict[str, Any]:
    """Everything beside the policy that decides a score; two results may stand beside each other if theirs are equal.

    Raises ConfigError for a backend that a reward cannot do with.
    """
    backend = answering.choose_backend(asked.backend)
    if any(hasattr(function, "hold") for function in functions):
        if asked.backend == "vllm":
            raise ConfigError(
                f"--backend vllm: task {task.name} is drawn from the policy's own states, which vLLM does not give; leave it out"
            )
        backend = "transformers"
    section, sees = config.evaluation, any(rows["picture_ids"])
    count = section.samples if asked.samples is None else asked.samples
    drawn = [list(parts) for function in functions if (parts := getattr(function, "identities", None))]
    return {
        "task": task.name,
        "system_prompt": config.task.system_prompt or task.system_prompt,
        "rows": {
            "dataset": config.dataset_name, "split": config.dataset_split, "held_out": section.part, "count": len(rows),
            "fingerprint": dataset.fingerprint(rows),
        },
        "preprocessing": {
            **({"min_pixels": config.data.min_pixels, "max_pixels": config.data.max_pixels} if sees else {}),
            **({"video": config.video.model_dump(mode="json")} if task.name.startswith("video_") else {}),
        },
        "extractor": {"version": __version__, "sha256": _code(config)},
        "rewards": [getattr(function, "__name__", "") for function in functions],
        "drawn": drawn,
        "generation": {
            "backend": backend, "batch_size": asked.batch_size or section.batch_size, "max_new_tokens": config.max_completion_length,
            "samples": count, "temperature": config.temperature if section.temperature is None else section.temperature,
            "top_p": section.top_p, "seed": config.seed,
        },
    }  # fmt: skip


def seen(subject: RunPolicy, config: RunConfig, rows: Any) -> dict[str, Any]:
    """How many of the rows a run was trained on, by their pictures or without any by their prompts, and whether they are of its own split.

    What the runs that it started from were trained on counts, too.
    Nobody knows that of a model; `unknown` says why it cannot be told of a run.
    """
    if isinstance(subject, subjects.ModelPolicy):
        return {"unknown": "a model, and what it was trained on is not known here"}
    try:
        configs = _lineage(subject.config)
        trained = [splits.load(one, tasks.build(one.task), subject.processor).train for one in configs]
    except GrpoError as error:
        return {"unknown": f"its training rows cannot be read: {error}"}
    same = any((one.dataset_name, one.dataset_split) == (config.dataset_name, config.dataset_split) for one in configs)
    pictures = {picture for part in trained for row in part["picture_ids"] for picture in row}
    prompts = {json.dumps(prompt, sort_keys=True) for part in trained for prompt in part["prompt"]}
    shared = sum(
        not pictures.isdisjoint(shown) if shown else json.dumps(prompt, sort_keys=True) in prompts
        for shown, prompt in zip(rows["picture_ids"], rows["prompt"], strict=True)
    )
    return {"rows": shared, "trained_rows": sum(map(len, trained)), "same_split": same and config.evaluation.dataset_split is None}


def _lineage(config: RunConfig) -> list[RunConfig]:
    """The configs of a run and of those that it started from."""
    if config.init_from is None:
        return [config]
    card, run_dir = registry.resolve(config.init_from)
    return [config, *_lineage(check(card.config, str(run_dir / "run.json")))]


def _code(config: RunConfig) -> str:
    here = Path(__file__).parent
    files = [path for name in EXTRACTORS for path in sorted(here.glob(f"{name}.md" if "*" in name else f"{name}.py"))]
    files += [path for name in EXTRACTORS if "*" in name for path in sorted(here.glob(f"{name}.py"))]
    files += [Path(config.task.name.rpartition(":")[0])] if ".py:" in config.task.name else []
    return hashlib.sha256("".join(hashlib.sha256(path.read_bytes()).hexdigest() for path in files).encode()).hexdigest()
