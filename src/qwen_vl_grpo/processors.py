"""What a policy reads with: a Qwen-VL's processor of text and pictures, or the tokenizer of a text-only Qwen alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL.Image import Image
from trl.data_utils import prepare_multimodal_messages


def sees(processor: Any) -> bool:
    """Whether it takes pictures."""
    return hasattr(processor, "image_processor")


def tokenizer(processor: Any) -> Any:
    """Its tokenizer, which a text-only policy has in place of a processor."""
    return processor.tokenizer if sees(processor) else processor


def vision_token_ids(processor: Any) -> list[int]:
    """Ids of the picture and video placeholders; for a policy that reads text alone they are words like any other."""
    if not sees(processor):
        return []
    return [token for token in (processor.image_token_id, processor.video_token_id) if token is not None]


def prompt_text(processor: Any, prompt: Sequence[dict[str, Any]], images: Sequence[Image]) -> str:
    """A chat as the template writes it, up to where the policy begins, with one placeholder a picture.

    Templates of text-only models want plain text where those of Qwen-VL want a list of parts.
    """
    chat = prepare_multimodal_messages(list(prompt), images=list(images)) if sees(processor) else list(prompt)
    return processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)


def merged_patch(processor: Any) -> int:
    """Pixels a side of the square that becomes one token of a picture."""
    return processor.image_processor.patch_size * processor.image_processor.merge_size
