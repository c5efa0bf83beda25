"""Each picture of a prompt is decoded once and preprocessed once, however many completions the prompt gets.

TRL's sampler names a row once a completion and names the whole generation again at every micro-batch, and TRL preprocesses the
pictures of every completion twice. Here the rows of a group share one picture, and the pixel values stay one a picture until
the model reads them: in between, the trainer shuffles and splits row numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import datasets
import torch
from transformers import BatchFeature
from transformers.image_utils import make_flat_list_of_images


class SharedRows(torch.utils.data.Dataset):
    """A data set whose repeated rows are read once for as long as one batch follows another with the same rows."""

    def __init__(self, rows: Any):
        self._rows = rows.with_format("arrow")
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
        return row | {"images": [decode(picture) for picture in row["images"]]}


class OncePreprocessed:
    """A picture processor for one generation: the same picture object is preprocessed once, and comes back by number.

    `pixel_values` are then row numbers, shape (patches,), that `rows` turns into the rows, shape (patches, values of a patch);
    while `whole` is set they are the rows at once. Everything else is the published processor's.
    """

    def __init__(self, published: Any, whole: bool = False):
        self.published = published
        self.whole = whole
        self._pixels: list[torch.Tensor] = []
        self._seen: dict[tuple[int, str], tuple[Any, torch.Tensor, torch.Tensor]] = {}
        """The picture (kept, or its id could become another's), its row numbers and its grid; by id and options."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.published, name)

    def __call__(self, images: Any, **options: Any) -> BatchFeature:
        options["return_tensors"] = "pt"
        asked = repr(sorted(options.items()))
        flat: Any = make_flat_list_of_images(images)
        keyed = [((id(picture), asked), picture) for picture in flat]
        if fresh := {key: picture for key, picture in keyed if key not in self._seen}:
            made = self.published(list(fresh.values()), **options)
            grids, start = made["image_grid_thw"], sum(len(pixels) for pixels in self._pixels)
            numbers = (torch.arange(len(made["pixel_values"])) + start).split(grids.prod(1).tolist())
            self._seen |= dict(zip(fresh, zip(fresh.values(), numbers, grids, strict=True), strict=True))
            self._pixels.append(made["pixel_values"])
        _, numbers, grids = zip(*(self._seen[key] for key, _ in keyed), strict=True)
        chosen = torch.cat(numbers)
        return BatchFeature({"pixel_values": self.rows(chosen) if self.whole else chosen, "image_grid_thw": torch.stack(grids)})

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """The rows of these numbers, on their device; rows that are given come back as they are."""
        if numbers.is_floating_point():
            return numbers
        if len(self._pixels) > 1 or self._pixels[0].device != numbers.device:
            self._pixels = [torch.cat(self._pixels).to(numbers.device)]
        return self._pixels[0][numbers]

    def distinct(self, numbers: torch.Tensor, grids: torch.Tensor) -> tuple[torch.Tensor, list[int], list[int]]:
        """The rows of the pictures that differ, which of `grids` those are, and for each picture which of them it is."""
        pictures = numbers.split(grids.prod(1).tolist())
        names = torch.stack([picture[0] for picture in pictures]).tolist()
        differing = list(dict.fromkeys(names))
        firsts = [names.index(name) for name in differing]
        return self.rows(torch.cat([pictures[first] for first in firsts])), firsts, [differing.index(name) for name in names]


@contextmanager
def seen_once(tower: Any, firsts: list[int], places: list[int]) -> Iterator[None]:
    """Let a vision tower read the pictures that differ alone, and hand out what it saw to each place where one stands.

    `firsts` and `places` are those of OncePreprocessed.distinct. The tower is asked for all grids and gets the pixels of those
    that differ; every tensor of its answer is repeated picture by picture, so the gradient of a tower that learns is the sum.
    """
    published = tower.forward

    def forward(pixels: torch.Tensor, grid_thw: torch.Tensor, **named: Any) -> Any:
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


@contextmanager
def preprocessed_once(processor: Any, whole: bool = False) -> Iterator[OncePreprocessed]:
    """Let a processor preprocess each picture once while this lasts; the rows stay readable after it."""
    published = processor.image_processor
    processor.image_processor = once = OncePreprocessed(published, whole)
    try:
        yield once
    finally:
        processor.image_processor = published
        once._seen.clear()
