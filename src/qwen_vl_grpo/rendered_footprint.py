"""What a run's frozen renderer and judge hold beside its policy, in bytes, on each card and on the host.

Weights are exact: counted in the headers of the safetensors files where these are here, else kept as facts (tests build the real
classes on torch's meta device and compare). What a picture takes while it is drawn is an estimate: the decoder of the VAE at full
size holds more than the transformer does. What several processes share is not seen: each draws and judges on its own card.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path

from qwen_vl_grpo import shapes
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.footprint import GIB
from qwen_vl_grpo.rendered_sections import JudgeSection, PlacementSection, RendererSection

DRAWN = ("prompt_enhancement", "image_edit", "text_to_image")
"""Tasks whose completions are drawn and judged where a config lists no rewards."""
POLICY, HOST = "policy", "host"
"""The policy's card, and the memory of the machine; any other place is a card by its name."""

QWEN_IMAGE = {"transformer": 20_430_401_088, "vae": 126_892_531}
KEPT: dict[str, Mapping[str, int]] = {
    "stabilityai/stable-diffusion-3-medium-diffusers": {
        "transformer": 2_084_951_104, "text_encoder": 123_650_304, "text_encoder_2": 694_659_840, "text_encoder_3": 4_762_310_656,
        "vae": 83_819_683,
    },
    "Qwen/Qwen-Image": QWEN_IMAGE, "Qwen/Qwen-Image-Edit": QWEN_IMAGE, "Qwen/Qwen-Image-Edit-2509": QWEN_IMAGE,
    "openai/clip-vit-base-patch32": {"model": 151_277_313},
    "openai/clip-vit-large-patch14": {"model": 427_616_513},
}  # fmt: skip
"""Published weights -> part -> numbers in it, by the configs of the published checkpoints and diffusers' and transformers' own classes;
those of a transformer hold its table of positions. Qwen-Image's text encoder is the policy, and held once."""
DECODED = {"sd3": 768, "qwen_image": 1731}
"""Kind of renderer -> numbers a pixel that the VAE's decoder holds at its widest (storages of the real classes, counted on meta)."""
LAYER = int(0.3 * GIB)
"""The most that one layer of a renderer takes with `offload: sequential`; T5's table of words is 0.25."""
NAMES = ("model", "diffusion_pytorch_model")


@dataclass(frozen=True)
class Drawing:
    """Bytes of a renderer's parts and of a judge, where they lie, and what a picture takes while it is drawn.

    `pictures` are drawn at once, and `unknown` names what could not be counted. `shares` are those of placement.memory_shares.
    """

    renderer: dict[str, int]
    judge: int
    picture: int
    pictures: int
    offload: str
    places: dict[str, str]
    shares: dict[str, float]
    unknown: tuple[str, ...]

    @property
    def cards(self) -> list[str]:
        """The cards that are not the policy's."""
        return sorted({place for place in self.places.values() if place not in (POLICY, HOST)})

    def resting(self, place: str) -> int:
        """What lies on a place between the pictures of two steps."""
        renderer = sum(self.renderer.values()) if self.offload == "none" else 0
        return renderer * (self.places["renderer"] == place) + self.judge * (self.places["judge"] == place)

    def drawing(self, place: str, pictures: int) -> int:
        """What lies on a place while so many pictures are drawn, and those before them judged."""
        whole, largest = sum(self.renderer.values()), max(self.renderer.values(), default=0)
        drawn = pictures * self.picture
        by_part = max(largest, self.renderer.get("vae", 0) + drawn)
        awake = {"none": whole + drawn, "asleep": whole + drawn, "model": by_part, "sequential": LAYER + drawn}[self.offload]
        return awake * (self.places["renderer"] == place) + self.judge * (self.places["judge"] == place)

    def on_host(self) -> int:
        """What the machine's own memory holds: parts that live there, and a renderer's weights while they are not on their card."""
        away = self.places["renderer"] != HOST and self.offload != "none"
        return self.resting(HOST) + sum(self.renderer.values()) * away

    def share(self, place: str) -> float:
        """The share of a card that the parts on it may take together, 1 if none is given."""
        here = [part for part, where in ({"policy": POLICY} | self.places).items() if where == place]
        return sum(self.shares.get(part, 0.0) for part in here) or 1.0

    def fitting(self, free: Mapping[str, float]) -> int:
        """Pictures that are drawn at once where each place has so many bytes: a batch that does not fit is halved; 0 if not one fits."""
        count = self.pictures
        while count and any(self.drawing(place, count) > room for place, room in free.items()):
            count //= 2
        return count


