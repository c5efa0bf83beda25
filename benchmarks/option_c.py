"""How near the policy's states are to what each Qwen-Image pipeline's own encoder makes, on tiny pipelines with the real classes.

PYTHONPATH=src:. python -m benchmarks.option_c     # the table of docs/option_c.md; half a minute on a CPU
"""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import diffusers
import numpy
import torch
import transformers
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus
from PIL import Image

from demo import tiny_qwen, tiny_qwen_image
from qwen_vl_grpo.images.embeddings import Kind, PolicyEncoder, Turn
from qwen_vl_grpo.interfaces import Source

INSTRUCTIONS = ["a red cat", "a very long green dog with a hat and shoes, seen from below", "\n\nrain {} on a window"]
COMPLETION = tuple(range(60, 90))


def main() -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers.utils.logging.disable_progress_bar()
    diffusers.utils.logging.disable_progress_bar()
    print(
        f"torch {torch.__version__}, diffusers {diffusers.__version__}, transformers {transformers.__version__}, float32, "
        f"{platform.machine()} CPU; {len(INSTRUCTIONS)} instructions, the largest difference of each\n"
    )
    rows: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as place, tiny_qwen_image.small_sources():
        tiny_qwen.build(f"{place}/policy")
        for kind in tiny_qwen_image.PIPELINES:
            tiny_qwen_image.build(f"{place}/{kind}", kind, f"{place}/policy")
            for name, value in measured(Path(place), kind).items():
                rows.setdefault(name, []).append("" if value is None else f"{value:.1e}" if value else "0")
    print("| largest difference | " + " | ".join(tiny_qwen_image.PIPELINES) + " |\n|---|" + "---:|" * len(tiny_qwen_image.PIPELINES))
    for name, values in rows.items():
        print(f"| {name} | {' | '.join(values)} |")


def measured(place: Path, kind: Kind) -> dict[str, float | None]:
    """What is compared -> the largest difference; None where there is nothing to compare."""
    pipeline = tiny_qwen_image.load(place / kind, kind)
    processor = transformers.AutoProcessor.from_pretrained(place / "policy")
    picture = Image.fromarray((numpy.random.default_rng(0).random((96, 128, 3)) * 255).astype("uint8"))
    edits = kind != "qwen_image"
    sources = (Source("noise", picture),) if edits else ()
    encoder = PolicyEncoder(kind, pipeline.text_encoder, processor)
    # Edit-Plus takes one prompt at a time
    batches = [INSTRUCTIONS] if kind != "qwen_image_edit_plus" else [[instruction] for instruction in INSTRUCTIONS]

    def against_its_own(side: str, mended: bool) -> float:
        differences = []
        for batch in batches:
            ours = encoder.encode([Turn(instruction, (), sources) for instruction in batch])
            with tiny_qwen_image.picture_types(pipeline) if mended else nullcontext():
                theirs = own_states(pipeline, kind, batch, [picture], side)
            differences += [apart(one.conditioning.states, other) for one, other in zip(ours, theirs, strict=True)]
        return max(differences)

    turns = [Turn(instruction, COMPLETION[:count], sources) for instruction in INSTRUCTIONS for count in (0, 7, 30)]
    together, alone = encoder.encode(turns), [encoder.encode([turn])[0] for turn in turns]
    empty, written = (encoder.encode([Turn(INSTRUCTIONS[0], ids, sources)])[0].conditioning.states for ids in ((), COMPLETION))
    with tiny_qwen_image.picture_types(pipeline) if edits else nullcontext():
        theirs = drawn(pipeline, kind, picture, prompt=INSTRUCTIONS[0])
    ours, other = (drawn(pipeline, kind, picture, **as_prompt(states)) for states in (empty, written))
    return {
        "states, empty completion, the pipeline pads on the right": against_its_own("right", mended=edits),
        "states, empty completion, the pipeline pads on the left": against_its_own("left", mended=edits),
        "states, empty completion, the pipeline's encoder as diffusers has it": against_its_own("right", mended=False),
        "states, in a batch and alone": max(
            apart(one.conditioning.states, other.conditioning.states) for one, other in zip(together, alone, strict=True)
        ),
        "states: the largest value": float(empty.abs().max()),
        "picture of 0 to 1, empty completion, from our states and from the prompt": float(numpy.abs(ours - theirs).max()),
        "picture of 0 to 1, with a completion of 30 tokens and without": float(numpy.abs(other - ours).max()),
    }


def own_states(pipeline: Any, kind: Kind, instructions: Sequence[str], pictures: Sequence[Image.Image], side: str) -> list[torch.Tensor]:
    """The states of each instruction as the pipeline's own encoder makes them in one batch, with padding on that side."""
    pipeline.tokenizer.padding_side = side
    given: dict[str, Any] = {}
    if kind != "qwen_image":
        pipeline.processor.tokenizer.padding_side = side
        images = [pipeline.image_processor.resize(picture, *_size_seen(kind, picture)) for picture in pictures]
        given = {"image": images * len(instructions) if kind == "qwen_image_edit" else images}
    with torch.no_grad():
        made, mask = pipeline._get_qwen_prompt_embeds(list(instructions), **given)
    return [rows[kept.bool()] for rows, kept in zip(made, mask, strict=True)]


def _size_seen(kind: Kind, picture: Image.Image) -> tuple[int, int]:
    """Height and width that an editing pipeline scales a picture to before its encoder sees it."""
    edit, plus, ratio = pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus, picture.width / picture.height
    if kind == "qwen_image_edit":
        width, height, _ = edit.calculate_dimensions(1024 * 1024, ratio)
    else:
        width, height = plus.calculate_dimensions(plus.CONDITION_IMAGE_SIZE, ratio)
    return height, width


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference between two tensors; raises ValueError if their shapes differ."""
    if one.shape != other.shape:
        raise ValueError(f"the shapes {tuple(one.shape)} and {tuple(other.shape)} differ")
    return float((one - other).abs().max())


def as_prompt(states: torch.Tensor) -> dict[str, torch.Tensor]:
    """States of shape (tokens, width) as a pipeline takes them."""
    return {"prompt_embeds": states[None], "prompt_embeds_mask": torch.ones(1, len(states), dtype=torch.long)}


def drawn(pipeline: Any, kind: Kind, picture: Image.Image, **prompt: Any) -> numpy.ndarray:
    """Values from 0 to 1 of one small picture, always from the same noise."""
    source = {"qwen_image": {}, "qwen_image_edit": {"image": picture}, "qwen_image_edit_plus": {"image": [picture]}}[kind]
    return pipeline(
        **prompt, **source, width=32, height=32, num_inference_steps=2, true_cfg_scale=1.0, output_type="np",
        generator=torch.Generator().manual_seed(0),
    ).images[0]  # fmt: skip


if __name__ == "__main__":
    main()
