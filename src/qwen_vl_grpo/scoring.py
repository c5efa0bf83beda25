"""One policy under a pinned protocol: the same rows, prompt, sampling, extractor and judge for whoever answers.

The story of `evaluate`: a config becomes a protocol, whose hash names a folder; the policy answers the rows there batch by batch, and what
is said of each completion is written before the next batch is asked. A process that was killed goes on with the first batch that is not
whole, with the seeds that it would have had.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwen_vl_grpo import (
    dataset,
    evaluation,
    exporting,
    hardware,
    index,
    item_scores,
    loading,
    protocol,
    registry,
    splits,
    subjects,
    tasks,
)
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.interfaces import RewardFunction, Sample, Task
from qwen_vl_grpo.journal import Journal, Record
from qwen_vl_grpo.loading import Completion, Question, RunPolicy
from qwen_vl_grpo.protocol import Asked
from qwen_vl_grpo.transformers_backend import TransformersBackend
from qwen_vl_grpo.vllm_backend import TowerIgnored, VllmBackend

log = logging.getLogger("qwen_vl_grpo")

RESULT, ITEMS = "result.json", "items.jsonl"
TOGETHER = 256
"""Samples that vLLM is asked before their answers are kept."""


@dataclass(frozen=True)
class Evaluated:
    """A policy's result, and what it was made of."""

    folder: Path
    result: dict[str, Any]
    records: list[Record]
    samples: list[Sample]
    groups: list[str]
    """For each sample a name that those which show the same picture share."""


