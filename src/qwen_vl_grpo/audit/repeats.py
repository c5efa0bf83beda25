"""Would the judge say the same again? From its votes, from what the cache holds of one picture, and by asking again.

The cache answers for a picture that it knows, so equal judgements of one picture may be one judgement and its copies: only those that
differ prove anything.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from qwen_vl_grpo import enhancement, policy_states, rendered_parts
from qwen_vl_grpo.audit.figures import spearman
from qwen_vl_grpo.audit.kept import Completions, Kept
from qwen_vl_grpo.errors import JudgeError
from qwen_vl_grpo.interfaces import Judgement, RenderRequest, RunCard
from qwen_vl_grpo.judges import cache
from qwen_vl_grpo.rendered_sections import JudgeSection
from qwen_vl_grpo.report.answered import PICTURE

if TYPE_CHECKING:
    from qwen_vl_grpo.interfaces import Judge

PICTURES = 8
"""Pictures that the judge is asked about again."""


@dataclass
class Repeats:
    """Figures by name, and sentences on what there is nothing of."""

    figures: list[tuple[str, float | int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def of(card: RunCard, folder: Path, kept: Completions, ask: int) -> Repeats:
    """Everything that tells how repeatable the judge of a run is.

    Raises ConfigError, JudgeError or HardwareError where it is to be asked again and cannot be.
    """
    found = Repeats()
    section = card.config.get("judge")
    if not isinstance(section, dict) and "rendered_reward" not in kept.weights:
        if ask:
            raise JudgeError(f"run {card.run_id}: no judge looks at pictures in it, so there is nothing to ask again; leave out --ask")
        found.notes.append("No judge looks at pictures in this run, so there is none that could be asked again.")
        return found
    try:
        judging = JudgeSection.model_validate(section or {})
    except ValueError:
        found.notes.append("Its judge is described by another version of this project, so nothing is known of it here.")
        return found
    _votes(kept, found)
    _remembered(rendered_parts.recorded(judging), kept, found)
    if ask:
        _again(rendered_parts.judge_alone(judging), folder, kept, ask, found)
    return found


def _votes(kept: Completions, found: Repeats) -> None:
    """The noise that the judge told of itself, beside what completions of one prompt differ by."""
    told = [(one.details["noise"], one.details.get("votes", 1.0)) for one in kept.rows if "noise" in one.details]
    if not told:
        found.notes.append("It tells no noise of its own: CLIP has none, and a judge that is asked has some where it votes (judge.votes).")
        return
    groups: dict[tuple[int, int], list[float]] = {}
    for one in kept.rows:
        if "judge_score" in one.details:
            groups.setdefault((one.step, one.group), []).append(one.details["judge_score"])
    spreads = [statistics.stdev(scores) for scores in groups.values() if len(scores) > 1]
    found.figures += [
        ("scores with several votes", len(told)),
        ("standard deviation of one vote, median", statistics.median(noise * math.sqrt(votes) for noise, votes in told)),
        ("standard error of a score, median", statistics.median(noise for noise, _ in told)),
    ]
    if spreads:
        found.figures.append(("standard deviation of the scores of one prompt's completions, median", statistics.median(spreads)))


def _remembered(path: Path, kept: Completions, found: Repeats) -> None:
    """What the cache holds of the same picture and prompt: by the same judge again, and by another one."""
    everything = [*kept.rows, *kept.looked_at]
    drawn = list({words for one in everything for words in (one.completion.strip(), enhancement.enhanced(one.completion))})
    if not path.is_file():
        found.notes.append(f"Its cache of judgements is not there any more ({path.name}).")
        return
    try:
        told = cache.told_of(path, drawn)
    except JudgeError as error:
        found.notes.append(f"{error}.")
        return
    if not told:
        found.notes.append("The cache of judgements holds none of the completions that this run kept.")
        return
    pictures: dict[tuple[str, str], dict[str, list[float]]] = {}
    for one in told:
        pictures.setdefault((one.picture, one.asked), {}).setdefault(one.judge, []).append(one.score)
    repeated = [scores for by_judge in pictures.values() for scores in by_judge.values() if len(scores) > 1]
    differ = [max(scores) - min(scores) for scores in repeated if max(scores) > min(scores)]
    found.figures += [
        ("judgements in the cache of pictures that were drawn for its completions", len(told)),
        ("pictures that one judge has several judgements of", len(repeated)),
        ("of these, with judgements that differ", len(differ)),
    ]
    if differ:
        found.figures.append(("largest difference", max(differ)))
    judges = list(dict.fromkeys(one.judge for one in told))
    for one, other in itertools.combinations(judges, 2):
        pairs = [(statistics.fmean(by[one]), statistics.fmean(by[other])) for by in pictures.values() if one in by and other in by]
        if pairs:
            rho = spearman(pairs)
            found.figures.append((f"pictures judged by both {_named(one)} and {_named(other)}", len(pairs)))
            found.figures += [("Spearman's correlation of the two", rho)] if rho is not None else []
            found.figures.append(("mean difference of the two", statistics.fmean(abs(a - b) for a, b in pairs)))
    if len(judges) < 2:
        found.notes.append("No other judge has looked at the same pictures, so there is no second opinion of them.")


def _again(judge: Judge, folder: Path, kept: Completions, times: int, found: Repeats) -> None:
    """Ask about the kept copies of some pictures, each so many times."""
    from PIL import Image

    shown = [one for one in kept.looked_at if one.picture and PICTURE.fullmatch(one.picture) and (folder / one.picture).is_file()]
    shown = list({one.picture: one for one in shown}.values())
    if not shown:
        raise JudgeError("--ask: the run kept no picture that could be shown to its judge again; leave it out")
    step = max(1, len(shown) // PICTURES)
    spreads, ranges, means, failed = [], [], [], []
    for one in shown[::step][:PICTURES]:
        with Image.open(folder / str(one.picture)) as opened:
            image = opened.convert("RGB")
        asked = _request(folder, one)
        said = [outcome for _ in range(times) for outcome in judge.judge([(asked, image)])]
        scores = [outcome.score for outcome in said if isinstance(outcome, Judgement)]
        failed += [outcome for outcome in said if not isinstance(outcome, Judgement)]
        if len(scores) > 1:
            spreads.append(statistics.stdev(scores))
            ranges.append(max(scores) - min(scores))
        means += [statistics.fmean(scores)] if scores else []
    if failed:
        found.notes.append(f"{len(failed)} questions to the judge came to nothing, the first: {failed[0]}.")
    if spreads:
        found.figures += [
            ("pictures shown to the judge again, as small copies", len(spreads)),
            ("times each", times),
            ("standard deviation of the scores of one picture, mean", statistics.fmean(spreads)),
            ("largest difference of two scores of one picture", max(ranges)),
        ]
    if len(means) > 1:
        found.figures.append(("standard deviation between pictures", statistics.stdev(means)))


def _request(folder: Path, one: Kept) -> RenderRequest:
    from PIL import Image

    sources = []
    for name in one.sources:
        if PICTURE.fullmatch(name) and (folder / name).is_file():
            with Image.open(folder / name) as opened:
                sources.append(policy_states.source(opened.convert("RGB")))
    return RenderRequest(one.prompt, one.completion, 0, sources=tuple(sources))


def _named(judge: str) -> str:
    return judge if len(judge) <= 80 else judge[:80] + "…"
