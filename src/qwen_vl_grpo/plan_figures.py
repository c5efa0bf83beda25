"""What a plan foretells of a run and the run then measures: one name a figure, for both and for the card."""

from __future__ import annotations

CARD = "card, {}, GiB"
"""In use on the card in a phase of planning.PHASES."""
TORCH, RESERVED = "torch allocated, GiB", "torch reserved, GiB"
HOST, CHECKPOINT = "host memory, GiB", "checkpoint, GiB"
SECONDS = "seconds a step"
