"""Look at all the data of a run before it takes a GPU: every row, every answer, the rewards, and one prompt as the policy will see it."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import datasets
from PIL import Image

from qwen_vl_grpo import (
    dataset,
    evaluation,
    looks,
    policy,
    processors,
    registry,
    repeats,
    rewards,
    solve_rates,
    sources,
    splits,
    tasks,
    warmup,
)
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import DataError, RewardError
from qwen_vl_grpo.interfaces import RewardFunction, Sample, Task

FIRST = 8
"""Rows on which rewards of one's own are tried: each call may cost something."""


@dataclass
class Findings:
    """What was seen, and what has to be mended before the run."""

    said: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    """What may be meant so."""
    faults: list[str] = field(default_factory=list)


def validate(config: RunConfig) -> Findings:
    """Check the data of a run whole instead of stopping at the first fault; raises the typed error of what cannot even be loaded."""
    task = tasks.build(config.task)
    weighted = tasks.rewards(task, config) if task.examples else []  # of renderers and judges, say, nothing is asked here
    policy.check(config)
    processor = policy.load_processor(config)
    found, shown, seen, readable = Findings(), False, {}, True
    for name, split in _parts(config):
        rows, report = dataset.prepare(config, task, processor, name, split)
        found.said.append(str(report))
        refused = dataset.refused(report, config)
        found.faults += [f"{report.name}, row {number}: {what}" for number, _, what in refused]
        readable &= not refused and len(rows) > 0
        if not len(rows):
            found.faults.append(f"{report.name}: no row is left to use")
            continue
        found.said.append(_tokens(rows, config, processor))
        if config.warmup and (name, split) == (config.warmup.dataset_name, config.warmup.dataset_split):
            warmup.check(rows, config.warmup)
            continue
        if not shown:
            found.said.append(f"one prompt and its pictures: {_rendered(dataset.to_samples(rows.select([0]))[0], processor, config)}")
            shown = True
        seen |= looks.of(rows, report.folder, config.data.workers)
        found.doubts += [f"{report.name}: {doubt}" for doubt in repeats.within(repeats.read(rows))]
        samples = dataset.to_samples(rows)
        if dataset.several(config, name):
            samples = [replace(sample, id=f"{sample.id} ({sample.columns[sources.DATASET]})") for sample in samples]
        examined, faults = answers(samples, task, weighted)
        found.said.append(f"{report.name}: {examined}")
        found.faults += [f"{report.name}, {fault}" for fault in faults]
    if readable:
        parts = splits.load(solve_rates.unsorted(config), task, processor)
        found.said.append(
            f"{len(parts.train)} rows to train on, {len(parts.held_out or ())} held out, {parts.shared} left out for a picture"
        )
        if parts.held_out:
            _compared(parts.train, parts.held_out, seen, config, found)
        _probed(parts.train, config, found)
    return found


def _compared(train: datasets.Dataset, held_out: datasets.Dataset, seen: looks.Looks, config: RunConfig, found: Findings) -> None:
    """Look for what is both trained on and held out: the same questions, the same pictures, and pictures that look alike."""
    ours, theirs = repeats.read(train), repeats.read(held_out)
    faults, doubts = repeats.on_both_sides(ours, theirs)
    found.faults += faults
    found.doubts += doubts + repeats.told_alike(repeats.alike(ours, theirs, seen), train, held_out, seen, _folder(config))
    found.said.append(f"{len(theirs)} held-out rows compared with {len(ours)} that are trained on, and {len(seen)} pictures and clips")


def _probed(train: datasets.Dataset, config: RunConfig, found: Findings) -> None:
    """Say which share of the groups is expected to teach nothing, as far as a probe has seen the rows."""
    records, rows = solve_rates.read(solve_rates.place(config)), solve_rates.keys(train)
    known = [records[key] for key in rows if key in records]
    if not known or (config.warmup and config.data.probe is None):
        found.said.append(f"groups without spread: unknown; `grpo probe {solve_rates.policy_of(config)} --config CONFIG` measures them")
    else:
        found.said.append(f"expected of {len(known)} of {len(rows)} rows: {solve_rates.expected(known, config.num_generations)}")
    if config.data.uses_probe:
        try:
            kept = [rows[place] for place in solve_rates.chosen(rows, config)]
        except DataError as error:
            found.faults.append(str(error))
            return
        found.said.append(f"of the {len(kept)} rows kept: {solve_rates.expected([records[key] for key in kept], config.num_generations)}")


