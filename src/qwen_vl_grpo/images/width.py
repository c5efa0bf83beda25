"""Whether a policy's hidden states fit the DiT that is to draw from them, before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

from qwen_vl_grpo import shapes, weights
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import ConfigError, PolicyError

FAMILY = "qwen2_5_vl"
"""The text encoder of Qwen-Image, Qwen-Image-Edit and Edit-Plus: their DiTs learned from its states and know no other's."""
PUBLISHED = {"Qwen/Qwen-Image": 3584, "Qwen/Qwen-Image-Edit": 3584, "Qwen/Qwen-Image-Edit-2509": 3584}
"""Pipeline -> `joint_attention_dim` of its DiT, for a config that is read where the pipeline is not."""
TRANSFORMER = "transformer/config.json"


def check(config: RunConfig, ask_hub: bool = True) -> None:
    """Raise ConfigError, with the models that fit, if the config's policy is no text encoder for its renderer.

    Reads the policy's config.json and the DiT's `joint_attention_dim`; raises PolicyError where the former is not to be had. Without
    `ask_hub` what is neither here nor published passes. What a renderer of the user's own can read is not known, and in a replay there
    need be none.
    """
    renderer = config.renderer
    if renderer is None:
        raise ConfigError("renderer: a task that draws from the policy's states needs this section; name one of the qwen_image renderers")
    if ".py:" in renderer.name or config.judging.replay == "only":
        return
    try:
        width = of_transformer(renderer.model, renderer.revision) if ask_hub else _known(renderer.model, renderer.revision)
        policy = shapes.of(config)
    except PolicyError:
        if ask_hub:
            raise
        return
    if width is None or (policy.hidden == width and policy.family == FAMILY):
        return
    known = [name for name in shapes.PUBLISHED if (shape := shapes.published(name)) and (shape.hidden, shape.family) == (width, FAMILY)]
    advice = f"; take {' or '.join(f'{name}-Instruct' for name in known)}" if known else ""
    raise ConfigError(
        f"model_name {config.model_name}: its states are {policy.hidden} wide and {policy.family}'s, and the DiT of renderer.model "
        f"{renderer.model} reads {FAMILY}'s of {width}{advice}"
    )


def of_transformer(model: str, revision: str | None) -> int:
    """How wide the states are that a pipeline's DiT reads, from its transformer/config.json in a folder or on the Hub."""
    return _read(model, weights.check("renderer.model", model, TRANSFORMER, revision, ConfigError))


def _known(model: str, revision: str | None) -> int | None:
    path = shapes.local_file(model, revision, TRANSFORMER)
    return _read(model, path) if path and path.is_file() else PUBLISHED.get(model)


def _read(model: str, path: Path) -> int:
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["joint_attention_dim"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"renderer.model {model}: {TRANSFORMER} names no joint_attention_dim ({type(error).__name__})") from None
