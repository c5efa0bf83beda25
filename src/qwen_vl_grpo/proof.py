"""The proof that a run's files are its policy: what it answered when it was trained, they must answer again, token for token.

Before it learns, and again at its end, the policy in memory answers a few items greedily. The items lie in the run's folder and the
token ids in its card, so anyone who has the folder can ask: a process that knows a run_id and that folder loads the run as
inference does and answers. Adapters that are loaded without effect, or saved as zeros, answer like the base model and fail.

Generation is transformers', one item at a time, whatever the run's rollouts came from: batches and engines round differently.
"""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image

from qwen_vl_grpo import attempts, hardware, index, loading, policy, registry, transformers_backend
from qwen_vl_grpo.errors import RegistryError
from qwen_vl_grpo.interfaces import Clip, RunCard, Sample

ITEMS = 4
TOKENS = 48
FILE = "proof/items.json"
TIES = {"float32": 0.001, "bfloat16": 0.25}
"""Nats between the two likeliest tokens below which rounding may decide; logits of 16 to 32 lie 0.125 apart in bfloat16."""

Answer = dict[str, list[int]]
"""`ids` of a greedy answer, and `ties`: the places in it where the runner-up was as likely."""


def greedy(model: Any, processor: Any, samples: Sequence[Sample], tokens: int) -> list[Answer]:
    """Answer each sample by itself."""
    ends = loading.ending_ids(processor, model.generation_config.eos_token_id)
    tie = TIES.get(str(policy.dtype_of(model)).removeprefix("torch."), TIES["bfloat16"])
    answers = []
    for sample in samples:
        scored = {"return_dict_in_generate": True, "output_scores": True}
        encoded, output = transformers_backend.generate(model, processor, [sample], tokens, ends, **scored)
        best = torch.stack(output.scores)[:, 0].float().topk(2).values
        answers.append(
            {
                "ids": output.sequences[0, encoded["input_ids"].shape[1] :].tolist(),
                "ties": (best[:, 0] - best[:, 1] < tie).nonzero()[:, 0].tolist(),
            }
        )
    return answers


class Exam:
    """The items of a run, answered before it learns; `record` answers them again and is what the card keeps."""

    def __init__(self, model: Any, processor: Any, samples: Sequence[Sample], run_dir: Path, tokens: int = TOKENS):
        self.model, self.processor, self.samples, self.tokens = model, processor, list(samples[:ITEMS]), min(tokens, TOKENS)
        write_items(self.samples, run_dir)
        self.base = self._answers()

    def _answers(self) -> list[Answer]:
        return greedy(self.model, self.processor, self.samples, self.tokens)

    def record(self) -> dict[str, Any]:
        """What the policy answers now, what the base answered, and whether the two differ."""
        outputs = self._answers()
        return {
            "path": "transformers, one item at a time",
            "max_new_tokens": self.tokens,
            "outputs": outputs,
            "base_outputs": [answer["ids"] for answer in self.base],
            "changed": not all(agrees(base["ids"], answer) for base, answer in zip(self.base, outputs, strict=True)),
        }


def agrees(ids: Sequence[int], expected: Answer) -> bool:
    """Whether an answer is the expected one, up to the first place where rounding may have decided otherwise."""
    first = next((i for i, (one, other) in enumerate(zip(ids, expected["ids"], strict=False)) if one != other), None)
    return first in expected["ties"] if first is not None else len(ids) == len(expected["ids"])


