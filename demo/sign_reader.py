"""The judge of the signs: RapidOCR's recogniser reads a picture back, and the words that were asked for must stand on it.

Only the recogniser's ONNX model is used, out of the wheel of rapidocr-onnxruntime. Its code would bring OpenCV, and refuses Python
3.13; what it does before and after the model is these few lines (ch_ppocr_rec/text_recognize.py of 1.4.4).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy
from PIL import Image, ImageOps

from qwen_vl_grpo.errors import JudgeError
from qwen_vl_grpo.interfaces import Judgement, RenderRequest

MODEL = "models/ch_PP-OCRv4_rec_infer.onnx"
HEIGHT, NARROWEST = 48, 320
"""Pixels of the model's input; a narrower picture is filled up on the right."""
MARGIN = 4
"""Pixels left beside the words: the model was trained on text that was cut out, and makes letters of white board."""


class SignReader:
    """Scores 1 if the words read are `RenderRequest.rubric`, in lower case and without spaces at the ends, else 0."""

    identity = "PP-OCRv4 recogniser of rapidocr-onnxruntime 1.4.4, cut to the words, exact match"
    batch_size = 16
    concurrency = 1

    def judge(self, pictures: Sequence[tuple[RenderRequest, Image.Image]]) -> list[Judgement | JudgeError]:
        """Score each picture; one that the model breaks on is a JudgeError in its place. Raises JudgeError if there is no model."""
        _ = self._session
        return [self._scored(request, image) for request, image in pictures]

    def _scored(self, request: RenderRequest, image: Image.Image) -> Judgement | JudgeError:
        try:
            read, confidence = self.read(image)
        except JudgeError as error:
            return error
        except Exception as error:  # onnxruntime has no root class for its errors
            return JudgeError(f"the sign for {request.original!r} could not be read ({type(error).__name__}: {error})")
        return Judgement(float(read == request.rubric), {"confidence": confidence}, f"it says {read!r}")

    def read(self, image: Image.Image) -> tuple[str, float]:
        """The words on a picture and the model's confidence in them, 0 to 1; ("", 0) for an empty one."""
        return self._remembered(image.size, image.convert("L").tobytes())

    @cached_property
    def _remembered(self) -> Any:
        """The same words are on signs that were asked for otherwise, too: each picture is read once."""
        return lru_cache(maxsize=100_000)(lambda size, pixels: self._read(Image.frombytes("L", size, pixels)))

    def _read(self, image: Image.Image) -> tuple[str, float]:
        session = self._session
        (name,) = [entry.name for entry in session.get_inputs()]
        (likely,) = session.run(None, {name: as_input(image)})[0]
        if not numpy.isfinite(likely).all():
            raise JudgeError("the recogniser's answer is not a number")
        best, likelihood = likely.argmax(1), likely.max(1)
        told = (best != 0) & numpy.append(True, best[1:] != best[:-1])
        read = "".join(self._characters[index] for index in best[told]).strip().lower()
        return read, round(float(likelihood[told].mean()), 4) if told.any() else 0.0

    @cached_property
    def _session(self) -> Any:
        found = importlib.util.find_spec("rapidocr_onnxruntime")  # finds it without importing it
        file = Path(found.origin).parent / MODEL if found and found.origin else None
        if file is None or not file.is_file() or not importlib.util.find_spec("onnxruntime"):
            raise JudgeError("rapidocr-onnxruntime and onnxruntime, which read the signs, are not both installed; make demo-sign does that")
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1  # the policy computes with one, too
        return onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])

    @cached_property
    def _characters(self) -> list[str]:
        """What each output of the model stands for: nothing, the characters in its metadata, and the space."""
        return ["", *self._session.get_modelmeta().custom_metadata_map["character"].splitlines(), " "]


@cache
def reader() -> SignReader:
    """One for reward and evaluation, which look at the same signs."""
    return SignReader()


def build(section: Any) -> SignReader:
    """The judge as a run's config names it: a config makes a module of its own of this file, and shares the reader of everyone else."""
    from demo import sign_reader

    return sign_reader.reader()


def as_input(image: Image.Image) -> numpy.ndarray:
    """One picture, cut to what is painted, as the model takes it: (1, 3, 48, 320 or more), white 1, black -1, the filling 0."""
    painted = ImageOps.invert(image).getbbox() or (0, 0, *image.size)
    cut = image.crop((max(0, painted[0] - MARGIN), 0, min(image.width, painted[2] + MARGIN), image.height))
    width = -(-cut.width * HEIGHT // cut.height)
    grey = numpy.asarray(cut.resize((width, HEIGHT), Image.Resampling.BILINEAR), numpy.float32) / 127.5 - 1
    filled = numpy.zeros((HEIGHT, max(NARROWEST, width)), numpy.float32)
    filled[:, :width] = grey
    return numpy.stack([filled] * 3)[None]
