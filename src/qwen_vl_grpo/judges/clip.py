"""CLIP as a judge: does the picture show what was asked for?

A picture is scored against the original prompt and never against the completion, or the policy would learn to write what CLIP likes.
The score is the cosine mapped by fixed bounds: GRPO compares within a group by itself, and a scale that moved with the batch could not
be compared between steps.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image

from qwen_vl_grpo import placement, weights
from qwen_vl_grpo.errors import JudgeError
from qwen_vl_grpo.interfaces import Judgement, RenderRequest
from qwen_vl_grpo.rendered_sections import JudgeSection

PROMPT_VERSION = 1
"""Of how a prompt is put to CLIP: as it is. Raise it when that changes, or old judgements would be taken for new ones."""
TOKENS = 77


class ClipJudge:
    """A Judge; nothing is loaded before the first picture."""

    concurrency = 1
    """One model on one device: batches make it fast, threads would not."""

    def __init__(self, section: JudgeSection, device: torch.device, batch_size: int = 64):
        named = section.model_dump(include={"name", "model", "revision", "low", "high"}) | {"prompt_version": PROMPT_VERSION}
        self.identity = json.dumps(named, sort_keys=True)
        self.batch_size = batch_size
        self._section = section
        self._device = device
        self._loaded: Any = None
        self._loading = threading.Lock()

    def check(self) -> None:
        """Raise JudgeError if the weights are not there, or may not be had, before any is read."""
        weights.check("judge.model", self._section.model, "config.json", self._section.revision, JudgeError)

    def judge(self, pictures: Sequence[tuple[RenderRequest, Image.Image]]) -> list[Judgement | JudgeError]:
        """Score pictures: details are the raw `cosine` and whether the prompt was `truncated` at 77 tokens (0 or 1)."""
        cosines, truncated = self.cosines([request.original for request, _ in pictures], [image for _, image in pictures])
        return [
            self._judgement(cosine, cut) if cosine == cosine else JudgeError(f"judge {self._section.model}: its cosine is no number")
            for cosine, cut in zip(cosines, truncated, strict=True)
        ]

    def cosines(self, prompts: Sequence[str], images: Sequence[Image.Image]) -> tuple[list[float], list[bool]]:
        """The cosine of each prompt with its picture, and which prompts were cut off."""
        model, processor = self.model
        tokens = processor.tokenizer(list(prompts), truncation=True, max_length=TOKENS, padding=True, return_tensors="pt")
        whole = processor.tokenizer(list(prompts), truncation=False, verbose=False)["input_ids"]
        pixels = processor.image_processor([image.convert("RGB") for image in images], return_tensors="pt")
        with torch.inference_mode():
            seen = model(**tokens.to(self._device), pixel_values=pixels["pixel_values"].to(self._device, model.dtype))
        cosines = (seen.image_embeds.float() * seen.text_embeds.float()).sum(-1)  # both come normalised
        return cosines.tolist(), [len(ids) > TOKENS for ids in whole]

    @property
    def model(self) -> tuple[Any, Any]:
        """The model on its device and its processor; raises JudgeError."""
        with self._loading:
            if self._loaded is None:
                from transformers import AutoProcessor, CLIPModel  # seconds, and a replay needs none of it

                name, revision = self._section.model, self._section.revision or "main"
                with weights.loading("judge.model", name, JudgeError):
                    model = CLIPModel.from_pretrained(name, revision=revision)
                    processor = AutoProcessor.from_pretrained(name, revision=revision)
                self._loaded = model.to(self._device).requires_grad_(False).eval(), processor  # type: ignore[arg-type]
        return self._loaded

    def _judgement(self, cosine: float, truncated: bool) -> Judgement:
        low, high = self._section.low, self._section.high
        return Judgement(min(1.0, max(0.0, (cosine - low) / (high - low))), {"cosine": cosine, "truncated": float(truncated)})


class CLIPRewardCalculator:
    """How well pictures show their prompts, from 0 to 1, without a run.

    >>> CLIPRewardCalculator().calculate_reward("a cat", image)
    """

    def __init__(self, model_name: str = JudgeSection().model, device: str = "auto", low: float = 0.15, high: float = 0.35):
        section = JudgeSection(model=model_name, low=low, high=high)
        self._judge = ClipJudge(section, placement.device("judge", device))

    def calculate_reward(self, prompt: str, image: Image.Image) -> float:
        """The score of one picture; raises JudgeError if there is none."""
        return self.calculate_rewards_batch([prompt], [image])[0]

    def calculate_rewards_batch(self, prompts: Sequence[str], images: Sequence[Image.Image]) -> list[float]:
        """The score of each picture for its own prompt; raises JudgeError if one has none."""
        if len(prompts) != len(images):
            raise JudgeError(f"{len(prompts)} prompts and {len(images)} pictures; give each picture its prompt")
        scores = []
        for start in range(0, len(prompts), self._judge.batch_size):
            part = zip(prompts[start : start + self._judge.batch_size], images[start:], strict=False)
            for judgement in self._judge.judge([(RenderRequest(prompt, prompt, 0), image) for prompt, image in part]):
                if isinstance(judgement, JudgeError):
                    raise judgement
                scores.append(judgement.score)
        return scores
