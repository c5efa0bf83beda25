"""What grpo_run.yaml asks for: the rows that the run of GRPO_RUN_ID held out, as the run asks and judges them."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from qwen_vl_grpo import dataset, loading, registry, splits, tasks
from qwen_vl_grpo.errors import RegistryError


@cache
def run() -> loading.RunPolicy:
    if not (run_id := os.environ.get("GRPO_RUN_ID")):
        raise RegistryError("GRPO_RUN_ID names the run whose rows are asked; set it before lmms-eval is started")
    return loading.load(*registry.resolve(run_id))


def rows(_: Any) -> Any:
    """The held-out rows with their pictures in the run's size; raises RegistryError for a run that held out none."""
    config = run().config
    held_out = splits.load(config, tasks.build(config.task), run().processor).held_out
    if held_out is None:
        raise RegistryError(f"run_id {config.run_id}: held out no rows, so there is nothing to ask that it was not trained on")
    return held_out


def pictures(doc: dict[str, Any]) -> list[Any]:
    return list(doc["images"])


def question(doc: dict[str, Any], lmms_eval_specific_kwargs: Any = None) -> str:
    """The text of the user's turns, for models that take no chat; the system prompt is `--model_args system_prompt=…` there."""
    return "\n".join(text for turn in doc["prompt"] if turn["role"] == "user" for kind, text in _parts(turn) if kind == "text")


def messages(doc: dict[str, Any]) -> list[dict[str, Any]]:
    """The whole chat with its system prompt; pictures that the text has no places for come first, as in training."""
    left = pictures(doc)
    placed = any(kind == "image" for turn in doc["prompt"] for kind, _ in _parts(turn))
    chat = []
    for turn in doc["prompt"]:
        shown = [("image", "")] * len(left) if turn["role"] == "user" and not placed else []
        content = [
            {"type": "image", "url": left.pop(0)} if kind == "image" else {"type": "text", "text": text}
            for kind, text in [*shown, *_parts(turn)]
        ]
        chat.append({"role": turn["role"], "content": content})
    return chat


def judged(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """The run's own verdict; a row has `official` where MathVista's columns are there."""
    config = run().config
    verdict = tasks.build(config.task).judge(results[0], dataset.to_sample({"images": [], **doc}))
    said = {"score": verdict.correct, "format": verdict.format, "official": verdict.official}
    return {name: float(value) for name, value in said.items() if value is not None}


def _parts(turn: dict[str, Any]) -> list[tuple[str, str]]:
    content = turn["content"]
    return [("text", content)] if isinstance(content, str) else [(part["type"], part.get("text") or "") for part in content]
