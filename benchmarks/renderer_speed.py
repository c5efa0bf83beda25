"""What drawing several pictures at once is worth, in seconds and memory, and what a sleeping renderer costs: make bench-renderer

Random weights of the published sizes (a transformer of 20.43 billion, the VAE of 127 million), made on the device in bfloat16: nothing is
downloaded, and what is drawn means nothing. What is found is printed and written to outputs/gpu/renderer/KIND.json with card, versions
and settings. `--tiny` runs the same on a CPU in seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy
import torch
from diffusers.models.autoencoders.autoencoder_kl_qwenimage import AutoencoderKLQwenImage
from diffusers.models.transformers.transformer_qwenimage import QwenImageTransformer2DModel
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from PIL import Image

from benchmarks.random_pictures import made_in_place
from demo import tiny_qwen_image
from qwen_vl_grpo import hardware
from qwen_vl_grpo.errors import RenderError
from qwen_vl_grpo.images.qwen_image import QwenImage
from qwen_vl_grpo.images.qwen_image_edit import QwenImageEdit, QwenImageEditPlus
from qwen_vl_grpo.interfaces import Conditioning, RenderRequest, Source
from qwen_vl_grpo.rendered_sections import RendererSection

FOLDER = Path("outputs/gpu/renderer")
KINDS: dict[tiny_qwen_image.Kind, type[QwenImage]] = {
    "qwen_image": QwenImage,
    "qwen_image_edit": QwenImageEdit,
    "qwen_image_edit_plus": QwenImageEditPlus,
}
WIDTH, TINY_WIDTH = 3584, 128
"""Of the states: Qwen2.5-VL-7B's, and the tiny policy's."""
STEPS = 50
"""Denoising steps of a published picture; fewer are measured, each of which costs the same."""


def random_pipeline(kind: tiny_qwen_image.Kind, device: torch.device, dtype: torch.dtype, tiny: bool) -> Any:
    """A pipeline without an encoder whose weights were never trained; diffusers' defaults are the published sizes."""
    transformer: dict[str, Any] = {"joint_attention_dim": WIDTH}
    vae: dict[str, Any] = {}
    if tiny:
        transformer = {
            "in_channels": 16, "out_channels": 4, "num_layers": 2, "attention_head_dim": 16, "num_attention_heads": 3,
            "joint_attention_dim": TINY_WIDTH, "axes_dims_rope": (8, 4, 4),
        }  # fmt: skip
        four = {"z_dim": 4, "latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}
        vae = {"base_dim": 8, "dim_mult": [1, 2, 2, 2], "num_res_blocks": 1} | four
    with made_in_place(device, dtype):
        parts: dict[str, Any] = {"transformer": QwenImageTransformer2DModel(**transformer), "vae": AutoencoderKLQwenImage(**vae)}
    without = dict.fromkeys(("text_encoder", "tokenizer", *(() if kind == "qwen_image" else ("processor",))))
    made = tiny_qwen_image.PIPELINES[kind](scheduler=FlowMatchEulerDiscreteScheduler(), **parts, **without)
    made.vae.enable_slicing()
    return made


def requests(kind: str, count: int, tokens: int, width: int, side: int) -> list[RenderRequest]:
    """Completions of unequal length, and a picture of noise for each where pictures are edited."""
    noise = numpy.random.default_rng(0)
    made = []
    for number in range(count):
        states = torch.randn(tokens - number % 8, width, generator=torch.Generator().manual_seed(number))
        picture = Image.fromarray((noise.random((side, side, 3)) * 255).astype("uint8"))
        sources = () if kind == "qwen_image" else (Source(str(number), picture),)
        made.append(RenderRequest("", "", number, (side, side), sources, Conditioning(str(number), states)))
    return made


class Clock:
    """Seconds that a device takes, waited for."""

    def __init__(self, device: torch.device):
        self._device = device

    def __call__(self, work: Any) -> tuple[float, Any]:
        self._wait()
        started = time.perf_counter()
        done = work()
        self._wait()
        return time.perf_counter() - started, done

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def peak(device: torch.device) -> float | None:
    """GiB that torch held at most since the last call; None on a CPU."""
    if device.type != "cuda":
        return None
    held = torch.cuda.max_memory_allocated(device) / 2**30
    torch.cuda.reset_peak_memory_stats(device)
    return round(held, 2)


def measure(kind: tiny_qwen_image.Kind, device: torch.device, given: argparse.Namespace) -> dict[str, Any]:
    """The same pictures in batches of each size, in turns, so that what else the machine does falls on all of them."""
    section = RendererSection(name=kind, width=given.side, height=given.side, steps=given.steps, offload="asleep")
    clock, width = Clock(device), TINY_WIDTH if given.tiny else WIDTH

    class Random(KINDS[kind]):  # type: ignore[misc]
        def _read(self, dtype: torch.dtype) -> Any:
            return random_pipeline(kind, device, dtype, given.tiny)

    renderer = Random(section, device)
    nothing = Conditioning("negative", torch.randn(8, width, generator=torch.Generator().manual_seed(1)))
    renderer.negative = lambda asked: [nothing] * len(asked)
    seconds_to_load, pipeline = clock(lambda: renderer.pipeline)
    held = peak(device)
    wanted = requests(kind, given.pictures, given.tokens, width, given.side)
    batches = [size for size in given.batches if size <= given.pictures] if kind != "qwen_image_edit_plus" else [1]
    coding: list[float] = []

    def timed(work: Any) -> Any:
        def clocked(*args: Any, **named: Any) -> Any:
            taken, done = clock(lambda: work(*args, **named))
            coding.append(taken)
            return done

        return clocked

    pipeline.vae.encode, pipeline.vae.decode = timed(pipeline.vae.encode), timed(pipeline.vae.decode)
    renderer.render(wanted[:1])  # kernels are chosen and caches filled
    found: dict[int, dict[str, Any]] = {size: {"seconds": [], "vae": [], "peak": [], "halved to": None} for size in batches}
    alone: Sequence[Any] = ()
    for _ in range(given.rounds):
        for size in batches:
            renderer.batch_size = size
            coding.clear()
            peak(device)
            taken, drawn = clock(lambda: renderer.render(wanted))
            row = found[size]
            row["seconds"].append(taken)
            row["vae"].append(sum(coding))
            row["peak"].append(peak(device))
            row["failed"] = sum(isinstance(picture, RenderError) for picture in drawn)
            row["halved to"] = renderer.batch_size if renderer.batch_size < size else None
            alone = alone or drawn
            row["differs by"] = max(apart(one, other) for one, other in zip(alone, drawn, strict=True))
    asleep, _ = clock(renderer.rest)
    awake, _ = clock(lambda: renderer.pipeline)
    return {
        "weights": {name: sum(weight.numel() for weight in getattr(pipeline, name).parameters()) for name in ("transformer", "vae")},
        "weights, GiB": held, "seconds to make": round(seconds_to_load, 1), "seconds to sleep": round(asleep, 2),
        "seconds to wake": round(awake, 2), "batches": {size: told(row, given) for size, row in found.items()},
    }  # fmt: skip


def told(row: dict[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    """Medians of a picture; the last one is computed, from the others."""
    whole, vae = (statistics.median(row[name]) / given.pictures for name in ("seconds", "vae"))
    peaks = [held for held in row["peak"] if held is not None]
    return {
        "seconds a picture": round(whole, 3), "of which the VAE": round(vae, 3),
        f"seconds a picture of {STEPS} steps, computed": round(vae + (whole - vae) / given.steps * STEPS, 2),
        "peak, GiB": max(peaks, default=None), "halved to": row["halved to"], "failed": row["failed"], "differs by": row["differs by"],
        "rounds": [round(taken, 3) for taken in row["seconds"]],
    }  # fmt: skip


def apart(one: Any, other: Any) -> int:
    """The largest difference of two pictures, of 255; 256 where one of them is none."""
    if isinstance(one, RenderError) or isinstance(other, RenderError):
        return 256
    return int(numpy.abs(numpy.asarray(one, int) - numpy.asarray(other, int)).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["qwen_image"])
    parser.add_argument("--tiny", action="store_true", help="a rehearsal on a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pictures", type=int, default=8)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=4, help="denoising steps that are measured")
    parser.add_argument("--tokens", type=int, default=300, help="of the longest completion, with its prompt")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    device = torch.device("cpu" if given.tiny else given.device)
    if device.type == "cpu" and not given.tiny:
        parser.error("20 billion weights need a GPU; rehearse with --tiny")
    if given.tiny:
        given.side, given.steps, given.tokens = 32, 2, 30
    for kind in given.kinds:
        with tiny_qwen_image.small_sources() if given.tiny else nullcontext():
            found = measure(kind, device, given)
        settings = {
            "kind": kind,
            "date": time.strftime("%Y-%m-%d"),
            "card": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "versions": hardware.versions(),
            "settings": vars(given) | {"guidance_scale": 4.0},
        }
        FOLDER.mkdir(parents=True, exist_ok=True)
        path = FOLDER / f"{kind}{'-tiny' if given.tiny else ''}.json"
        path.write_text(json.dumps(settings | found, indent=2) + "\n", encoding="utf-8")
        print(json.dumps(settings | found, indent=2))


if __name__ == "__main__":
    main()
