"""What a renderer of Option C sees: the states that the policy, as it is at each call, makes of completions and of the negative prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from qwen_vl_grpo.interfaces import Conditioning, RenderRequest, Source
from qwen_vl_grpo.rendered_sections import RendererSection

if TYPE_CHECKING:
    from PIL.Image import Image

    from qwen_vl_grpo.images.embeddings import Encoded, Kind

NEGATIVES = 64
"""Encodings of the negative prompt that are kept, one for each picture that is edited."""


class PolicyStates:
    """The encoder of images/embeddings.py, given text and pictures instead of turns.

    `kind` is the pipeline whose template an own renderer's states are made with; the known renderers have theirs. `frozen` says that
    the weights below the adapters never change, so that what they made of the negative prompt is kept.
    """

    def __init__(self, section: RendererSection, kind: Kind, model: Any, processor: Any, frozen: bool):
        from qwen_vl_grpo.images.embeddings import PolicyEncoder  # heavy, and a replay of words needs none of it

        known: Any = kind if ".py:" in section.name else section.name
        self._encoder = PolicyEncoder(known, model, processor)
        self._tokenizer = processor.tokenizer
        ends = self._tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
        self._ends = {self._tokenizer.eos_token_id, self._tokenizer.pad_token_id, *ends}
        self._negative_prompt, self._frozen = section.negative_prompt, frozen
        self._negatives: dict[tuple[Source, ...], Conditioning] = {}

    def encode(
        self,
        prompts: Sequence[str],
        words: Sequence[str],
        sources: Sequence[tuple[Source, ...]],
        completion_ids: Sequence[Sequence[int]] | None = None,
    ) -> Iterator[Encoded]:
        """The states of each completion, made as they are asked for: of the ids that were sampled, or of its words if these are not known.

        Raises DataError for a number of pictures that the renderer does not take.
        """
        from qwen_vl_grpo.images.embeddings import Turn

        ids: Any = completion_ids or self._tokenizer(list(words), add_special_tokens=False)["input_ids"]
        encoded = self._encoder.one_by_one(list(map(Turn, prompts, map(self._cut, ids), sources)))
        if self._encoder.sharded:  # now, while every process is here: what one draws later, and how often, is its own affair
            encoded = iter(list(encoded))
            self._negatives = self._encode_negative(sources)
        return encoded

    def negative(self, requests: Sequence[RenderRequest]) -> list[Conditioning]:
        """The negative prompt beside each request's pictures, as the base model encodes it; a policy that learns whole has no other.

        The requests of a sharded policy are those of the last `encode`, which made them all.
        """
        if self._encoder.sharded:
            return [self._negatives[request.sources] for request in requests]
        found = self._negatives if self._frozen else {}
        found |= self._encode_negative([request.sources for request in requests if request.sources not in found])
        negatives = [found[request.sources] for request in requests]
        while len(found) > NEGATIVES:
            found.pop(next(iter(found)))
        return negatives

    def _encode_negative(self, sources: Sequence[tuple[Source, ...]]) -> dict[tuple[Source, ...], Conditioning]:
        from qwen_vl_grpo.images.embeddings import Turn

        wanted = list(dict.fromkeys(sources))
        turns = [Turn(self._negative_prompt, (), each) for each in wanted]
        return dict(zip(wanted, (one.conditioning for one in self._encoder.encode(turns, adapters=False)), strict=True))

    def _cut(self, ids: Sequence[int]) -> tuple[int, ...]:
        """A completion without the token that ended it, and what follows that."""
        end = next((place for place, token in enumerate(ids) if token in self._ends), len(ids))
        return tuple(ids[:end])


def source(image: Image) -> Source:
    """A picture by the hash of its pixels."""
    return Source(hashlib.sha256(f"{image.mode} {image.size}".encode() + image.tobytes()).hexdigest(), image)
