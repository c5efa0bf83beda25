"""What a policy reads with: a Qwen-VL's processor of text, pictures and clips, or the tokenizer of a text-only Qwen alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from PIL.Image import Image
from transformers.video_utils import VideoMetadata

from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.interfaces import Clip, Message, Sample

AS_THEY_ARE = {"do_sample_frames": False, "do_resize": False, "cap_pixels_per_frame": False, "input_data_format": "channels_last"}
"""How a video processor is to take a clip, whose frames were chosen and sized when its row was prepared."""
SHOWN_AS = {"image": "[picture]", "video": "[clip]"}


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


def placed(prompt: Sequence[Message], images: Sequence[Image], videos: Sequence[Clip] = ()) -> list[Message]:
    """A chat in parts, each picture and clip in its place; in a chat that names no place they stand before the user's first words.

    Raises DataError if the places are not as many as the pictures and clips: the policy would be blind to one, or see another's.
    """
    chat = [message | {"content": _parts(message["content"])} for message in prompt]
    left = {"image": list(images), "video": list(videos)}
    if not any(part["type"] in left for message in chat for part in message["content"]):
        asks = next((message for message in chat if message["role"] == "user"), chat[-1])
        asks["content"] = [{"type": kind} for kind, given in left.items() for _ in given] + asks["content"]
    for kind, given in left.items():
        places = [part for message in chat for part in message["content"] if part["type"] == kind]
        if len(places) != len(given):
            raise DataError(f"a prompt has {len(places)} places of type {kind} and {len(given)} to fill them; make the two agree")
        for part, media in zip(places, given, strict=True):
            part[kind] = media
    return chat


def filled(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose pictures and clips stand in its prompt, and nowhere else: of the two, TRL would look for the pictures alone."""
    images, videos = row.get("images") or [], row.get("videos") or []
    others = {key: value for key, value in row.items() if key not in ("images", "videos")}
    return others | ({"prompt": placed(row["prompt"], images, videos)} if images or videos else {})


def as_text(messages: Any) -> str:
    """A chat as one readable text; a picture is shown as [picture] and a clip as [clip]."""
    if isinstance(messages, str):
        return messages
    lines = []
    for message in messages:
        content = message["content"]
        if not isinstance(content, str):
            content = "".join(SHOWN_AS.get(block["type"]) or block.get("text", "") for block in content)
        lines.append(content if message["role"] == "assistant" else f"{message['role']}: {content}")
    return "\n".join(lines)


def in_order(sample: Sample) -> list[Any]:
    """The pictures and clips of a sample as its chat shows them; raises DataError as `placed` does."""
    return media(placed(sample.prompt, sample.images, sample.videos))


def media(prompt: Sequence[Message]) -> list[Any]:
    """The pictures and clips that `placed` put into a chat, in its order."""
    parts = [part for message in prompt if not isinstance(message["content"], str) for part in message["content"]]
    return [part[part["type"]] for part in parts if part.get(part["type"]) is not None and part["type"] != "text"]


def _parts(content: Any) -> list[dict[str, Any]]:
    """A turn's content as parts of its own; a table fills the fields that a part does not have with None."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [{key: value for key, value in part.items() if value is not None} for part in content]


def prompt_text(processor: Any, prompt: Sequence[Message], images: Sequence[Image], videos: Sequence[Clip] = (), **options: Any) -> str:
    """A chat as the template writes it, up to where the policy begins, with one placeholder a picture and clip.

    Templates of text-only models want plain text where those of Qwen-VL want a list of parts.
    """
    chat = placed(prompt, images, videos) if sees(processor) else list(prompt)
    return processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **options)


def encode(processor: Any, texts: Sequence[str], images: Sequence[Sequence[Image]], videos: Sequence[Sequence[Clip]]) -> Any:
    """Tokenize rendered prompts with their pictures and clips, padded on the left.

    A clip gives `pixel_values_videos`, `video_grid_thw` and, of Qwen2.5-VL, `second_per_grid_ts`; its frames are neither chosen nor
    resized again. Raises DataError if a text's placeholders are not as many as its pictures and clips.
    """
    if not sees(processor):
        return processor(text=list(texts), padding=True, return_tensors="pt")
    for text, *given in zip(texts, images, videos, strict=True):
        for token, media in zip((processor.image_token, processor.video_token), given, strict=True):
            if text.count(token) != len(media):
                raise DataError(
                    f"a prompt has {text.count(token)} times {token} for {len(media)} that the policy is to see; make them agree"
                )
    shown: dict[str, Any] = {"images": [list(row) for row in images]} if any(images) else {}
    if clips := [clip for row in videos for clip in row]:
        shown["videos"] = [clip.frames for clip in clips]
        shown["videos_kwargs"] = AS_THEY_ARE | {"video_metadata": [metadata(clip) for clip in clips]}
    return processor(text=list(texts), padding=True, return_tensors="pt", **shown)


def expanded(processor: Any, text: str, images: Sequence[Image], videos: Sequence[Clip]) -> str:
    """A rendered prompt as `encode` tokenizes it, each placeholder repeated and times written, without computing pixels."""
    patch = processor.image_processor.patch_size
    grids = numpy.array([[1, image.height // patch, image.width // patch] for image in images])
    seen = [processor.replace_image_token({"image_grid_thw": grids}, place) for place in range(len(images))]
    each = processor.video_processor.temporal_patch_size
    grids = numpy.array([[-(-len(clip.frames) // each), *(side // patch for side in clip.frames.shape[1:3])] for clip in videos])
    times = {"video_grid_thw": grids, "video_metadata": [VideoMetadata(**metadata(clip)) for clip in videos]}
    watched = [processor.replace_video_token(times, place) for place in range(len(videos))]
    return processor.get_text_with_replacements([text], seen, watched)[0][0]


def with_pictures(processor: Any, ids: Sequence[int], images: Sequence[Image]) -> list[int]:
    """The ids of a rendered prompt without clips, its pictures expanded: as `expanded` tokenized, and no placeholder is tokenized twice."""
    counts = iter([expanded(processor, processor.image_token, [image], []).count(processor.image_token) for image in images])
    return [token for each in ids for token in ([each] * next(counts) if each == processor.image_token_id else [each])]


def metadata(clip: Clip) -> dict[str, Any]:
    """What transformers and vLLM want to know of a clip, made anew each time: Qwen3-VL's processor adds to the list of frames."""
    return {"total_num_frames": clip.total, "fps": clip.fps, "frames_indices": list(clip.indices)}


def merged_patch(processor: Any) -> int:
    """Pixels a side of the square that becomes one token of a picture."""
    return processor.image_processor.patch_size * processor.image_processor.merge_size
