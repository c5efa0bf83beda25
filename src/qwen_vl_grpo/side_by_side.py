"""What a run's policy and the base that it began from make of the same questions, for a person who tries them.

The runs that were asked last stay in memory, since a person asks again. Where a run's completions are drawn, so are these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen_vl_grpo import answering, drawn_answers, loading, opening, policy, registry
from qwen_vl_grpo.drawn_answers import DrawnAnswers
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.interfaces import RunCard
from qwen_vl_grpo.items import Item
from qwen_vl_grpo.journal import Record
from qwen_vl_grpo.loading import RunPolicy
from qwen_vl_grpo.transformers_backend import TransformersBackend

if TYPE_CHECKING:
    from PIL.Image import Image

AT_ONCE = 8
"""Answers that are written together."""


@dataclass(frozen=True, eq=False)
class BasePolicy(RunPolicy):
    """What a run's GRPO began from: its base, warmed up where the run was; seen through the run's own processor and system prompt."""

    @cached_property
    def folder(self) -> Path:
        return (self.run_dir / "warmup").resolve() if self.config.warmup else Path(self.config.model_name)

    @cached_property
    def has_adapter(self) -> bool:
        return False

    @cached_property
    def base_key(self) -> str:
        return RunPolicy(self.card, self.run_dir, self.config).base_key if self.beside_adapter else super().base_key

    @property
    def beside_adapter(self) -> bool:
        return (registry.checkpoint_folder(self.card, self.run_dir) / "adapter_config.json").is_file()

    @cached_property
    def processor(self) -> Any:
        return policy.load_processor(self.config, str(registry.checkpoint_folder(self.card, self.run_dir)))


@dataclass(frozen=True)
class Side:
    """One answer: its record (answering.py), and what it looks like where the run's completions are drawn."""

    record: Record
    picture: Image | None = None
    verdict: str = ""

    @property
    def said(self) -> str:
        """What is known of it beside its text, in words."""
        if self.record["error"] is not None:
            return f"not asked: {self.record['error']}"
        graded = [f"quality {self.record['quality']:.0f} / 5"] if "quality" in self.record else []
        formed = "well-formed" if self.record["well_formed"] else "not well-formed"
        return "; ".join([self.verdict or formed, *graded, f"{self.record['completion_tokens']} tokens"])


@dataclass(frozen=True)
class Pair:
    """What a run's base and its policy answered to one question."""

    run_id: str
    base: Side
    tuned: Side


class SideBySide:
    """Some runs, of which those that a person picks are loaded."""

    def __init__(self, found: Sequence[tuple[RunCard, Path]]):
        self._found = {card.run_id: (card, run_dir) for card, run_dir in found}
        self._loaded: list[tuple[Any, list[RunPolicy]]] = []
        self._picked: list[str] = []
        self._drawing = DrawnAnswers()

    @property
    def run_ids(self) -> list[str]:
        return list(self._found)

    @property
    def watches(self) -> bool:
        """Whether one of them learned from clips."""
        return any(card.watches for card, _ in self._found.values())

    def ask(self, run_ids: Sequence[str], items: Sequence[Item], how: answering.How) -> Iterator[tuple[Item, list[Pair]]]:
        """Each question, its pictures opened, with the answers of the runs, in their order.

        Raises the typed error of a run or a renderer that cannot be had.
        """
        self._load(list(run_ids))
        self._drawing.look_again()
        for start in range(0, len(items), AT_ONCE):
            with ThreadPoolExecutor(AT_ONCE) as pool:
                part = list(pool.map(lambda item: _opened(item, how), items[start : start + AT_ONCE]))
            sides: dict[tuple[str, bool, str], Side] = {}
            for backend, group in self._loaded:
                for tuned in (False, True):
                    asked = [run for run in group if isinstance(run, BasePolicy) != tuned]
                    made = [record for _, record, _ in answering.answers_of(backend, asked, part, how)] if asked else []
                    for run in asked:
                        own = [record for record in made if record["run_id"] == run.run_id]
                        backend.take(run)
                        seen = self._seen(run, backend.model, own, part)
                        sides |= {(run.run_id, tuned, record["item"]): side for record, side in zip(own, seen, strict=True)}
            for item in part:
                yield item, [Pair(name, sides[name, False, item.id], sides[name, True, item.id]) for name in run_ids]

    def _load(self, run_ids: list[str]) -> None:
        if run_ids == self._picked:
            return
        self._picked = []
        tuned = [loading.load(*self._found[name]) for name in run_ids]
        self._drawing.only(tuned)
        while self._loaded:
            self._loaded.pop()[0].close()
        policies = [side for run in tuned for side in (run, BasePolicy(run.card, run.run_dir, run.config))]
        for group in loading.groups(policies):
            backend = TransformersBackend(group, AT_ONCE)
            self._loaded.append((backend, group))
            for run in group:
                if run.has_adapter:
                    backend.check(run, loading.canary(run))
        self._picked = run_ids

    def _seen(self, run: RunPolicy, model: Any, made: Sequence[Record], items: Sequence[Item]) -> list[Side]:
        """The answers of a run, drawn where the run learned so."""
        if not drawn_answers.is_drawn(run):
            return list(map(Side, made))
        pictures = {item.id: [picture.image for picture in item.opened or ()] for item in items}
        asked = [(record, pictures[record["item"]]) for record in made if record["error"] is None]
        drawn = iter(self._drawing.draw(run, model, asked))
        return [Side(record) if record["error"] is not None else Side(record, (one := next(drawn)).picture, one.verdict) for record in made]


def _opened(item: Item, how: answering.How) -> Item:
    """An item with its pictures, which are asked with, shown and edited; or with what is wrong with them."""
    found = opening.opened_of(item, how.allow_private_urls)
    return replace(item, error=str(found)) if isinstance(found, DataError) else found