def evaluate(subject: RunPolicy, config: RunConfig, asked: Asked) -> Evaluated:
    """Let a policy answer the rows that `config` holds out, or all of it where it holds out none; what was answered before is kept.

    Raises the typed error of data, a judge or an engine that is not there.
    """
    started = time.perf_counter()
    home = subjects.home(subject)
    judging = config.judging.model_copy(update={"spending": str(home / "spending.json")})
    run = subjects.under(subject, config.model_copy(update={"judge": judging}))
    task = tasks.build(config.task)
    functions = [function for function, _ in tasks.rewards(task, run.config)]
    parts = splits.load(run.config, task, run.processor)
    rows = parts.train if parts.held_out is None else parts.held_out
    rows = rows.select(range(min(len(rows), asked.limit or len(rows))))
    pinned = protocol.pinned(run.config, task, functions, rows, asked)
    digest = hashlib.sha256(json.dumps(pinned, sort_keys=True).encode()).hexdigest()
    folder, samples = home / digest[:12], dataset.to_samples(rows)
    folder.mkdir(parents=True, exist_ok=True)
    log.info("%s: protocol %s, %d rows, results in %s", subjects.name_of(subject), digest[:12], len(samples), folder)
    with Journal(folder / ITEMS) as kept:
        known = _answer(run, task, functions, samples, pinned, digest, kept)
    records = [known[name] for name in _names(len(samples), pinned)]
    groups = splits.by_picture(rows["picture_ids"], [f"row {place}" for place in range(len(rows))])
    described = subjects.described(run)
    result: dict[str, Any] = {
        "subject": described, "digest": digest, "protocol": pinned, "scores": item_scores.scores(records, groups),
        "categories": item_scores.categories(records, samples, groups), "seen": protocol.seen(subject, run.config, rows),
        "clusters": len(set(groups)), "versions": hardware.versions(), "hardware": hardware.describe(hardware.detect()),
        "git": registry.git_state(), "time": registry.now(), "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip
    index.replace(folder / RESULT, json.dumps(result, indent=2) + "\n")
    return Evaluated(folder, result, records, samples, groups)


def against(base: Evaluated, tuned: Evaluated) -> dict[str, Any]:
    """What changed from one policy to the other on the same items, kept beside the result of the second.

    Raises DataError where they were not asked the same.
    """
    if base.result["digest"] != tuned.result["digest"]:
        one, other = base.result["protocol"], tuned.result["protocol"]
        differing = ", ".join(key for key in one if one[key] != other[key])
        raise DataError(f"the two were not asked the same ({differing} differ), so no change can be told; give both the rows that fit both")
    changes = item_scores.paired(base.records, tuned.records, tuned.groups)
    name = hashlib.sha256(json.dumps(base.result["subject"], sort_keys=True).encode()).hexdigest()[:8]
    told = {"base": base.result["subject"], "tuned": tuned.result["subject"], "digest": tuned.result["digest"], "changes": changes}
    index.replace(tuned.folder / f"against-{name}.json", json.dumps(told, indent=2) + "\n")
    return changes


def _answer(
    run: RunPolicy,
    task: Task,
    functions: Sequence[RewardFunction],
    samples: Sequence[Sample],
    pinned: Mapping[str, Any],
    digest: str,
    kept: Journal,
) -> dict[str, Record]:
    """Add to the journal what is missing there, one batch after the other; the answers of these weights by their items."""
    how = pinned["generation"]
    sha = run.sha
    known = {record["item"]: record for record in kept.records if record["sha"] == sha}
    size = how["batch_size"] if how["backend"] == "transformers" else TOGETHER
    left = [
        (kind, count, range(start, min(start + size, len(samples))))
        for kind, count in _kinds(how)
        for start in range(0, len(samples), size)
        if any(_name(kind, place, draw) not in known for place in range(start, min(start + size, len(samples))) for draw in range(count))
    ]
    if not left:
        return known
    most = max(count * len(places) for _, count, places in left)
    with started(run, how["backend"], how["batch_size"], samples, most) as (backend, asked_run):
        for function in functions:
            if hold := getattr(function, "hold", None):
                hold(backend.model, asked_run.processor)
        for number, (kind, count, places) in enumerate(left, 1):
            part = [samples[place] for place in places]
            completions = _completions(backend, asked_run, part, places, kind, count, how)
            texts = [asked_run.processor.decode(completion.token_ids, skip_special_tokens=True) for completion in completions]
            marks = evaluation.mark(
                part, [texts[start : start + count] for start in range(0, len(texts), count)], task, functions, told=True
            )
            names = [(place, draw) for place in places for draw in range(count)]
            for (place, draw), completion, text, mark in zip(names, completions, texts, marks, strict=True):
                if (name := _name(kind, place, draw)) not in known:
                    who = {"run_id": run.run_id, "sha": sha, "item": name, "asked": digest, "error": None}
                    what = {"kind": kind, "place": place, "draw": draw, "id": samples[place].id, "completion": text}
                    known[name] = who | what | _counted(completion) | item_scores.written(mark)
                    kept.add(known[name])
            log.info("%s: batch %d of %d is there", kind, number, len(left))
    return known


def _completions(
    backend: Any, run: RunPolicy, part: Sequence[Sample], places: Sequence[int], kind: str, count: int, how: Mapping[str, Any]
) -> list[Completion]:
    """`count` completions for each sample, in order. Each has a seed of its own, the same whatever was answered before it."""
    greedy = kind == "greedy"
    temperature, top_p = (0.0, 1.0) if greedy else (how["temperature"], how["top_p"])
    questions = [
        Question(run, sample, how["max_new_tokens"], temperature, top_p, _seed(how["seed"], place, draw))
        for place, sample in zip(places, part, strict=True)
        for draw in range(count)
    ]
    given = {id(question): completion for question, completion in backend.answer(questions)}
    return [given[id(question)] for question in questions]


@contextmanager
def started(run: RunPolicy, backend: str, batch_size: int, samples: Collection[Sample], questions: int) -> Iterator[tuple[Any, RunPolicy]]:
    """The policy loaded for at most so many questions at a time, its adapter seen to work; from a merged copy where vLLM leaves out what
    it learned in the tower."""

    def start(policy_: RunPolicy) -> Any:
        if backend == "transformers":
            return TransformersBackend([policy_], batch_size)
        images, clips = (max(len(shown) for shown in shows) for shows in zip(*((one.images, one.videos) for one in samples), strict=True))
        return VllmBackend([policy_], images, clips, questions)

    try:
        with closing(start(run)) as loaded:
            if run.has_adapter:
                loaded.check(run, loading.canary(run))
            yield loaded, run
    except TowerIgnored:
        with exporting.merged(run) as copy, closing(start(copy)) as loaded:
            yield loaded, copy


def _counted(completion: Completion) -> Record:
    return {
        "completion_tokens": len(completion.token_ids), "prompt_tokens": completion.prompt_tokens,
        "finish_reason": completion.finish_reason,
    }  # fmt: skip


def _kinds(how: Mapping[str, Any]) -> list[tuple[str, int]]:
    return [("greedy", 1), *([("sampled", how["samples"])] if how["samples"] else [])]


def _names(rows: int, pinned: Mapping[str, Any]) -> list[str]:
    return [_name(kind, place, draw) for kind, count in _kinds(pinned["generation"]) for place in range(rows) for draw in range(count)]


def _name(kind: str, place: int, draw: int) -> str:
    return f"{kind}/{place}/{draw}"


def _seed(seed: int, place: int, draw: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{place}/{draw}".encode()).digest()[:4])
