"""Completions from a policy: for the evaluator, and for a person who knows only a run_id.

The story of `ask`: runs are grouped by the base they stand on, one backend is started for each base with every adapter in it, each
adapter is seen to work, and then every question that has no answer yet is put to every run of the group.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from PIL import Image

from qwen_vl_grpo import (
    answers,
    dataset,
    exporting,
    fetching,
    gallery,
    hardware,
    journal,
    loading,
    opening,
    processors,
    registry,
    row_clips,
)
from qwen_vl_grpo.errors import DataError, HardwareError
from qwen_vl_grpo.interfaces import Generate, Sample
from qwen_vl_grpo.items import Item
from qwen_vl_grpo.journal import Key, Record
from qwen_vl_grpo.loading import Completion, Question, RunPolicy
from qwen_vl_grpo.transformers_backend import TransformersBackend, sampled
from qwen_vl_grpo.video_records import VideoFile
from qwen_vl_grpo.vllm_backend import TowerIgnored, VllmBackend

log = logging.getLogger("qwen_vl_grpo")

BackendName = Literal["auto", "vllm", "transformers"]
Answered = tuple[RunPolicy, Record, Sequence[Image.Image]]
"""A run, the record of its answer, and the pictures that it was asked with, in the run's size."""


class Draw(Protocol):
    """What draws answers as they come and puts into each record where its picture is (drawing.py)."""

    folder: Path

    def __call__(self, backend: Any, answered: Iterator[Answered]) -> Iterator[Record]: ...


