"""What a run's completions looked like, kept for people: the same held-out prompts at every evaluation, and each step's best and worst.

Kept are small copies of what was to be edited and of what was drawn, the latter only in this run: a judgement from the cache has no
picture unless the run has drawn it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen_vl_grpo import gallery, hardware, ranks, tracking
from qwen_vl_grpo.interfaces import Judgement, RenderRequest, Source
from qwen_vl_grpo.rewards.rendered import KEPT_SIDE

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger("qwen_vl_grpo")

FILE = "gallery.jsonl"
STEPS = 250
"""Steps a run whose best and worst are kept, evenly spread: with them a gallery stays below about 20 MB, evaluations aside, and below
about as much again for each picture that a row has edited."""
SOURCES = 3
"""Pictures of a row that are kept at most: what Qwen-Image-Edit-Plus was made for."""


@dataclass(frozen=True)
class Entry:
    """One completion as it came out."""

    original: str
    completion: str
    """As it was drawn."""
    request: RenderRequest | None
    """None where there was nothing to draw."""
    outcome: Judgement | Exception | None
    reward: float | None
    sources: tuple[Source, ...] = ()
    """What was to be edited, also where nothing was drawn."""

    @property
    def said(self) -> dict[str, Any]:
        """The verdict with its reasons, or why there is none."""
        if isinstance(self.outcome, Judgement):
            return {"score": self.outcome.score, "details": dict(self.outcome.details), "reason": self.outcome.reason}
        return {"score": None, "details": {}, "reason": str(self.outcome or "there was nothing to draw")}


@dataclass(frozen=True)
class _Shown:
    """An entry as processes tell each other of it: by its request's name, since the states in a request are large."""

    entry: Entry
    key: str | None
    picture: Image | None

    @classmethod
    def of(cls, entry: Entry, pictures: Mapping[RenderRequest, Image]) -> _Shown:
        if entry.request is None:
            return cls(entry, None, None)
        return cls(replace(entry, request=None), _key(entry.request), pictures.get(entry.request))


class RenderedGallery:
    """gallery.jsonl and the pictures beside it, in the folder of a run: every process shows what it has, and the main one writes it."""

    def __init__(self, run_dir: Path, max_steps: int):
        self._run_dir = run_dir
        self._every = -(-max_steps // STEPS)
        self._drawn: dict[str, str] | None = None
        self._sources: dict[str, str] = {}

    def keep_held_out(self, moment: str, entries: Sequence[Entry], pictures: Mapping[RenderRequest, Image]) -> None:
        """Keep the first entries of an evaluation, in the order of the held-out rows."""
        shown = ranks.joined([_Shown.of(entry, pictures) for entry in entries[: gallery.KEPT]])
        self._keep(moment, None, [("held-out", place, one) for place, one in enumerate(shown[: gallery.KEPT])])

    def keep_step(self, step: int, entries: Sequence[Entry], pictures: Mapping[RenderRequest, Image]) -> None:
        """Keep the best and the worst rewarded completion of a step; in a run of more than STEPS steps, of every second, third, …"""
        if (step - 1) % self._every:
            return
        judged = sorted((entry for entry in entries if entry.reward is not None), key=lambda entry: entry.reward or 0.0)
        ends = ranks.joined([_Shown.of(entry, pictures) for entry in (*judged[:1], *judged[-1:])])
        ends.sort(key=lambda one: one.entry.reward or 0.0)
        if ends:
            self._keep(f"step {step}", step, [("best", 0, ends[-1]), ("worst", 0, ends[0])])

    def _keep(self, moment: str, step: int | None, kept: Sequence[tuple[str, int, _Shown]]) -> None:
        if not hardware.is_main_process() or not kept:
            return
        try:
            lines: list[dict[str, Any]] = [
                {"moment": moment, "kind": kind, "place": place, "original": one.entry.original, "completion": one.entry.completion}
                | {"sources": self._kept_sources(one.entry), "picture": self._picture(one), "reward": one.entry.reward, "request": one.key}
                | one.entry.said
                for kind, place, one in kept
            ]
            with (self._run_dir / FILE).open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
        except OSError as error:
            log.warning("%s: the pictures of %s are not kept (%s)", self._run_dir / FILE, moment, error.strerror)
            return
        shown: dict[str, list[tuple[list[Path], str]]] = {}
        for line in lines:
            if line["picture"]:
                files = [self._run_dir / name for name in (*line["sources"], line["picture"])]
                shown.setdefault(f"gallery/{line['kind']}", []).append((files, caption(line)))
        tracking.log_pictures(shown, step)

    def _picture(self, one: _Shown) -> str | None:
        """The file of an entry's picture. Within a run it follows from the request alone, so one that was drawn before serves."""
        if self._drawn is None:
            lines = [line for line in read(self._run_dir)[0] if isinstance(line.get("request"), str)]
            self._drawn = {line["request"]: line["picture"] for line in lines if line["picture"]}
        if one.key is None:
            return None
        if one.picture is not None:
            self._drawn[one.key] = gallery.keep_picture(self._run_dir, one.picture)
        return self._drawn.get(one.key)

    def _kept_sources(self, entry: Entry) -> list[str]:
        """The files of an entry's sources, each written once, however many completions begin from it."""
        for source in entry.sources[:SOURCES]:
            if source.sha256 not in self._sources:
                self._sources[source.sha256] = gallery.keep_picture(self._run_dir, source.image, KEPT_SIDE)
        return [self._sources[source.sha256] for source in entry.sources[:SOURCES]]


def read(run_dir: Path) -> tuple[list[dict[str, Any]], int]:
    """The kept lines of a run, each once, in order, and how many could not be read; a step that was done again has its last lines."""
    lines, broken = gallery.read_lines(run_dir / FILE, moment=str, kind=str, place=int, original=str, completion=str, picture=str | None)
    for line in lines:
        names = line.get("sources")  # lines from before tasks that edit have none
        line["sources"] = [name for name in names if isinstance(name, str)][:SOURCES] if isinstance(names, list) else []
    return list({(line["moment"], line["kind"], line["place"]): line for line in lines}.values()), broken


def caption(line: Mapping[str, Any]) -> str:
    """A kept line in words: verdict, prompt and completion, and which of several pictures is the one that was drawn."""
    edited = " | the source, and at its right what was drawn" * bool(line["sources"])
    return f"{verdict(line)} | {line['original']} -> {line['completion']}{edited}"


def verdict(line: Mapping[str, Any]) -> str:
    """Score with the values that it comes from, the reward where it is another number, and the judge's reason."""
    score, reward, details = line.get("score"), line.get("reward"), line.get("details")
    if not isinstance(score, int | float):
        return f"no score: {line.get('reason')}"
    measured = details.items() if isinstance(details, dict) else ()
    parts = [f"score {score:.2f}", *(f"{name} {value:.3f}" for name, value in measured if isinstance(value, int | float))]
    if isinstance(reward, int | float) and abs(reward - score) > 0.005:
        parts.append(f"reward {reward:.2f}")
    return ", ".join([*parts, *([str(line["reason"])] if line.get("reason") else [])])


def _key(request: RenderRequest) -> str:
    """A name for everything that a picture follows from: sources and states stand in a request's text with their hashes."""
    return hashlib.sha256(repr(request).encode()).hexdigest()[:16]