def verify(card: RunCard, folder: Path, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Let a process of its own load the run from below `folder` by its id, and judge its answers; returns the verdict.

    `environment` is added to that process's own (an empty HF_HOME, say). Raises RegistryError if the card holds no answers to
    compare with, or the process cannot load the run: then its sentence is the reason.
    """
    if not card.proof.get("outputs"):
        raise RegistryError(f"run_id {card.run_id}: its card holds no answers to compare with; only a run that ends keeps some")
    try:
        answers = _asked(card.run_id, folder, environment or {})
    except RegistryError as error:
        return _verdict("failed", f"run_id {card.run_id}: its files do not answer: {error}")
    return judge(card, answers)


def judge(card: RunCard, answers: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The verdict on what a run's files answered: `proved`, `failed`, or `unchanged` where the base model answers so too."""
    expected: list[Answer] = card.proof["outputs"]
    right = sum(agrees(ids, answer) for ids, answer in zip(answers, expected, strict=True))
    equal = sum(ids == answer["ids"] for ids, answer in zip(answers, expected, strict=True))
    if right < len(expected):
        like_base = answers == card.proof["base_outputs"]
        return _verdict(
            "failed",
            f"run_id {card.run_id}: its files answer {right} of {len(expected)} items as the policy did when it was trained"
            + ("; they answer as the base model does" if like_base else "")
            + _elsewhere(card),
        )
    if not card.proof["changed"]:
        return _verdict(
            "unchanged", f"run_id {card.run_id}: training changed no answer: its files answer all {right} items as the base does"
        )
    ties = f" ({right - equal} of them part where two tokens were equally likely)" if right > equal else ""
    return _verdict("proved", f"run_id {card.run_id}: its files answer all {right} items as the policy did when it was trained{ties}")


def keep(verdict: dict[str, Any], run_dir: Path) -> None:
    """Put a verdict into a run's card."""
    with attempts.hold(run_dir):
        card = registry.read(run_dir)
        registry.write(card.model_copy(update={"proof": card.proof | {"verdict": verdict}}), run_dir)


def write_items(samples: Sequence[Sample], run_dir: Path) -> None:
    """Keep items so that they can be asked again without the data set: prompts, and pictures and frames as PNG."""
    items = [
        {"prompt": sample.prompt, "images": [_png(image) for image in sample.images], "videos": [_frames(clip) for clip in sample.videos]}
        for sample in samples
    ]
    index.replace(run_dir / FILE, json.dumps(items) + "\n")


def read_items(run_dir: Path) -> list[Sample]:
    """The items of a run; raises RegistryError if they are gone."""
    try:
        items = json.loads((run_dir / FILE).read_text(encoding="utf-8"))
        read = [(item["prompt"], map(_image, item["images"]), map(_clip, item.get("videos", ()))) for item in items]
        return [Sample(str(i), prompt, list(images), "", videos=list(clips)) for i, (prompt, images, clips) in enumerate(read)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RegistryError(f"{run_dir / FILE}: cannot be read ({error}); restore it from a copy") from None


def _asked(run_id: str, folder: Path, environment: Mapping[str, str]) -> list[list[int]]:
    """What a new process answers that has no index and no cache of this one; raises RegistryError with its last line."""
    package = str(Path(__file__).resolve().parents[1])
    with tempfile.TemporaryDirectory() as home:
        own = {"GRPO_HOME": home, "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))}
        kept = {name: value for name, value in os.environ.items() if name != "HF_REGISTRY_REPO"}
        command = [sys.executable, "-m", "qwen_vl_grpo.proof", run_id, str(folder)]
        done = subprocess.run(command, env=kept | own | dict(environment), capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RegistryError(said[-1].removeprefix("error: "))
    return json.loads(done.stdout.splitlines()[-1])


def answer_again(run_id: str, folder: Path) -> list[list[int]]:
    """Load a run that lies below `folder` by its id, with the dtype that it was trained in, and answer its items."""
    registry.scan(folder)
    card, run_dir = registry.resolve(run_id)
    dtype = card.preprocessing.get("dtype", card.config.get("dtype", "auto"))
    model, processor, _ = transformers_backend.load_run(card.model_copy(update={"config": card.config | {"dtype": dtype}}), run_dir)
    return [answer["ids"] for answer in greedy(model, processor, read_items(run_dir), card.proof["max_new_tokens"])]


def _verdict(state: str, text: str) -> dict[str, Any]:
    return {"state": state, "text": text, "time": registry.now(), "hardware": hardware.describe(hardware.detect()).get("name")}


def _elsewhere(card: RunCard) -> str:
    here, there = hardware.describe(hardware.detect()).get("name"), card.hardware.get("name")
    return f" (trained on {there}, asked on {here}, which may round differently)" if here != there else ""


def _png(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def _frames(clip: Clip) -> dict[str, Any]:
    told = {"indices": clip.indices, "fps": clip.fps, "total": clip.total, "sha256": clip.sha256}
    return told | {"frames": [_png(Image.fromarray(frame)) for frame in clip.frames]}


def _clip(told: dict[str, Any]) -> Clip:
    frames = numpy.stack([numpy.array(_image(frame)) for frame in told["frames"]])
    return Clip(frames, tuple(told["indices"]), told["fps"], told["total"], told["sha256"])


def _image(text: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB")


if __name__ == "__main__":
    from qwen_vl_grpo.errors import GrpoError

    hardware.quiet_libraries()
    try:
        print(json.dumps(answer_again(sys.argv[1], Path(sys.argv[2]))))
    except GrpoError as error:
        sys.exit(f"error: {' '.join(str(error).split())}")
