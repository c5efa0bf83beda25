"""One evaluator for the policy before and after: the same rows, prompt, sampling and judge."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy
from PIL import Image

from qwen_vl_grpo import ranks
from qwen_vl_grpo.interfaces import Clip, Generate, RewardFunction, Sample, Task, Verdict

Scores = dict[str, Any]


@dataclass(frozen=True)
class Mark:
    """What is said of one completion."""

    verdict: Verdict
    rewards: Mapping[str, float | None]
    """By the names of their functions; None where one could not judge."""
    told: Mapping[str, float | None]
    """What the rewards told beside their scores: a judge's raw values, the published figures among them."""


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
    """What `summary` says of the marks of some completions."""
    return summary(mark(samples, completions, task, rewards, moment), len(samples))


def mark(
    samples: Sequence[Sample],
    completions: Sequence[Sequence[str]],
    task: Task,
    rewards: Sequence[RewardFunction],
    moment: str | None = None,
    told: bool = False,
) -> list[Mark]:
    """Mark every completion, those of one sample after those of another; with `told` rewards are asked for what they know beside."""
    pairs = [(sample, text) for sample, texts in zip(samples, completions, strict=True) for text in texts]
    beside: dict[str, Sequence[Any]] = {}
    scores = {reward.__name__: judged(reward, pairs, moment, beside if told else None) for reward in rewards}
    return [
        Mark(
            task.judge(text, sample),
            {name: values[place] for name, values in scores.items()},
            {name: values[place] for name, values in beside.items()},
        )
        for place, (sample, text) in enumerate(pairs)
    ]


def summary(marks: Sequence[Mark], rows: int) -> Scores:
    """Shares of well-formed completions (`format`) and of well-formed and right ones (`correct`), mean rewards, and n.

    A task that tells nothing right by its words has neither `correct` nor `interval`. `official` is the share that the benchmark's
    published rule counts as right, where every row has one; `quality` the mean of the task's points, where it grades.

    `interval` is the 95 % Wilson interval of `correct`. Several completions of one sample are not independent, so it is
    computed as if there were one completion a sample.
    """
    verdicts = [one.verdict for one in marks]
    known = [verdict.correct for verdict in verdicts if verdict.correct is not None]
    correct = sum(known) / len(marks)
    quality = [verdict.quality for verdict in verdicts if verdict.quality is not None]
    official = [verdict.official for verdict in verdicts if verdict.official is not None]
    return {
        **({"correct": round(correct, 4), "interval": wilson(correct, rows)} if len(known) == len(marks) else {}),
        "format": round(sum(verdict.format for verdict in verdicts) / len(marks), 4),
        **({"official": round(sum(official) / len(marks), 4)} if len(official) == len(marks) else {}),
        **({"quality": round(sum(quality) / len(quality), 4)} if quality else {}),
        "n": len(marks),
        "rows": rows,
        "rewards": {name: _mean([one.rewards[name] for one in marks]) for name in marks[0].rewards},
    }


def _mean(scores: Sequence[float | None]) -> float | None:
    """The mean over those that could be judged; None if none could."""
    known = [value for value in scores if value is not None]
    return round(sum(known) / len(known), 4) if known else None


def judged(
    reward: RewardFunction, pairs: Sequence[tuple[Sample, str]], moment: str | None = None, told: dict[str, Sequence[Any]] | None = None
) -> list[float | None]:
    """A reward's score for each completion, its columns handed over as TRL does; `told` gets what it hands to TRL's log_extra.

    Each process of a run asks for its part of them; where that would be nothing for one, for all: a reward may need every process.
    """
    if told is not None or len(pairs) < ranks.count():
        return _judged(reward, pairs, moment, told)
    return ranks.joined(_judged(reward, ranks.share(pairs), moment))


def _judged(
    reward: RewardFunction, pairs: Sequence[tuple[Sample, str]], moment: str | None, told: dict[str, Sequence[Any]] | None = None
) -> list[float | None]:
    columns = {key: [sample.columns.get(key) for sample, _ in pairs] for key in {key for sample, _ in pairs for key in sample.columns}}
    columns |= {"answer": [sample.answer for sample, _ in pairs], "prompts": [sample.prompt for sample, _ in pairs]}
    if any(sample.images for sample, _ in pairs):
        columns["images"] = [list(sample.images) for sample, _ in pairs]
    if any(sample.videos for sample, _ in pairs):
        columns["videos"] = [sample.videos for sample, _ in pairs]
    columns.pop("prompt", None)
    columns.pop("completion", None)
    columns = columns if moment is None else {"moment": moment} | columns
    columns = columns if told is None else {"log_extra": told.__setitem__} | columns
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
