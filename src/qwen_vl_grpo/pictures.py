"""Each picture and clip of a prompt is read once and preprocessed once, however many completions the prompt gets.

TRL's sampler names a row once a completion and names the whole generation again at every micro-batch, and TRL preprocesses the
pictures of every completion twice. Here the rows of a group share theirs, and in place of pixels the trainer shuffles and splits
numbers until the model reads them. TRL knows pictures alone (trl#4144), so a clip's numbers stand among the pictures', in the order of
the prompt, and the two are parted again at the model's door.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import datasets
import torch
from transformers import BatchFeature

from qwen_vl_grpo import policy, processors
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.interfaces import Clip


class SharedRows(torch.utils.data.Dataset):
    """A data set whose repeated rows are read once for as long as one batch follows another with the same rows."""

    def __init__(self, rows: Any, clip_of: Callable[[Mapping[str, Any]], Clip] | None = None):
        self._rows = rows.with_format("arrow")
        self._clip_of = clip_of
        """Reads the frames that an item of the column `videos` names."""
        self._read: dict[int, dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """The rows of one batch; each is a dict of its own whose values are shared."""
        self._read = {index: self._read.get(index) or self._decoded(index) for index in dict.fromkeys(indices)}
        return [dict(self._read[index]) for index in indices]

    def _decoded(self, index: int) -> dict[str, Any]:
        """One row; as a feature of the data set, the first picture of a list would be decoded twice."""
        row = self._rows[index].to_pylist()[0]
        decode: Any = datasets.Image().decode_example
        row |= {"images": [decode(picture) for picture in row["images"]]}
        return row if self._clip_of is None else row | {"videos": [self._clip_of(video) for video in row.get("videos") or []]}


@dataclass(frozen=True)
class Shown:
    """One picture or clip as the vision tower reads it."""

    pixels: torch.Tensor
    """Shape (patches, values of a patch)."""
    grid: torch.Tensor
    """Patches in time, height and width, shape (3,); on the host."""
    clip: bool
    seconds: torch.Tensor | None
    """Between two patches in time, of a clip and where the model asks for it."""


KEYS = {False: ("pixel_values", "image_grid_thw"), True: ("pixel_values_videos", "video_grid_thw")}
"""The model's names for pixels and grids, by whether they are clips'."""


TOKENS = ("input_ids", "attention_mask", "mm_token_type_ids")


class OncePreprocessed:
    """Stands in for a processor during one generation: each prompt is rendered, tokenized and preprocessed once.

    What it gives TRL as pixels are numbers, shape (patches,): each patch has the number of its picture or clip.
    """

    def __init__(self, published: Any):
        self.published = published
        self._shown: list[Shown] = []
        self._rows: list[list[int]] = []
        """Numbers of the pictures and clips of each prompt, in its order."""
        self._tokens: dict[str, torch.Tensor] = {}
        """Ids, mask and kind of the tokens of each prompt, padded on the left."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.published, name)

    def read(self, prompts: Sequence[Any], rendering: Any = None) -> tuple[list[list[int]], list[list[Any]] | None]:
        """The ids of prompts that hold their pictures and clips (`processors.placed`), and these: None if no prompt has any, as in TRL.

        Of what was read before nothing is kept.
        """
        self._shown = []
        media = [processors.media(prompt) for prompt in prompts]
        texts = [
            processors.prompt_text(self.published, prompt, *apart(row), **(rendering or {}))
            for prompt, row in zip(prompts, media, strict=True)
        ]
        firsts, places = differing([(text, *map(id, row)) for text, row in zip(texts, media, strict=True)])
        rows = [media[first] for first in firsts]
        encoded = processors.encode(self.published, [texts[first] for first in firsts], *zip(*map(apart, rows), strict=True))
        numbers = self._keep(encoded, rows)
        self._rows = [numbers[place] for place in places]
        self._tokens = {key: encoded[key][places] for key in TOKENS if key in encoded}
        return policy.unpadded(self._tokens), media if any(media) else None

    def _keep(self, encoded: Any, rows: Sequence[Sequence[Any]]) -> list[list[int]]:
        """Keep each picture and clip that was encoded; returns the numbers of those of each row."""
        left = {}
        for clip, (pixels, grid) in KEYS.items():
            grids = encoded.get(grid, ())
            parts = encoded[pixels].split([int(one.prod()) for one in grids]) if len(grids) else ()
            seconds = encoded.get("second_per_grid_ts", [None] * len(grids)) if clip else [None] * len(grids)
            left[clip] = iter([Shown(part, one, clip, time) for part, one, time in zip(parts, grids, seconds, strict=True)])
        for row in rows:
            self._shown += [next(left[isinstance(item, Clip)]) for item in row]
        ends = torch.tensor([len(row) for row in rows]).cumsum(0).tolist()
        return [list(range(end - len(row), end)) for row, end in zip(rows, ends, strict=True)]

    def apply_chat_template(self, *_: Any, **__: Any) -> str:
        """Nothing: what TRL would render a second time is at hand."""
        return ""

    def __call__(self, **_: Any) -> BatchFeature:
        """What TRL has preprocessed for the loss: the tokens of all prompts, and numbers and grids where there is something to see."""
        shown = [(number, self._shown[number].grid) for row in self._rows for number in row]
        seen: dict[str, torch.Tensor] = {}
        if shown:
            numbers = torch.cat([torch.full((int(grid.prod()),), number) for number, grid in shown])
            seen = {"pixel_values": numbers, "image_grid_thw": torch.stack([grid for _, grid in shown])}
        return BatchFeature(self._tokens | seen)

    def counts(self) -> list[int]:
        """How many pictures and clips each prompt shows."""
        return [len(row) for row in self._rows]

    def whole(self) -> dict[str, Any]:
        """What the model takes of all prompts beside their ids."""
        numbers = [number for row in self._rows for number in row]
        return self._parted(numbers, lambda some: (range(len(some)), ()))[0] | {"mm_token_type_ids": self._tokens["mm_token_type_ids"]}

    def _parted(self, numbers: Sequence[int], unlike: Callable[[list[int]], Any]) -> tuple[dict[str, torch.Tensor], list[Any]]:
        """Pixels of what is `unlike`, grids and times of all, by the model's names; and what was unlike, of pictures and of clips."""
        given, orders = {}, []
        for clip, (pixels, grid) in KEYS.items():
            if some := [number for number in numbers if self._shown[number].clip == clip]:
                firsts, _ = order = unlike(some)
                shown = [self._shown[number] for number in some]
                given |= {pixels: torch.cat([shown[first].pixels for first in firsts]), grid: torch.stack([one.grid for one in shown])}
                times = [one.seconds for one in shown if one.seconds is not None]
                given |= {"second_per_grid_ts": torch.stack(times)} if times else {}
                orders.append(order)
        return given, orders

    @contextmanager
    def at_the_door(self, model: Any, tower: Any) -> Iterator[None]:
        """While this lasts, `model` takes TRL's numbers and gets pixels, and its tower reads what several rows show once.

        Raises DataError if the placeholders of a batch are not those of its pictures and clips: the policy would learn blind.
        """
        orders: deque[Any] = deque()

        def enter(_: Any, given: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            numbers, ids = named.get("pixel_values"), named["input_ids"]
            if numbers is not None and numbers.is_floating_point():
                return given, named
            if self._shown and self._shown[0].pixels.device != ids.device:
                self._shown = [replace(one, pixels=one.pixels.to(ids.device)) for one in self._shown]
            items: list[int] = []
            if numbers is not None:
                patches = named["image_grid_thw"].prod(1)
                items = numbers[patches.cumsum(0) - patches].tolist()
            self._check(ids, items)
            parted, order = self._parted(items, differing)
            orders.extend(order)
            others = {key: value for key, value in named.items() if key not in KEYS[False]}
            return given, others | {key: value.to(ids.device) for key, value in parted.items()}

        handle = model.register_forward_pre_hook(enter, with_kwargs=True)
        try:
            with seen_once(tower, orders):
                yield
        finally:
            handle.remove()

    def _check(self, ids: torch.Tensor, items: Sequence[int]) -> None:
        tokens = dict.fromkeys(KEYS, 0)
        for item in items:
            tokens[self._shown[item].clip] += int(self._shown[item].grid.prod()) // self.published.image_processor.merge_size**2
        places = torch.stack([(ids == token).sum() for token in processors.vision_token_ids(self.published)]).tolist()
        if places != list(tokens.values()):
            raise DataError(
                f"a batch has places for {places[0]} tokens of pictures and {places[1]} of clips, and its pictures and clips give "
                f"{tokens[False]} and {tokens[True]}: the policy would learn blind, so no step was taken"
            )


def apart(media: Sequence[Any]) -> tuple[list[Any], list[Clip]]:
    """The pictures of a prompt, and its clips."""
    return [item for item in media if not isinstance(item, Clip)], [item for item in media if isinstance(item, Clip)]


def differing(names: Sequence[Any]) -> tuple[list[int], list[int]]:
    """The places of those that no other before them equals, and for each name which of these it is."""
    unlike = {name: place for place, name in reversed(list(enumerate(names)))}
    firsts = sorted(unlike.values())
    return firsts, [firsts.index(unlike[name]) for name in names]


@contextmanager
def seen_once(tower: Any, orders: deque[Any]) -> Iterator[None]:
    """Let a vision tower read what differs alone, and hand out what it saw to each place where it stands.

    `orders` holds `differing` of what the tower is asked for next: pictures, then clips. It is asked for all grids and gets the pixels
    of those that differ; every tensor of its answer is repeated one by one, so the gradient of a tower that learns is the sum.
    """
    published = tower.forward

    def forward(pixels: torch.Tensor, grid_thw: torch.Tensor, **named: Any) -> Any:
        if not orders:  # whole pixels
            return published(pixels, grid_thw=grid_thw, **named)
        firsts, places = orders.popleft()
        grids = grid_thw[firsts]
        seen = published(pixels, grid_thw=grids, **named)
        patches = grids.prod(1)

        def spread(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return [spread(part) for part in value]
            parts = value.split((patches * len(value) // patches.sum()).tolist())
            return torch.cat([parts[place] for place in places])

        for name, value in list(seen.items()):
            seen[name] = spread(value)
        return seen

    tower.forward = forward
    try:
        yield
    finally:
        del tower.forward
