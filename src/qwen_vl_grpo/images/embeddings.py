"""The policy as the text encoder of Qwen-Image: the hidden states of its own completion are what the frozen DiT sees ("Option C").

A pipeline's own encoder reads its template around the prompt and hands the last hidden states on, without the system turn. Here the
completion's tokens follow that template as they were sampled, and the policy as it is trained now reads it all; with an empty
completion the states are the pipeline's own (diffusers 0.42, pipelines/qwenimage/).
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, get_args

import torch
from peft import PeftModel
from PIL import Image

from qwen_vl_grpo import sharding
from qwen_vl_grpo.errors import DataError, RenderError
from qwen_vl_grpo.interfaces import Conditioning, Source

Kind = Literal["qwen_image", "qwen_image_edit", "qwen_image_edit_plus"]

PICTURES = {"qwen_image": "no picture", "qwen_image_edit": "one picture", "qwen_image_edit_plus": "pictures"}
READ, LONGEST = 512, 1024
"""Text tokens that Qwen-Image's pipeline reads unless it is asked for more, and the most that it can be asked for."""
AS_PUBLISHED = {"shortest_edge": 56 * 56, "longest_edge": 3584 * 3584}
"""Pixels of a picture in the published preprocessor_config.json; the policy's own processor is held to data.max_pixels."""
MARKS = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
"""Tokens that begin or end a turn or a picture; in a completion they would be read as one that is not there."""
HEADER = "<|im_start|>user\n"
REAL_IMAGE_PAD = 151655
"""The id by which Qwen's published vocabulary is known."""


@dataclass(frozen=True)
class Turn:
    """What is encoded: an instruction with its pictures, and the completion's sampled ids without the token that ended it."""

    instruction: str
    completion_ids: tuple[int, ...] = ()
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True)
class Encoded:
    """The states of one turn, and how much of its text the DiT does not see. A picture's tokens are in no count."""

    conditioning: Conditioning
    """States of shape (tokens, width of the policy), on the host and without padding; at most LONGEST of them are text."""
    tokens: int
    """Of the text after the system turn, before it was cut."""
    beyond_512: int
    """Tokens that Qwen-Image would cut off unless asked for more; the editing pipelines cut nothing."""
    beyond_1024: int
    """Tokens that were cut off here: Qwen-Image can be asked for no more, and the DiT has no positions for thousands."""
    dropped: int
    """Tokens left out because they stand for a turn or a picture."""


@dataclass(frozen=True)
class _Row:
    """One turn as tokens; `start` is where its user turn's text begins."""

    ids: list[int]
    start: int
    prefix: Any
    """What the processor made of everything before the completion; its pictures are taken from here."""
    tokens: int
    dropped: int


NOTHING = _Row([0], 0, {}, 0, 0)


