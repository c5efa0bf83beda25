"""Qwen-Image-Edit and Edit-Plus as frozen renderers: they see the policy's states of a completion, and the pictures that are edited.

Whatever the picture's own size, the pipelines scale a source to about 1024x1024 pixels before the VAE, so that a row costs the same with a
small one (diffusers 0.42, pipelines/qwenimage/pipeline_qwenimage_edit.py and …_edit_plus.py).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from PIL import Image

from qwen_vl_grpo.errors import RenderError, briefly
from qwen_vl_grpo.images.qwen_image import QwenImage, conditioned
from qwen_vl_grpo.interfaces import RenderRequest
from qwen_vl_grpo.rendered_sections import TOKEN_SIDE, RendererSection

SEEN = 1024 * 1024
"""Pixels of a source as the VAE sees it, in both pipelines."""
POSITIONS = 4096
"""Rows of the transformer's table of positions; text begins behind the pictures, at half of their longest side in tokens."""


class QwenImageEdit(QwenImage):
    """An ImageGenerator that edits one picture a request."""

    draws_with = "QwenImageEditPipeline"
    several = False
    """Whether a request may have more than one source."""

    def _read(self, dtype: torch.dtype) -> Any:
        from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit import QwenImageEditPipeline  # seconds, and a replay needs none of it

        return self._without_encoder(QwenImageEditPipeline, dtype, "text_encoder", "tokenizer", "processor")

    def _alike(self, request: RenderRequest) -> Hashable:
        """By the sides of the picture and of its sources: the pipeline squeezes a batch to the shape of its first source."""
        tokens = len(conditioned(request).states)
        count = len(request.sources)
        if not count or (count > 1 and not self.several):
            many = "at least one picture" if self.several else "one picture"
            raise RenderError(f"renderer.name {self._section.name} edits {many}, and this row has {count}")
        sides = [self._sides(request), *(shaped(SEEN, source.image) for source in request.sources)]
        begins = max(max(pair) for pair in sides) // TOKEN_SIDE // 2
        if begins + tokens > POSITIONS:
            raise RenderError(
                f"{tokens} tokens of text and pictures are more than the transformer has positions for ({POSITIONS - begins})"
            )
        return tuple(sides)

    def _sides(self, request: RenderRequest) -> tuple[int, int]:
        """The row's size, or as many pixels as the config says in the shape of the last source."""
        if request.size:
            return super()._sides(request)
        return shaped(self._section.width * self._section.height, request.sources[-1].image)

    def _states(self, request: RenderRequest) -> torch.Tensor:
        """All of them: the pictures' own stand among them, and the pipelines cut nothing."""
        return conditioned(request).states

    def _given(self, pipeline: Any, requests: Sequence[RenderRequest]) -> dict[str, Any]:
        return super()._given(pipeline, requests) | {
            "image": [source.image.convert("RGB") for request in requests for source in request.sources]
        }


class QwenImageEditPlus(QwenImageEdit):
    """An ImageGenerator that edits one or more pictures a request, one request at a time: its pipeline takes no more."""

    draws_with = "QwenImageEditPlusPipeline"
    several = True

    def __init__(self, section: RendererSection, device: torch.device):
        super().__init__(section, device)
        self.batch_size = 1

    def _read(self, dtype: torch.dtype) -> Any:
        from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus import QwenImageEditPlusPipeline  # likewise

        return self._without_encoder(QwenImageEditPlusPipeline, dtype, "text_encoder", "tokenizer", "processor")


def shaped(area: int, image: Image.Image) -> tuple[int, int]:
    """Width and height of about `area` pixels in the shape of a picture, in multiples of 32 as the pipelines round them.

    Raises RenderError for a picture that cannot be read, and for one so narrow that nothing would be left of a side.
    """
    try:
        image.load()
    except OSError as error:
        raise RenderError(f"a picture that is to be edited cannot be read ({briefly(error)})") from None
    ratio = image.width / image.height
    width = math.sqrt(area * ratio)
    sides = round(width / 32) * 32, round(width / ratio / 32) * 32
    if not all(sides):
        raise RenderError(f"a picture of {image.width}x{image.height} is too narrow: {area} pixels in its shape are {sides[0]}x{sides[1]}")
    return sides
