"""The renderer, the judge and the cache of a run, as its sections name them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen_vl_grpo import index, placement
from qwen_vl_grpo.errors import ConfigError, JudgeError
from qwen_vl_grpo.interfaces import ImageGenerator, Judge
from qwen_vl_grpo.judges.cache import JudgementCache
from qwen_vl_grpo.rendered_sections import JudgeSection, PlacementSection, RendererSection
from qwen_vl_grpo.rewards import load_function
from qwen_vl_grpo.rewards.rendered import RenderedScores

if TYPE_CHECKING:
    import torch


def build(rendering: RendererSection, judging: JudgeSection, placing: PlacementSection) -> RenderedScores:
    """Put a run's parts together; nothing is loaded, and in a replay nothing but the recording has to be there.

    Raises ConfigError, RenderError, JudgeError or HardwareError for a part, weights, a recording or a device that is not there.
    """
    only = judging.replay == "only"
    places = placement.devices(PlacementSection()) if only else placement.apply(placing)
    generator, judge_ = _generator(rendering, places["renderer"], not only), _judge(judging, places["judge"], not only)
    file = recorded(judging)
    if only and not file.is_file():
        raise JudgeError(f"judge.replay: only: there is no recording {file}; name it with judge.cache, or make it with replay: use")
    cache = None if judging.replay == "off" else JudgementCache(file, generator.identity, judge_.identity, required=only)
    return RenderedScores(generator, judge_, cache, replay_only=only)


def recorded(judging: JudgeSection) -> Path:
    """The file that keeps the judgements of a run."""
    return Path(judging.cache) if judging.cache else index.home() / "judgements.sqlite"


def by_hand(rendering: RendererSection, judging: JudgeSection) -> RenderedScores:
    """The same without a memory, for people who try a run on this machine; whether the judge is there is for the caller to see.

    Raises ConfigError, RenderError or HardwareError.
    """
    places = placement.devices(PlacementSection())
    return RenderedScores(_generator(rendering, places["renderer"], True), _judge(judging, places["judge"], False))


def judge_alone(judging: JudgeSection) -> Judge:
    """The judge of a run without its renderer; raises ConfigError, JudgeError or HardwareError if it cannot be asked."""
    return _judge(judging, placement.devices(PlacementSection())["judge"], True)


GENERATORS = {
    "sd3": "images.sd3:StableDiffusion3",
    "qwen_image": "images.qwen_image:QwenImage",
    "qwen_image_edit": "images.qwen_image_edit:QwenImageEdit",
    "qwen_image_edit_plus": "images.qwen_image_edit:QwenImageEditPlus",
}
"""Name -> the class that draws; it is made of the section and its device."""

JUDGES = {
    "clip": "judges.clip:ClipJudge",
    "complex_edit": "judges.editing:EditJudge",
    "mmmg": "judges.mmmg:KnowledgeJudge",
}
"""Name -> the class that judges, likewise."""


def check_names(rendering: RendererSection | None, judging: JudgeSection | None) -> None:
    """Raise ConfigError for a renderer or a judge that is not known, or a file of the user's that is not there; imports nothing heavy."""
    for kind, section, known in (("renderer", rendering, GENERATORS), ("judge", judging, JUDGES)):
        if section is not None:
            _check_name(kind, section.name, known)


FITTING = {
    "prompt_enhancement": {"renderer": ("sd3",), "judge": ("clip",)},
    "text_to_image": {"renderer": ("qwen_image",), "judge": ("mmmg", "clip")},
    "image_edit": {"renderer": ("qwen_image_edit", "qwen_image_edit_plus"), "judge": ("complex_edit", "clip")},
}
"""Task -> the known parts that can do with its rows: others want states, pictures to edit or a knowledge graph."""


def check_fit(task: str, rendering: RendererSection | None, judging: JudgeSection | None) -> None:
    """Raise ConfigError for a known renderer or judge that could not draw or judge any row of a known task."""
    for kind, section in (("renderer", rendering), ("judge", judging)):
        fitting = FITTING.get(task, {}).get(kind, ())
        if section is not None and fitting and ".py:" not in section.name and section.name not in fitting:
            raise ConfigError(f"{kind}.name: {section.name} cannot do with the rows of {task}; take {' or '.join(fitting)}")


def _check_name(kind: str, name: str, known: Mapping[str, str]) -> None:
    path, own, _ = name.rpartition(".py:")
    if own and not Path(f"{path}.py").is_file():
        raise ConfigError(f"{kind}.name: {name}: there is no file {path}.py (paths start where the command is run)")
    if not own and name not in known:
        raise ConfigError(f"{kind}.name: there is no {kind} {name!r}; take {' or '.join(known)}, or path/to/file.py:function")


def _generator(section: RendererSection, device: torch.device, needed: bool) -> ImageGenerator:
    return _part("renderer", section, GENERATORS, device, needed)


def _judge(section: JudgeSection, device: torch.device, needed: bool) -> Judge:
    return _part("judge", section, JUDGES, device, needed)


def _part(kind: str, section: RendererSection | JudgeSection, known: Mapping[str, str], device: torch.device, needed: bool) -> Any:
    """The known part of that name, with what it needs looked for if it is `needed`, or one that a function of the user's makes.

    Raises ConfigError for any other name.
    """
    _check_name(kind, section.name, known)
    if ".py:" in section.name:
        return load_function(section.name, ConfigError)(section)
    module, _, name = known[section.name].partition(":")
    part = getattr(importlib.import_module(f"qwen_vl_grpo.{module}"), name)(section, device)  # heavy imports
    if needed:
        part.check()
    return part
