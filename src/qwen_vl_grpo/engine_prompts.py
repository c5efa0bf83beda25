"""A prompt as vLLM is given it: one token a picture or clip, which it expands by itself, where the trainer has them expanded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from qwen_vl_grpo import processors
from qwen_vl_grpo.errors import RolloutError
from qwen_vl_grpo.interfaces import Clip
from qwen_vl_grpo.processors import vision_token_ids


def collapse(ids: Sequence[int], vision_tokens: Sequence[int], clips: Sequence[tuple[int, Sequence[int]]] = ()) -> list[int]:
    """Keep one token of each run of equal vision tokens: the form that vLLM expands by itself.

    `clips` are placeholder and tokens of each clip (`clips_written`): those of Qwen3-VL have times in between. Raises RolloutError
    for a prompt that does not show one.
    """
    left, short = list(ids), []
    for token, written in clips:
        size = len(written)
        start = next((place for place in range(len(left) - size + 1) if left[place : place + size] == list(written)), None)
        if start is None:
            raise RolloutError("rollouts: a clip is not in the prompt that the trainer scores; its frames reach the two in different sizes")
        short += [*collapse(left[:start], vision_tokens), token]
        left = left[start + size :]
    return short + [token for i, token in enumerate(left) if not (token in vision_tokens and i and left[i - 1] == token)]


def clips_written(processor: Any, rows: Sequence[Any]) -> list[list[tuple[int, list[int]]]]:
    """For each row the placeholder and the tokens of each of its clips, as the processor writes them."""
    known: dict[int, tuple[int, list[int]]] = {}
    for clip in (each for row in rows for each in row or [] if isinstance(each, Clip)):
        if id(clip) not in known:
            text = processors.expanded(processor, processor.video_token, [], [clip])
            known[id(clip)] = processor.video_token_id, processor.tokenizer(text, add_special_tokens=False)["input_ids"]
    return [[known[id(each)] for each in row or [] if isinstance(each, Clip)] for row in rows]


def shown(row: Sequence[Any]) -> dict[str, Any]:
    """What vLLM is given of the pictures and clips of a prompt. A clip's frames are not to be chosen or resized again."""
    data: dict[str, list[Any]] = defaultdict(list)
    for each in row:
        if isinstance(each, Clip):
            data["video"].append((each.frames, processors.metadata(each) | {"do_sample_frames": False}))
        else:
            data["image"].append(each)
    options = {"mm_processor_kwargs": {"do_sample_frames": False, "do_resize": False}} if "video" in data else {}
    return {"multi_modal_data": dict(data)} | options


def group_size(prompts: Sequence[Sequence[int]], num_generations: int) -> int:
    """`num_generations` if the prompts stand in whole groups of equals, else 1 (groups that ranks share)."""
    if len(prompts) % num_generations:
        return 1
    groups = (prompts[i : i + num_generations] for i in range(0, len(prompts), num_generations))
    return num_generations if all(prompt == group[0] for group in groups for prompt in group) else 1


def check_prompts(seen: Sequence[Sequence[int]], scored: Sequence[Sequence[int]]) -> None:
    """Raise RolloutError if the prompts that the engine read are not those that the trainer scores."""
    for row, (read, own) in enumerate(zip(seen, scored, strict=True)):
        if list(read) != list(own):
            raise RolloutError(
                f"rollouts: in row {row} vLLM read a prompt of {len(read)} tokens and the trainer scores one of {len(own)}; the pictures "
                "reach the two in different sizes, so check data.min_pixels and data.max_pixels against the model"
            )


def forbid_vision_tokens(processor: Any, use_vllm: bool) -> dict[str, Any]:
    """Sampling arguments under which no placeholder is sampled: one in a completion would ask for a picture that is not there.

    transformers suppresses the picture's token alone and vLLM none (trl#3847). vLLM wants integer keys. The trainer's own
    head gets the same bias (`policy.forbid`), so that both sides score the same distribution.
    """
    tokens = vision_token_ids(processor)
    if not tokens:
        return {}
    return {"logit_bias": dict.fromkeys(tokens, -100.0)} if use_vllm else {"suppress_tokens": tokens}