def _parts(config: RunConfig) -> list[tuple[str, str]]:
    own = [(config.dataset_name, config.dataset_split)]
    if config.evaluation.dataset_split:
        own.append((config.evaluation.dataset_name or config.dataset_name, config.evaluation.dataset_split))
    return own + ([(config.warmup.dataset_name, config.warmup.dataset_split)] if config.warmup else [])


def _tokens(rows: datasets.Dataset, config: RunConfig, processor: Any) -> str:
    lengths, room = rows["prompt_tokens"], dataset.context_length(config, processor)
    holds = "no limit" if room is None else f"{room} tokens"
    frames = [len(clip["indices"]) for row in (rows["videos"] if "videos" in rows.column_names else ()) for clip in row or ()]
    shown = f"; {len(frames)} clips, decoded whole, of {min(frames)} to {max(frames)} frames" if frames else ""
    return (
        f"prompts of {min(lengths)} to {max(lengths)} tokens, pictures and clips counted (median {statistics.median(lengths):g}), and "
        f"{config.max_completion_length} for the completion; the context: {holds}{shown}"
    )


def _rendered(sample: Sample, processor: Any, config: RunConfig) -> Path:
    """Write one prompt as the chat template makes it, its pictures and frames as the processor gets them; returns their folder."""
    folder = _folder(config)
    pictures, clips = list(sample.images), list(sample.videos)
    text = processors.prompt_text(processor, sample.prompt, pictures, clips)
    (folder / "prompt.txt").write_text(text, encoding="utf-8")
    for number, picture in enumerate(pictures):
        picture.save(folder / f"picture-{number}.png")
    for number, clip in enumerate(clips):
        for index, frame in zip(clip.indices, clip.frames, strict=True):
            Image.fromarray(frame).save(folder / f"clip-{number}-{index / clip.fps:07.2f}s.png")
    return folder


def _folder(config: RunConfig) -> Path:
    folder = registry.home() / "validated" / config.run_id
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def answers(samples: Sequence[Sample], task: Task, weighted: Sequence[tuple[RewardFunction, float]]) -> tuple[str, list[str]]:
    """Try every gold answer and its near misses on judge and rewards; says what was tried, and each row at fault."""
    if task.examples is None:
        return f"{len(samples)} rows; the task gives no examples, so its answers are not tried", []
    golds, misses, faults = [], [], []
    for sample in samples:
        try:
            gold, near = task.examples(sample)
        except DataError as error:
            faults.append(f"id {sample.id}: {error}")
            continue
        golds.append((sample, gold))
        misses.append([(sample, text) for text in near])
        if not task.judge(gold, sample).correct:
            faults.append(f"id {sample.id}: its own answer {sample.answer!r} is judged wrong")
        faults += [
            f"id {sample.id}: {_short(text)} is judged right and the answer is {sample.answer!r}"
            for text in near
            if task.judge(text, sample).correct
        ]
    try:
        faults += _paid(golds, misses, weighted)
    except RewardError as error:
        faults.append(str(error))
    return f"{len(golds)} gold answers and {sum(map(len, misses))} near misses tried on judge and rewards", faults


def _paid(golds: list[Any], misses: list[list[Any]], weighted: Sequence[tuple[RewardFunction, float]]) -> Iterator[str]:
    """Gold answers that a built-in reward does not pay in full, and near misses that earn as much as the gold answer."""
    if any(function.__name__ not in rewards.RANGES for function, _ in weighted):
        golds, misses = golds[:FIRST], misses[:FIRST]
    flat = list(itertools.chain.from_iterable(misses))
    earned, missed = [0.0] * len(golds), [0.0] * len(flat)
    for function, weight in weighted:
        scores = evaluation.judged(function, golds)
        full = rewards.RANGES.get(function.__name__, (None, None))[1]
        for (sample, _), score in zip(golds, scores, strict=True):
            if full is not None and score != full:
                yield f"id {sample.id}: {function.__name__} pays {score} for its own answer {sample.answer!r}, and {full} is all"
        earned = [sum_ + weight * (score or 0.0) for sum_, score in zip(earned, scores, strict=True)]
        missed = [sum_ + weight * (score or 0.0) for sum_, score in zip(missed, evaluation.judged(function, flat), strict=True)]
    paid = dict(zip((id(sample) for sample, _ in golds), earned, strict=True))
    for (sample, text), score in zip(flat, missed, strict=True):
        if score >= paid[id(sample)]:
            yield f"id {sample.id}: {_short(text)} earns {score:g} and the answer {sample.answer!r} {paid[id(sample)]:g}"


def _short(text: str) -> str:
    return repr(text if len(text) < 120 else text[:120] + "…")
