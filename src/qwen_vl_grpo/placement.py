"""Where policy, renderer and judge live: devices that are there, a cap on each card, and memory given back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from qwen_vl_grpo.errors import ConfigError, HardwareError
from qwen_vl_grpo.rendered_sections import PlacementSection

if TYPE_CHECKING:
    import torch


def device(part: str, asked: str) -> torch.device:
    """The device that a part of the run was given; raises HardwareError if this machine does not have it.

    torch calls AMD's cards cuda, too.
    """
    import torch

    if asked == "auto":
        if torch.cuda.is_available():
            rank = int(os.environ.get("LOCAL_RANK", "0"))  # a launcher's process has not chosen its card yet
            return torch.device("cuda", rank if rank < torch.cuda.device_count() else torch.cuda.current_device())
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    there = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available()), "cpu": 1}
    try:
        chosen = torch.device(asked)
    except RuntimeError:
        raise HardwareError(f"placement.{part}: {asked!r} is no device; write auto, cuda:1, mps or cpu") from None
    if chosen.type == "cuda" and chosen.index is None:
        chosen = torch.device("cuda", 0)
    if (chosen.index or 0) >= there.get(chosen.type, 0):
        names = [f"cuda:{number}" for number in range(there["cuda"])] + ["mps"] * there["mps"] + ["cpu"]
        raise HardwareError(f"placement.{part}: there is no {asked} here; this machine has {', '.join(names)}")
    return chosen


def devices(section: PlacementSection) -> dict[str, torch.device]:
    """Part -> device; raises HardwareError."""
    asked = {"policy": "auto", "renderer": section.renderer, "judge": section.judge}
    return {part: device(part, where) for part, where in asked.items()}


def caps(section: PlacementSection, places: Mapping[str, torch.device]) -> dict[torch.device, float]:
    """Card -> the share of it that its parts may take together.

    One process has one allocator a card, so parts that share a card are capped by their sum, and each of them needs a share. Raises
    ConfigError if one has none, or if together they ask for more than there is.
    """
    capped: dict[torch.device, float] = {}
    for place in {place for place in places.values() if place.type == "cuda"}:
        shares = {part: section.memory_shares.get(part) for part, where in places.items() if where == place}  # type: ignore[call-overload]
        given = [share for share in shares.values() if share is not None]
        if given and len(given) < len(shares):
            without = ", ".join(part for part, share in shares.items() if share is None)
            raise ConfigError(f"placement.memory_shares: {without} lives on {place}, too; give each part on a card a share, or none")
        if sum(given) > 1:
            raise ConfigError(f"placement.memory_shares: the parts on {place} take {sum(given):g} of it together; lower them to 1")
        if given:
            capped[place] = sum(given)
    return capped


def apply(section: PlacementSection) -> dict[str, torch.device]:
    """Find every part's device and cap the cards; raises HardwareError and ConfigError."""
    import torch

    places = devices(section)
    for place, share in caps(section, places).items():
        torch.cuda.set_per_process_memory_fraction(share, place)
    return places


def release() -> None:
    """Give back the memory of every card that torch holds and nobody uses."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()
