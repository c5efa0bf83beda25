"""One evaluator for the policy before and after: the same rows, prompt, sampling and judge."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy
from PIL import Image

from qwen_vl_grpo import ranks
from qwen_vl_grpo.interfaces import Clip, Generate, RewardFunction, Sample, Task

Scores = dict[str, Any]


def evaluate(
    samples: Sequence[Sample],
    task: Task,
    rewards: Sequence[RewardFunction],
    generate: Generate,
    count: int,
    temperature: float,
    keep: Callable[[Sequence[Sample], Sequence[Sequence[str]]], None] | None = None,
    moment: str | None = None,
) -> dict[str, Scores]:
    """Score one greedy and `count` sampled completions for each sample; `keep` gets the samples and the greedy ones.

    Rewards that keep what they made of the greedy ones do so under `moment`, the name of this evaluation.
    """
    greedy = generate(samples, 1, 0.0)
    if keep is not None:
        keep(samples, greedy)
    return {
        "greedy": score(samples, greedy, task, rewards, moment),
        "sampled": score(samples, generate(samples, count, temperature), task, rewards),
    }


def blind(samples: Sequence[Sample], task: Task, rewards: Sequence[RewardFunction], generate: Generate) -> Scores:
    """Score greedy completions to white pictures and clips of the same sizes: what the policy knows without looking."""
    hidden = [replace(sample, images=White(sample.images), videos=White(sample.videos)) for sample in samples]
    return score(hidden, generate(hidden, 1, 0.0), task, rewards)


class White(Sequence[Any]):
    """White pictures or clips of the same sizes, made each time they are asked for."""

    def __init__(self, shown: Sequence[Image.Image] | Sequence[Clip]):
        self._shown = shown

    def __len__(self) -> int:
        return len(self._shown)

    def __getitem__(self, place: Any) -> Any:
        return [white(item) for item in self._shown[place]] if isinstance(place, slice) else white(self._shown[place])


def white(shown: Image.Image | Clip) -> Image.Image | Clip:
    if isinstance(shown, Clip):
        return replace(shown, frames=numpy.full_like(shown.frames, 255))
    return Image.new("RGB", shown.size, "white")


def score(
    samples: Sequence[Sample],
    completions: Sequence[Sequence[str]],
    task: Task,
    rewards: Sequence[RewardFunction],
    moment: str | None = None,
) -> Scores:
    """Shares of well-formed completions (`format`) and of well-formed and right ones (`correct`), mean rewards, and n.

    A task that tells nothing right by its words has neither `correct` nor `interval`. `official` is the share that the benchmark's
    published rule counts as right, where every row has one; `quality` the mean of the task's points, where it grades.

    `interval` is the 95 % Wilson interval of `correct`. Several completions of one sample are not independent, so it is
    computed as if there were one completion a sample.
    """
    pairs = [(sample, text) for sample, texts in zip(samples, completions, strict=True) for text in texts]
    verdicts = [task.judge(text, sample) for sample, text in pairs]
    known = [verdict.correct for verdict in verdicts if verdict.correct is not None]
    correct = sum(known) / len(pairs)
    quality = [verdict.quality for verdict in verdicts if verdict.quality is not None]
    official = [verdict.official for verdict in verdicts if verdict.official is not None]
    return {
        **({"correct": round(correct, 4), "interval": wilson(correct, len(samples))} if len(known) == len(pairs) else {}),
        "format": round(sum(verdict.format for verdict in verdicts) / len(pairs), 4),
        **({"official": round(sum(official) / len(pairs), 4)} if len(official) == len(pairs) else {}),
        **({"quality": round(sum(quality) / len(quality), 4)} if quality else {}),
        "n": len(pairs),
        "rows": len(samples),
        "rewards": {reward.__name__: mean_reward(reward, pairs, moment) for reward in rewards},
    }


def mean_reward(reward: RewardFunction, pairs: Sequence[tuple[Sample, str]], moment: str | None = None) -> float | None:
    """Mean of a reward over completions, leaving out those it could not judge; None if it could judge none."""
    scores = [value for value in judged(reward, pairs, moment) if value is not None]
    return round(sum(scores) / len(scores), 4) if scores else None


def judged(reward: RewardFunction, pairs: Sequence[tuple[Sample, str]], moment: str | None = None) -> list[float | None]:
    """A reward's score for each completion, its columns handed over as TRL does.

    Each process of a run asks for its part of them; where that would be nothing for one, for all: a reward may need every process.
    """
    if len(pairs) < ranks.count():
        return _judged(reward, pairs, moment)
    return ranks.joined(_judged(reward, ranks.share(pairs), moment))


def _judged(reward: RewardFunction, pairs: Sequence[tuple[Sample, str]], moment: str | None) -> list[float | None]:
    columns = {key: [sample.columns.get(key) for sample, _ in pairs] for key in {key for sample, _ in pairs for key in sample.columns}}
    columns |= {"answer": [sample.answer for sample, _ in pairs], "prompts": [sample.prompt for sample, _ in pairs]}
    if any(sample.images for sample, _ in pairs):
        columns["images"] = [list(sample.images) for sample, _ in pairs]
    if any(sample.videos for sample, _ in pairs):
        columns["videos"] = [sample.videos for sample, _ in pairs]
    columns.pop("prompt", None)
    columns.pop("completion", None)
    columns = columns if moment is None else {"moment": moment} | columns
    return reward(completions=[[{"role": "assistant", "content": text}] for _, text in pairs], **columns)


def wilson(share: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share of n (E. B. Wilson, 1927)."""
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return round(max(0.0, centre - half), 4), round(min(1.0, centre + half), 4)


def flat(scores: dict[str, Scores]) -> dict[str, float]:
    """Scores as metrics for a tracker: `eval_greedy/correct`, `eval_sampled/rewards/<name>`, …"""
    metrics = {}
    for kind, values in scores.items():
        metrics |= {f"eval_{kind}/{name}": values[name] for name in ("correct", "format", "official", "quality") if name in values}
        metrics |= {f"eval_{kind}/rewards/{name}": value for name, value in values["rewards"].items() if value is not None}
    return metrics