class PolicyEncoder:
    """Encodes turns with the policy; `model` is the policy as the trainer holds it, with adapters or without."""

    def __init__(self, kind: Kind, model: Any, processor: Any, batch_size: int = 8):
        """Raises RenderError if the pipeline of this diffusers would drop another system turn than the one that is found here."""
        if kind not in get_args(Kind):
            raise RenderError(f"no pipeline {kind!r} takes a policy's states; take one of {', '.join(get_args(Kind))}")
        self._kind = kind
        self._model = model
        self._batch_size = batch_size
        self._processor = copy.copy(processor)  # the trainer puts another picture processor into its own while a step lasts
        self._processor.image_processor = copy.deepcopy(processor.image_processor)
        self._processor.image_processor.size = AS_PUBLISHED
        self._tokens = processor.tokenizer
        named = {mark: self._tokens.convert_tokens_to_ids(mark) for mark in MARKS}
        self._marks = {mark: index for mark, index in named.items() if index not in (None, self._tokens.unk_token_id)}
        self._pipeline, self._scaled = _published(kind)
        self._header = len(self._tokens(HEADER)["input_ids"])
        template: str = self._pipeline.prompt_template_encode
        declared = self._pipeline.prompt_template_encode_start_idx
        found = len(self._tokens(template[: template.index(HEADER) + len(HEADER)])["input_ids"])
        if self._marks["<|image_pad|>"] == REAL_IMAGE_PAD and found != declared:
            raise RenderError(f"{kind}: its pipeline drops {declared} tokens, and its system turn has {found}; this diffusers is not known")

    @property
    def sharded(self) -> bool:
        """Whether each forward pass takes every process of the run."""
        return sharding.sharded(self._model)

    def encode(self, turns: Sequence[Turn], adapters: bool = True) -> list[Encoded]:
        """The states of each turn, in order; equal turns are read once.

        With `adapters=False` they are the base model's; a policy that is trained whole has no other weights than its own. Nothing of
        the model changes: not what learns, not its training mode, not the positions that it remembers. Raises DataError for a number
        of pictures that the pipeline does not take.
        """
        return list(self.one_by_one(turns, adapters))

    def one_by_one(self, turns: Sequence[Turn], adapters: bool = True) -> Iterator[Encoded]:
        """The same, with a batch read when its first turn is asked for; those of a sharded policy are read by all processes at once."""
        prefixes: dict[tuple[str, tuple[Source, ...]], tuple[Any, int]] = {}
        distinct = list(dict.fromkeys(turns))
        rows = [self._row(turn, prefixes) for turn in distinct]
        passes = sharding.passes(self._model, -(-len(rows) // self._batch_size))
        starts = range(0, passes * self._batch_size, self._batch_size)
        read = chain.from_iterable(self._read(rows[start:][: self._batch_size], adapters) for start in starts)
        read = iter(list(read)) if self.sharded else read
        encoded: dict[Turn, Encoded] = {}
        for turn in turns:
            if turn not in encoded:
                encoded[turn] = next(read)
            yield encoded[turn]

    def _read(self, batch: Sequence[_Row], adapters: bool) -> list[Encoded]:
        """Rows in one forward pass; without any it is made all the same, for another process has more and needs this one's weights."""
        without = self._model.disable_adapter() if isinstance(self._model, PeftModel) and not adapters else nullcontext()
        with torch.no_grad(), _undisturbed(self._model), without:
            read = list(self._forward(batch or [NOTHING]))
            return [_encoded(row, states) for row, states in zip(batch, read, strict=False)]

    def _row(self, turn: Turn, prefixes: dict[tuple[str, tuple[Source, ...]], tuple[Any, int]]) -> _Row:
        """Put the pipeline's template and the sampled ids together; the completions of a prompt share its `prefixes`."""
        key = (turn.instruction, turn.sources)
        if key not in prefixes:
            prefixes[key] = self._prefix(turn)
        prefix, dropped = prefixes[key]
        marks = self._marks.values()
        kept = [index for index in turn.completion_ids if index not in marks]
        ids = [*prefix["input_ids"][0], *kept]
        start = _second(ids, self._marks["<|im_start|>"]) + self._header
        shown = ids.count(self._marks["<|image_pad|>"])
        tokens = len(ids) - start - shown
        # a state depends on nothing that follows it, so what is cut off need not be read
        return _Row(ids[: start + shown + LONGEST], start, prefix, tokens, dropped + len(turn.completion_ids) - len(kept))

    def _prefix(self, turn: Turn) -> tuple[Any, int]:
        """The template filled in and tokenized as the pipeline does it, and how many marks the instruction lost."""
        count = len(turn.sources)
        if (count > 0) != (self._kind != "qwen_image") or (count > 1 and self._kind == "qwen_image_edit"):
            raise DataError(f"{self._kind} takes {PICTURES[self._kind]}, and {turn.instruction!r} has {count}")
        instruction, dropped, found = turn.instruction, 0, 1
        while found:  # what is left when one is taken out may be another
            instruction, found = re.subn("|".join(map(re.escape, MARKS)), "", instruction)
            dropped += found
        if self._kind == "qwen_image_edit_plus":
            numbered = (f"Picture {number}: <|vision_start|><|image_pad|><|vision_end|>" for number in range(1, count + 1))
            instruction = "".join(numbered) + instruction
        text = self._pipeline.prompt_template_encode.format(instruction)
        images = [self._resized(source.image) for source in turn.sources] or None
        return self._processor(text=[text], images=images), dropped

    def _resized(self, image: Image.Image) -> Image.Image:
        """As the pipeline hands it to its encoder: another area for each kind, sides in multiples of 32."""
        width, height = self._scaled(image.width / image.height)
        return self._pipeline.image_processor.resize(image.convert("RGB"), height, width)

    def _forward(self, rows: Sequence[_Row]) -> Iterator[torch.Tensor]:
        """The last hidden states of each row from `start` on, in one forward pass, padded on the right."""
        causal: Any = self._model.get_base_model() if isinstance(self._model, PeftModel) else self._model
        longest = max(len(row.ids) for row in rows)
        padded = [row.ids + [self._tokens.pad_token_id] * (longest - len(row.ids)) for row in rows]
        ids = torch.tensor(padded)
        mask = torch.tensor([[1] * len(row.ids) + [0] * (longest - len(row.ids)) for row in rows])
        given = {"input_ids": ids, "attention_mask": mask, "mm_token_type_ids": (ids == self._marks["<|image_pad|>"]).int()}
        for name in ("pixel_values", "image_grid_thw"):
            if seen := [torch.as_tensor(row.prefix[name]) for row in rows if name in row.prefix]:
                given[name] = torch.cat(seen)
        device = causal.get_input_embeddings().weight.device
        given = {name: value.to(device) for name, value in given.items()}
        seen: list[torch.Tensor] = []  # after the final norm, which is what the pipelines take
        handle = causal.model.register_forward_hook(lambda _, __, output: seen.append(output.last_hidden_state))
        try:
            causal(**given, use_cache=False, logits_to_keep=1)  # from its door on: a sharded model gathers its weights there
        finally:
            handle.remove()
        (states,) = seen
        for row, of_row, kept in zip(rows, states, given["attention_mask"].bool(), strict=True):
            yield of_row[kept][row.start :]


def _encoded(row: _Row, states: torch.Tensor) -> Encoded:
    kept = states.to("cpu", copy=True).contiguous()
    digest = hashlib.sha256(f"{tuple(kept.shape)} {kept.dtype}".encode())
    digest.update(kept.view(torch.uint8).numpy().tobytes())
    conditioning = Conditioning(digest.hexdigest(), kept)
    return Encoded(conditioning, row.tokens, max(0, row.tokens - READ), max(0, row.tokens - LONGEST), row.dropped)


def _published(kind: Kind) -> tuple[Any, Callable[[float], tuple[int, int]]]:
    """The pipeline without its weights, for its template and its way to resize; and a picture's ratio -> its width and height there."""
    # seconds, and nothing but these runs needs it
    from diffusers.pipelines.qwenimage import pipeline_qwenimage, pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus

    text, edit, plus = pipeline_qwenimage, pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus
    pipeline: Any = {
        "qwen_image": text.QwenImagePipeline,
        "qwen_image_edit": edit.QwenImageEditPipeline,
        "qwen_image_edit_plus": plus.QwenImageEditPlusPipeline,
    }[kind]
    parts = inspect.signature(pipeline).parameters

    def scaled(ratio: float) -> tuple[int, int]:
        if kind == "qwen_image_edit":
            return edit.calculate_dimensions(1024 * 1024, ratio)[:2]
        return plus.calculate_dimensions(plus.CONDITION_IMAGE_SIZE, ratio)

    return pipeline(**dict.fromkeys(parts)), scaled


@contextmanager
def _undisturbed(model: Any) -> Iterator[None]:
    """Put a model into evaluation for a while; each part of it goes back to the mode that it was in."""
    modes = [(part, part.training) for part in model.modules()]
    remembering = [(part, part.rope_deltas) for part, _ in modes if hasattr(part, "rope_deltas")]
    model.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
        for part, deltas in remembering:
            part.rope_deltas = deltas


def _second(ids: Sequence[int], wanted: int) -> int:
    """Where the user's turn begins: every turn begins with the same token, and the system's is the first.

    The ids of the whole header would not do: a line break that an instruction begins with makes one token with the header's.
    """
    return ids.index(wanted, ids.index(wanted) + 1)
