"""The renderer of the signs: black words on a white board of 160x32 pixels, the same picture for the same words everywhere.

It stands where a diffusion model stands in a run of full size (interfaces.ImageGenerator); the seed changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import PIL
from PIL import Image, ImageDraw, ImageFont

from qwen_vl_grpo.errors import RenderError
from qwen_vl_grpo.interfaces import RenderRequest

SIZE, MARGIN = (160, 32), 2
LARGEST, SMALLEST = 24, 10
"""Height of the letters in pixels; words too long for the smallest run over the edges."""


def words_of(completion: str) -> str:
    """The words that a completion puts on the sign, on one line; "" if there is nothing that can be painted."""
    words = " ".join(completion.split())
    return words if words.isprintable() else ""


class SignPainter:
    """Paints with the typeface that Pillow brings."""

    identity = f"sign 160x32, Pillow {PIL.__version__}"
    batch_size = 16

    def render(self, requests: Sequence[RenderRequest]) -> list[Image.Image | RenderError]:
        """Paint the words of each request; a request without words is a RenderError in its place."""
        return [paint(words_of(request.completion)) for request in requests]

    def rest(self) -> None:
        pass


def build(section: Any) -> SignPainter:
    """The renderer as a run's config names it."""
    return SignPainter()


def paint(words: str) -> Image.Image | RenderError:
    if not words:
        return RenderError("there are no words to paint")
    board = Image.new("L", SIZE, "white")
    pen = ImageDraw.Draw(board)
    size = next((size for size in range(LARGEST, SMALLEST, -1) if pen.textlength(words, letters(size)) <= SIZE[0] - 2 * MARGIN), SMALLEST)
    pen.text((SIZE[0] / 2, SIZE[1] / 2), words, font=letters(size), fill="black", anchor="mm")
    return board


def letters(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
