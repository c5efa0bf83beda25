"""The section of the run config that says which frames of a video the policy sees."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from qwen_vl_grpo.sections import Section


class VideoSection(Section):
    mode: Literal["video", "frames"] = "video"
    """`video` gives clips to the policy's own video path; `frames` gives their frames as pictures with the time written before each,
    for about twice the vision tokens."""
    fps: float = Field(default=2.0, gt=0)
    """Frames to take a second of the clip."""
    frames: int | None = Field(default=None, ge=1)
    """Frames to take of every clip, in place of `fps`."""
    min_frames: int = Field(default=4, ge=1)
    """The fewest frames of a clip; a clip that has fewer gives all it has."""
    max_frames: int = Field(default=8, ge=1)
    """The most frames of a clip."""
    jitter: bool = False
    """Take a random frame of each stretch in place of its middle one, seeded by the run and the row; never in evaluation."""
    max_tokens: int | None = Field(default=None, ge=1)
    """The most vision tokens of a clip; frames are given up first, then pixels."""
    min_pixels: int = Field(default=16 * 28 * 28, ge=1)
    """The fewest pixels of a frame."""
    max_pixels: int = Field(default=576 * 28 * 28, ge=1)
    """The most pixels of a frame."""
    cache_gib: float = Field(default=20.0, ge=0)
    """The most that decoded frames may take on the disk; 0 keeps none."""
    most_unreadable: float = Field(default=0.0, ge=0, lt=1)
    """Share of the rows whose clips may be missing or unreadable and are left out, named; with more the run stops."""

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        for low, high in (("min_frames", "max_frames"), ("min_pixels", "max_pixels")):
            if getattr(self, low) > getattr(self, high):
                raise ValueError(f"{low} {getattr(self, low)} is above {high} {getattr(self, high)}; swap or change them")
        return self
