"""Measure how often a policy solves each row of a run before the run takes a GPU: k sampled completions a row, with the run's own prompt,
sampling and rewards.

Rows that are always or never solved give groups of equal rewards, from which GRPO learns nothing. What is measured is kept as it comes
(solve_rates.py says where and by what), so that a killed probe goes on where it stopped.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.progress import track

from qwen_vl_grpo import answering, dataset, evaluation, policy, scoring, solve_rates, splits, subjects, tasks
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.interfaces import RewardFunction, Sample, Task
from qwen_vl_grpo.journal import Journal
from qwen_vl_grpo.loading import Completion, Question
from qwen_vl_grpo.solve_rates import Record

log = logging.getLogger("qwen_vl_grpo")


def probe(config: RunConfig, count: int, backend: answering.BackendName = "auto") -> list[Record]:
    """The records of the rows that a config trains on before its filter, `count` completions each; what is stored is not asked again.

    Raises the typed error of what is wrong with the config, its data or the policy, and DataError for a task whose answers are not judged
    by their words.
    """
    task = tasks.build(config.task)
    weighted = tasks.rewards(task, config)
    rows = splits.load(solve_rates.unsorted(config), task, policy.load_processor(config)).train
    samples = {solve_rates.row_key(sample.columns): sample for sample in dataset.to_samples(rows)}
    if task.judge("", next(iter(samples.values()))).correct is None:
        raise DataError(
            f"task.name {task.name}: its completions are drawn before they are judged, so no row is solved by words; probe none"
        )
    with Journal(solve_rates.place(config)) as stored:
        known = solve_rates.by_row(record for record in stored.records if len(record["correct"]) >= count)
        left = {key: sample for key, sample in samples.items() if key not in known}
        log.info("%d rows, %d of them in %s", len(samples), len(samples) - len(left), stored.path)
        asked = _asked(config, left, count, backend, task, weighted) if left else iter(())
        for record in track(asked, "probing", len(left), console=Console(stderr=True), transient=True, disable=not left):
            stored.add(record)
            known[record["row"]] = record
    return [known[key] for key in samples]


def _asked(
    config: RunConfig,
    samples: Mapping[str, Sample],
    count: int,
    backend: answering.BackendName,
    task: Task,
    weighted: Sequence[tuple[RewardFunction, float]],
) -> Iterator[Record]:
    """A record for each sample, as soon as its completions are there."""
    run = subjects.find(solve_rates.policy_of(config), config)
    chosen = answering.choose_backend(backend)
    with scoring.started(run, chosen, config.evaluation.batch_size, samples.values(), len(samples) * count) as (loaded, run):
        first = Question(run, next(iter(samples.values())), config.max_completion_length, config.temperature)
        places: dict[int, str] = {}

        def questions() -> Iterator[Question]:
            for key, sample in samples.items():
                for draw in range(count):
                    question = replace(first, sample=sample, seed=config.seed + draw)
                    places[id(question)] = key
                    yield question

        drawn: dict[str, list[Completion]] = defaultdict(list)
        for question, completion in loaded.answer(questions()):
            key = places.pop(id(question))
            drawn[key].append(completion)
            if len(drawn[key]) == count:
                yield {"row": key} | judged(samples[key], drawn.pop(key), run.processor, task, weighted)


def judged(
    sample: Sample, completions: Sequence[Completion], processor: Any, task: Task, weighted: Sequence[tuple[RewardFunction, float]]
) -> Record:
    """What the completions of one sample are worth."""
    texts = processor.batch_decode([completion.token_ids for completion in completions], skip_special_tokens=True)
    verdicts = [task.judge(text, sample) for text in texts]
    paid = [evaluation.judged(function, [(sample, text) for text in texts]) for function, _ in weighted]
    return {
        "id": sample.id,
        "solve_rate": sum(bool(verdict.correct) for verdict in verdicts) / len(verdicts),
        "correct": [verdict.correct for verdict in verdicts],
        "format": [verdict.format for verdict in verdicts],
        "reward": [_total(scores, [weight for _, weight in weighted]) for scores in zip(*paid, strict=True)],
        "tokens": [len(completion.token_ids) for completion in completions],
    }


def _total(scores: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """The weighted reward of one completion as TRL adds it up; None where no function judged."""
    known = [weight * score for score, weight in zip(scores, weights, strict=True) if score is not None]
    return round(sum(known), 6) if known else None