def with_transformers(
    model: Any, processor: Any, max_new_tokens: int, batch_size: int, seed: int, show: bool = True, top_p: float = 1.0
) -> Generate:
    """A Generate that samples from `model` as it is at each call.

    The ids that end an answer are those of TRL's rollouts: the trainer adds the tokenizer's to the model's only when it starts.
    """
    ends = loading.ending_ids(processor, model.generation_config.eos_token_id)

    def generate(samples: Sequence[Sample], count: int, temperature: float) -> list[list[str]]:
        results: list[list[str]] = []
        batches = range(0, len(samples), max(1, batch_size // count))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            for start in progress(batches, "answering", show and len(batches) > 2):
                part = samples[start : start + batches.step]
                ids, _ = sampled(model, processor, part, count, temperature, max_new_tokens, ends, top_p)
                texts = processor.batch_decode(ids, skip_special_tokens=True)
                results += [texts[i : i + count] for i in range(0, len(texts), count)]
        return results

    return generate


def progress(items: Any, what: str, show: bool) -> Any:
    from rich.progress import track

    return track(items, what, disable=not show, transient=True)


@dataclass(frozen=True)
class How:
    """What a person may say beside the question."""

    system_prompt: str | None = None
    """None takes each run's own."""
    max_new_tokens: int | None = None
    temperature: float = 0.0
    allow_private_urls: bool = False
    backend: BackendName = "auto"
    batch_size: int = 8
    """Answers that transformers writes at once."""
    shown: Container[str] = ()
    """Ids of the items whose pictures are kept beside the answers, for people who compare runs later."""
    top_p: float = 1.0
    """Sample from the likeliest tokens that make up this share."""
    draw: Draw | None = None
    """None draws nothing."""


def ask(
    runs: Sequence[RunPolicy], items: Sequence[Item], how: How, answered: Container[Key] = (), loaded: Callable[[float], object] = float
) -> Iterator[Record]:
    """Put every item to every run and give each record as it is there, except those whose key is in `answered`.

    Raises RegistryError before the first answer of a base if an adapter on it is not in use. What is wrong with an item alone
    becomes the `error` of its record. `loaded` gets the seconds that each base took to load.
    """
    backend_name = choose_backend(how.backend)
    for group in loading.groups(runs):
        left = [run for run in group if any(key_of(run, item, how) not in answered for item in items)]
        if left:
            yield from _from_one_base(backend_name, left, items, how, answered, loaded)


def _from_one_base(
    backend_name: str,
    group: Sequence[RunPolicy],
    items: Sequence[Item],
    how: How,
    answered: Container[Key],
    loaded: Callable[[float], object],
) -> Iterator[Record]:
    """Records of runs that answer from one loaded base; those whose tower vLLM leaves out answer after them, each from a merged copy."""
    wanted = [item for item in items if any(key_of(run, item, how) not in answered for run in group)]
    without_tower: list[RunPolicy] = []
    started = time.perf_counter()
    with closing(_start(backend_name, group, wanted, how)) as backend:
        for run in group:
            try:
                if run.has_adapter:
                    moved = backend.check(run, loading.canary(run))
                    log.info("%s: its adapter moves a canary's log-probabilities%s", run.run_id, f" by {moved:.2g}" * math.isfinite(moved))
            except TowerIgnored:
                log.info("%s: vLLM leaves out what its adapter learned in the vision tower; answered from a merged copy", run.run_id)
                without_tower.append(run)
        loaded(time.perf_counter() - started)
        if checked := [run for run in group if run not in without_tower]:
            made = answers_of(backend, checked, wanted, how, answered)
            yield from how.draw(backend, made) if how.draw else (record for _, record, _ in made)
    for run in without_tower:
        started = time.perf_counter()
        with exporting.merged(run) as copy:
            loaded(time.perf_counter() - started)
            yield from _from_one_base(backend_name, [copy], items, how, answered, loaded)


def choose_backend(asked: BackendName) -> str:
    """vLLM on a GPU where it is installed, else transformers; raises HardwareError if vLLM is asked for and not there."""
    installed = importlib.util.find_spec("vllm") is not None
    if asked == "vllm" and not installed:
        raise HardwareError("--backend vllm: vLLM is not installed here; take --backend transformers, or a container that has it")
    if asked == "auto":
        return "vllm" if installed and hardware.detect().accelerated else "transformers"
    return asked


def key_of(run: RunPolicy, item: Item, how: How) -> Key:
    """What makes an answer the same answer: the run, its weights, the item, and everything that was asked."""
    asked = [
        _system(run, how), item.messages, item.images, item.max_new_tokens or how.max_new_tokens,
        how.temperature if item.temperature is None else item.temperature, item.error,
        *([how.top_p] if how.top_p < 1 else []), *([item.videos] if item.videos else ()),
        *([str(how.draw.folder)] if how.draw else ()),
    ]  # fmt: skip
    return run.run_id, run.sha, item.id, hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


def _system(run: RunPolicy, how: How) -> str:
    return run.card.system_prompt if how.system_prompt is None else how.system_prompt


def _start(name: str, group: Sequence[RunPolicy], items: Sequence[Item], how: How) -> Any:
    if name == "transformers":
        return TransformersBackend(group, how.batch_size)
    written = max((run.config.video.max_frames for run in group if run.config.video.mode == "frames"), default=0)
    images = max(len(item.images) + written * len(item.videos) for item in items)
    return VllmBackend(group, images, max(len(item.videos) for item in items), len(items) * len(group))


def answers_of(
    backend: Any, group: Sequence[RunPolicy], items: Sequence[Item], how: How, answered: Container[Key] = ()
) -> Iterator[Answered]:
    """Answers of one group: pictures are fetched and sized ahead, items at fault are told between the answers."""
    at_fault: deque[Answered] = deque()
    asked: dict[int, tuple[Item, Key, Record, float]] = {}

    def questions() -> Iterator[Question]:
        for item, opened, sized in opening.ahead(items, group, how.allow_private_urls):
            seen = _seen(opened, how)
            for run in group:
                key = key_of(run, item, how)
                if key in answered:
                    continue
                try:
                    if isinstance(opened, DataError):
                        raise opened
                    question = _question(run, opened, how, backend.context, sized[run])
                except DataError as error:
                    at_fault.append((run, _record(run, item, key, backend.name) | {"error": str(error)}, ()))
                    continue
                asked[id(question)] = item, key, seen, time.perf_counter()
                yield question

    for question, completion in backend.answer(questions()):
        while at_fault:
            yield at_fault.popleft()
        item, key, seen, since = asked.pop(id(question))
        record = (
            _record(question.run, item, key, backend.name) | _told(question, completion, item.prompt, time.perf_counter() - since) | seen
        )
        yield question.run, record, question.sample.images
    yield from at_fault


def _seen(opened: Item | DataError, how: How) -> Record:
    """The hashes of an item's pictures, and for an item that is shown later the names of their copies beside the journal."""
    if isinstance(opened, DataError):
        return {}
    pictures: list[fetching.Picture] = opened.opened or []
    kept = {"pictures": [gallery.keep_picture(journal.folder(), picture.image) for picture in pictures]} if opened.id in how.shown else {}
    return {"image_sha256": [picture.sha256 for picture in pictures]} | kept


def _question(run: RunPolicy, item: Item, how: How, context: int, sized: opening.Sized) -> Question:
    """An opened item as this run is asked it, with its pictures in the run's size."""
    if isinstance(sized, DataError):
        raise sized
    own_system = item.messages[0]["role"] == "system"
    chat = item.messages if own_system else [{"role": "system", "content": _system(run, how)}, *item.messages]
    sample = Sample(item.id, chat, sized, "")
    if item.clips:
        sample = _watching(run, sample, item.clips)
    longest = item.max_new_tokens or how.max_new_tokens or run.config.max_completion_length
    temperature = how.temperature if item.temperature is None else item.temperature
    question = Question(run, sample, longest, temperature, how.top_p)
    length = len(question.ids)
    if length + longest > context:
        raise DataError(f"prompt and answer need {length + longest} tokens and the context holds {context}; lower --max_new_tokens")
    return question


def _watching(run: RunPolicy, sample: Sample, files: Sequence[VideoFile]) -> Sample:
    """The sample with clips as the run learned with them, which is as pictures for `video.mode: frames`."""
    if not processors.sees(run.processor):
        raise DataError(f"has a clip, and {run.config.model_name} reads text alone; ask without it")
    clips, _ = row_clips.seen(files, run.config, processors.merged_patch(run.processor))
    if run.config.video.mode == "video":
        return replace(sample, videos=clips)
    chat, pictures = row_clips.as_pictures(replace(sample, prompt=processors.placed(sample.prompt, sample.images, clips)), clips)
    return replace(sample, prompt=chat, images=[dataset.fit(picture, run.processor, run.config) for picture in pictures])


def _record(run: RunPolicy, item: Item, key: Key, backend: str) -> Record:
    """What is known before an answer is there."""
    run_id, sha, name, asked = key
    return {
        "run_id": run_id, "sha": sha, "item": name, "asked": asked, "prompt": item.prompt,
        "images": [fetching.shown(source) for source in item.images], "base_model": run.card.base_model, "backend": backend,
        "time": registry.now(), "error": None,
    } | ({"videos": [fetching.shown(source) for source in item.videos]} if item.videos else {})  # fmt: skip


def _told(question: Question, completion: Completion, asked: str, seconds: float) -> Record:
    text = question.run.processor.decode(completion.token_ids, skip_special_tokens=True)
    reasoning, answer = answers.parts(text)
    task = question.run.task
    own = task.told(asked, text) if task and task.told else {}
    return {
        "answer": answer, "reasoning": reasoning, "completion": text, "well_formed": answers.strict_answer(text) is not None,
        "finish_reason": completion.finish_reason, "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": len(completion.token_ids), "temperature": question.temperature, "top_p": question.top_p,
        "max_new_tokens": question.max_new_tokens, "seed": question.run.config.seed if question.temperature else None,
        "seconds": round(seconds, 3),
    } | own  # fmt: skip
