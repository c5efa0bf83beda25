"""What items show, opened and sized by threads before their questions' turn comes.

Enlarging a scan takes longer than writing its prompt does, and Pillow lets other threads work meanwhile: done where the engine is
fed, it kept an engine waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from PIL import Image

from qwen_vl_grpo import dataset, fetching, processors
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.items import Item
from qwen_vl_grpo.loading import RunPolicy

AHEAD = 16
"""Items that are opened while others are answered."""
Sized = list[Image.Image] | DataError
"""The pictures of an item in a run's size, or why the run cannot see them."""


def ahead(
    items: Sequence[Item], group: Sequence[RunPolicy], allow_private: bool
) -> Iterator[tuple[Item, Item | DataError, dict[RunPolicy, Sized]]]:
    """Each item, opened or what is wrong with it, and its pictures as each run sees them; a few are made before they are asked for."""

    def ready(item: Item) -> tuple[Item, Item | DataError, dict[RunPolicy, Sized]]:
        opened = opened_of(item, allow_private)
        return item, opened, {} if isinstance(opened, DataError) else sized_of(opened, group)

    with ThreadPoolExecutor(8) as pool:
        waiting = deque()
        for item in items:
            waiting.append(pool.submit(ready, item))
            if len(waiting) >= AHEAD:
                yield waiting.popleft().result()
        for made in waiting:
            yield made.result()


def opened_of(item: Item, allow_private: bool) -> Item | DataError:
    """An item with its pictures opened and its clips on this disk, or what is wrong with it."""
    try:
        if item.error:
            raise DataError(item.error)
        fetched = {"folder": item.folder, "allow_private": allow_private}
        pictures = item.opened or [fetching.picture(source, **fetched) for source in item.images]
        return replace(item, opened=pictures, clips=item.clips or [fetching.clip(source, **fetched) for source in item.videos])
    except DataError as error:
        return error


def sized_of(item: Item, group: Sequence[RunPolicy]) -> dict[RunPolicy, Sized]:
    """The pictures of an opened item as each run sees them, resized once for all runs that see them in one size."""
    sizes, made = {run: _sizes(run) for run in group}, dict[Any, Sized]()
    for run, size in sizes.items():
        if size not in made:
            made[size] = _sized(run, item)
    return {run: made[size] for run, size in sizes.items()}


def _sizes(run: RunPolicy) -> Any:
    """What decides how a picture is sized, or that it is refused."""
    patch = processors.merged_patch(run.processor) if processors.sees(run.processor) else run.config.model_name
    return patch, run.config.data.min_pixels, run.config.data.max_pixels


def _sized(run: RunPolicy, item: Item) -> Sized:
    try:
        return [dataset.fit(picture.image, run.processor, run.config) for picture in item.opened or ()]
    except DataError as error:
        return error