def measure(config: RunConfig) -> Drawing | None:
    """Count what a run draws and judges with; None for one that does neither, or that replays a recording."""
    rendering, judging, placing = (
        config.renderer or RendererSection(),
        config.judge or JudgeSection(),
        config.placement or PlacementSection(),
    )
    if not draws(config) or judging.replay == "only":
        return None
    places = {"renderer": _place(placing.renderer), "judge": _place(placing.judge)}
    on_card = places["renderer"] != HOST
    width = 4 if rendering.dtype == "float32" or (rendering.dtype == "auto" and not on_card) else 2
    parts, judge = _renderer(rendering), _judge(judging)
    unknown = [
        f"{kind} {name}" for kind, name, size in (("renderer", rendering.name, parts), ("judge", judging.name, judge)) if size is None
    ]
    return Drawing(
        renderer={part: count * width for part, count in (parts or {}).items()},
        judge=4 * (judge or 0),  # CLIP is loaded as it is published, in float32
        picture=rendering.width * rendering.height * DECODED[_kind(rendering)] * width if parts else 0,
        pictures=rendering.batch_size,
        offload=rendering.offload if on_card else "none",
        places=places,
        shares={str(part): share for part, share in placing.memory_shares.items()},
        unknown=tuple(unknown),
    )


def draws(config: RunConfig) -> bool:
    """Whether a run's completions are drawn and judged, as far as its config tells."""
    if config.rewards:
        return any(entry.function == "rendered_reward" for entry in config.rewards)
    return config.task.name in DRAWN or (".py:" in config.task.name and bool(config.renderer or config.judge))


def counted(name: str, revision: str | None) -> dict[str, int] | None:
    """Part -> numbers in its safetensors files, in a local folder or the HF cache; None where they are not all here."""
    index = shapes.local_file(name, revision, "model_index.json")
    if index is None or not index.is_file():
        config = shapes.local_file(name, revision, "config.json")
        whole = _folder(config.parent) if config else None
        return {"model": whole} if whole else None
    listed = json.loads(index.read_text(encoding="utf-8"))
    folders = [index.parent / part for part, kind in listed.items() if isinstance(kind, list) and kind[-1]]
    parts = {folder.name: _folder(folder) for folder in folders if (folder / "config.json").is_file()}
    found = {part: count for part, count in parts.items() if count is not None}
    return found if found and len(found) == len(parts) else None


def _renderer(section: RendererSection) -> dict[str, int] | None:
    if ".py:" in section.name:
        return None
    parts = counted(section.model, section.revision) or KEPT.get(section.model)
    left_out = {"text_encoder"} if _kind(section) == "qwen_image" else set() if section.t5 else {"text_encoder_3"}
    return {part: count for part, count in parts.items() if part not in left_out} if parts else None


def _judge(section: JudgeSection) -> int | None:
    """Numbers in CLIP's weights; a judge that is asked over the network holds none here, and someone's own is not known."""
    if section.name != "clip":
        return None if ".py:" in section.name else 0
    parts = counted(section.model, section.revision) or KEPT.get(section.model)
    return sum(parts.values()) if parts else None


def _kind(section: RendererSection) -> str:
    return "qwen_image" if section.name.startswith("qwen_image") else "sd3"


def _place(asked: str) -> str:
    return HOST if asked == "cpu" else POLICY if asked in ("auto", "cuda", "cuda:0", "mps") else asked


def _folder(folder: Path) -> int | None:
    """Numbers in the weights of one part, whose files may be cut; None where one is missing."""
    for name in NAMES:
        index, whole = folder / f"{name}.safetensors.index.json", folder / f"{name}.safetensors"
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()) if index.is_file() else {whole.name}
        if all((folder / file).is_file() for file in files):
            return sum(_file(folder / file) for file in files)
    return None


@once
def _file(path: Path) -> int:
    """Numbers in a safetensors file, by its header (the layout that safetensors documents)."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
