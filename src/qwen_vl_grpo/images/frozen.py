"""What every frozen renderer shares: weights loaded once and never moved, and a batch that halves itself where memory runs out."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

import numpy
import torch
from PIL import Image

from qwen_vl_grpo import placement, weights
from qwen_vl_grpo.errors import RenderError, briefly
from qwen_vl_grpo.interfaces import RenderRequest
from qwen_vl_grpo.rendered_sections import RendererSection

log = logging.getLogger("qwen_vl_grpo")

BLANK = 2 / 255
"""A picture whose values all lie this near to each other shows nothing."""
TOO_LARGE = (
    "one picture alone does not fit into the renderer's memory; lower renderer.width and height, set renderer.offload, or give it a card "
    "of its own with placement.renderer"
)
OUTSIDE = ("device", "batch_size", "offload", "compile")
"""Settings that do not decide what is drawn."""


class FrozenRenderer(ABC):
    """An ImageGenerator around one diffusers pipeline; nothing is loaded before the first picture.

    A renderer says how its pipeline is read (`_read`), which requests can be drawn at once (`_alike`), and what the pipeline is given
    for them (`_given`).
    """

    draws_with: str
    """The class that a folder of its weights names; diffusers would load another's without a word."""

    def __init__(self, section: RendererSection, device: torch.device):
        self.identity = json.dumps(section.model_dump(exclude=set(OUTSIDE)), sort_keys=True)
        self.batch_size = section.batch_size
        self._section = section
        self._device = device
        self._loaded: Any = None

    def check(self) -> None:
        """Raise RenderError if the weights are not there, may not be had, or are another renderer's, before any is read."""
        model, name = self._section.model, self._section.name
        file = weights.check("renderer.model", model, "model_index.json", self._section.revision, RenderError)
        with weights.loading("renderer.model", model, RenderError):
            index = json.loads(file.read_text(encoding="utf-8"))
        named = index.get("_class_name") if isinstance(index, dict) else None
        if named != self.draws_with:
            raise RenderError(
                f"renderer.model {model}: holds the weights of {named}, and renderer.name {name} draws with {self.draws_with}"
            )

    def render(self, requests: Sequence[RenderRequest]) -> list[Image.Image | RenderError]:
        """Draw requests, those that are alike together. A batch that does not fit into memory is halved, and so are those after it.

        Raises RenderError for what makes every picture impossible.
        """
        outcomes: list[Any] = [None] * len(requests)
        groups: dict[Hashable, list[int]] = {}
        for index, request in enumerate(requests):
            try:
                groups.setdefault(self._alike(request), []).append(index)
            except RenderError as error:
                outcomes[index] = error
        for group in groups.values():
            for index, drawn in zip(group, self._drawn([requests[index] for index in group]), strict=True):
                outcomes[index] = drawn
        return outcomes

    def rest(self) -> None:
        """Leave the card to the policy, if the weights are to be asleep between the pictures of two steps."""
        if self._loaded is not None and self._section.offload == "asleep":
            self._loaded.to("cpu")
            placement.release()  # torch would keep the room for itself, and vLLM takes memory past torch

    @property
    def pipeline(self) -> Any:
        """The diffusers pipeline, awake on its device; raises RenderError."""
        if self._loaded is None:
            self._loaded = self._load()
        elif self._section.offload == "asleep":
            self._loaded.to(self._device)
        return self._loaded

    @abstractmethod
    def _read(self, dtype: torch.dtype) -> Any:
        """Read the pipeline, on the host; what the libraries raise becomes a RenderError."""

    def _alike(self, request: RenderRequest) -> Hashable:
        """Requests of one such value are drawn in one batch; raises RenderError for one that cannot be drawn at all."""
        return request.size

    @abstractmethod
    def _given(self, pipeline: Any, requests: Sequence[RenderRequest]) -> dict[str, Any]:
        """What the pipeline is given for requests that are alike, beside noise, steps and the form of its pictures."""

    def _load(self) -> Any:
        from diffusers.utils import logging as diffusers_logging  # seconds, and a replay needs none of it

        section = self._section
        diffusers_logging.set_verbosity_error()  # it warns of every completion that CLIP cuts off, which the judge counts
        diffusers_logging.disable_progress_bar()
        dtype = torch.bfloat16 if self._device.type == "cuda" else torch.float32
        with weights.loading("renderer.model", section.model, RenderError):
            pipeline = self._read(dtype if section.dtype == "auto" else getattr(torch, section.dtype))
        pipeline.set_progress_bar_config(disable=True)
        for part in pipeline.components.values():
            if isinstance(part, torch.nn.Module):
                part.requires_grad_(False).eval()
        if section.compile:
            pipeline.transformer.compile()
        if section.offload == "model":
            pipeline.enable_model_cpu_offload(device=self._device)
        elif section.offload == "sequential":
            pipeline.enable_sequential_cpu_offload(device=self._device)
        else:
            pipeline.to(self._device)
        return pipeline

    def _drawn(self, requests: Sequence[RenderRequest]) -> list[Image.Image | RenderError]:
        done: list[Image.Image | RenderError] = []
        while len(done) < len(requests):
            part = requests[len(done) : len(done) + self.batch_size]
            drawn = self._fitting(part)
            if drawn is not None:
                done += drawn
                continue
            placement.release()
            if len(part) > 1:
                self.batch_size = len(part) // 2
                log.warning("renderer: %d pictures at once do not fit into memory; %d from here on", len(part), self.batch_size)
            else:
                done.append(RenderError(TOO_LARGE))
        return done

    def _fitting(self, requests: Sequence[RenderRequest]) -> list[Image.Image | RenderError] | None:
        """What was drawn, or None where memory ran out; when this returns, what did not fit is let go of."""
        try:
            return self._draw(requests)
        except RuntimeError as error:
            from accelerate.utils.memory import should_reduce_batch_size  # MPS and the CPU have no class for it

            if not isinstance(error, torch.OutOfMemoryError) and not should_reduce_batch_size(error):
                raise
            return None

    def _draw(self, requests: Sequence[RenderRequest]) -> list[Image.Image | RenderError]:
        pipeline = self.pipeline
        given = self._given(pipeline, requests)
        try:
            drawn: Any = pipeline(
                **given,
                num_inference_steps=self._section.steps,
                max_sequence_length=self._section.text_tokens,
                generator=[torch.Generator("cpu").manual_seed(request.seed) for request in requests],  # the same noise on every device
                output_type="np",
            )
        except ValueError as error:
            raise RenderError(f"renderer {self._section.model}: refuses to draw ({briefly(error)})") from None
        return [picture(values) for values in drawn.images]


def picture(values: numpy.ndarray) -> Image.Image | RenderError:
    """Values from 0 to 1, shape (height, width, 3), as a picture; a RenderError if they are no numbers or all the same."""
    if not numpy.isfinite(values).all():
        return RenderError("the picture holds values that are no numbers; take renderer.dtype: bfloat16 or float32")
    if numpy.ptp(values) < BLANK:
        return RenderError("the picture is blank: all of it has one colour")
    return Image.fromarray((values * 255).round().astype(numpy.uint8))
