"""Where a step goes whose reward is a picture, on a GPU, with random weights of the published sizes:

    python -m benchmarks.rendered_rows rendered-sd3 --vocabulary FOLDER/qwen.tiktoken          # 3B policy, SD3 Medium with T5, CLIP
    python -m benchmarks.rendered_rows rendered-qwen-image --vocabulary FOLDER/qwen.tiktoken   # 7B policy, Qwen-Image of 20 B
    python -m benchmarks.rendered_rows rendered-sd3 --tiny                                     # the rehearsal on a CPU, seconds

Config, trainer, reward, renderer and judge are the product's; the renderer's weights are made on the card where it would read them. What
is found goes to outputs/gpu/rows/ROW.json as soon as it is known, and benchmarks/rendered_page.py makes tables of it. Each row ends within
nine minutes: no step is begun after --until.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_rig, random_pictures, renderer_speed
from benchmarks.phases import Phases
from demo import knowledge_rows, tiny_qwen
from demo.judge_server import Answer, Asked, JudgeServer, Response, seen_or_not
from qwen_vl_grpo import assembly, hardware, policy
from qwen_vl_grpo import config as configs
from qwen_vl_grpo.errors import RenderError
from qwen_vl_grpo.images.frozen import FrozenRenderer
from qwen_vl_grpo.images.qwen_image import QwenImage
from qwen_vl_grpo.images.sd3 import StableDiffusion3
from qwen_vl_grpo.interfaces import RenderRequest
from qwen_vl_grpo.rewards.rendered import RenderedScores

FOLDER = Path("outputs/gpu")
JUDGE_SECONDS = 1.6
"""What the judge on this machine takes for an answer; as long as a service over the network (benchmarks/streaming.py)."""
DOCUMENTED = "60 to 75 GB a GPU"
"""Memory that the documentation of text to image gives for a 7B policy and Qwen-Image."""
TINY = {"completions": 8, "length": 8, "denoising": 2, "side": 32, "steps": 2, "pictures": 4}


def enhancement(given: argparse.Namespace, record: Callable[[dict[str, Any]], None]) -> None:
    """Prompt enhancement: on one card, on two, or on the documented three, whatever is there."""
    folder = begun(given)
    random_pictures.clip(folder / "clip", given.tiny)
    changes = [
        f"renderer.model={folder}/sd3", f"judge.model={folder}/clip", "judge.low=-1", "judge.high=1",
        f"batch_size={min(16, given.completions)}",
        f"gradient_accumulation_steps={max(1, given.completions // 16)}", f"placement={layout(torch.cuda.device_count())}",
    ]  # fmt: skip
    make = partial(random_pictures.sd3, tiny=given.tiny)
    with random_pictures.unread(StableDiffusion3, folder / "sd3", make) as made:
        measure("configs/prompt_enhancement.yaml", changes, given, made, record)


def begun(given: argparse.Namespace) -> Path:
    """The row's folder, empty: an earlier run of the row would not be overwritten."""
    folder = FOLDER / given.row
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def layout(cards: int) -> str:
    """The placement section for so many cards."""
    if cards >= 3:
        return "{renderer: cuda:1, judge: cuda:2, memory_shares: {policy: 0.85, renderer: 0.85, judge: 0.85}}"
    if cards == 2:
        return "{renderer: cuda:1, judge: cuda:1, memory_shares: {policy: 0.85, renderer: 0.7, judge: 0.15}}"
    return "{renderer: auto, judge: auto, memory_shares: {}}"


def text_to_image(given: argparse.Namespace, record: Callable[[dict[str, Any]], None]) -> None:
    """Text to image, judged by a server on this machine."""
    folder = begun(given)
    knowledge_rows.write(folder / "knowledge")
    os.environ.setdefault("OPENAI_API_KEY", "none-is-needed")
    width = renderer_speed.TINY_WIDTH if given.tiny else renderer_speed.WIDTH
    taken = 0.01 if given.tiny else JUDGE_SECONDS

    def slowly(asked: Asked) -> Response:
        return Response((Answer(seen_or_not(asked)),) * asked.count, seconds=taken)

    def make(device: torch.device, dtype: torch.dtype) -> Any:
        return renderer_speed.random_pipeline("qwen_image", device, dtype, given.tiny)

    with JudgeServer(slowly) as server, random_pictures.unread(QwenImage, folder / "qwen-image", make, width) as made:
        changes = [
            f"dataset_name={folder}/knowledge", f"renderer.model={folder}/qwen-image", f"judge.base_url={server.url}", "batch_size=1",
            f"gradient_accumulation_steps={given.completions}", "placement={renderer: auto, judge: auto}",
        ]  # fmt: skip

        def with_judge(found: dict[str, Any]) -> None:
            told = {"judge, seconds an answer": taken, "judge, answers at once": server.most_at_once, "documented": DOCUMENTED}
            record(told | found)

        measure("configs/text_to_image.yaml", changes, given, made, with_judge)


ROWS: dict[str, tuple[str, dict[str, int], Callable[..., None]]] = {
    "rendered-sd3": ("3b", {"completions": 32, "length": 100, "denoising": 28, "side": 512, "pictures": 8}, enhancement),
    "rendered-qwen-image": ("7b", {"completions": 8, "length": 512, "denoising": 4, "side": 1024, "pictures": 4}, text_to_image),
}
"""Row -> the policy's size, what its options are where none are given, and what is measured."""


OPTIONS = {
    "completions": "of a step, 8 to a prompt",
    "length": "tokens of each",
    "denoising": "steps of a picture",
    "side": "its pixels",
    "pictures": "of which the renderer's gain is taken",
}


def measure(
    file: str, changes: Sequence[str], given: argparse.Namespace, made: random_pictures.Made, record: Callable[[dict[str, Any]], None]
) -> None:
    """Train some steps and tell where they went, then what drawing several pictures at once is worth."""
    forced = "ignore_eos: true" if given.vllm else f"min_new_tokens: {given.length}"
    fixed = [
        f"model_name={model(given)}", f"run_id={given.row}", f"output_dir={FOLDER / given.row}", f"max_steps={given.steps}",
        f"max_completion_length={given.length}", f"trl.generation_kwargs={{{forced}}}", "trl.lr_scheduler_type=constant",
        "num_generations=8", "evaluation.dataset_split=null", "evaluation.held_out=null", "tracking.report_to=none",
        "judge.replay='off'", "registry.demo=true", "allow_tight_memory=true", "parity_every=null", f"use_vllm={yaml(given.vllm)}",
        "vllm_max_model_length=2048", f"vllm_gpu_memory_utilization={given.engine_share}", f"engine={{enforce_eager: {yaml(given.tiny)}}}",
        f"vllm_enable_sleep_mode={yaml(not given.tiny)}", f"renderer.steps={given.denoising}", f"renderer.width={given.side}",
        f"renderer.height={given.side}", f"renderer.offload={given.offload}",
    ]  # fmt: skip
    config = configs.load(file, [*fixed, *changes, *given.set])
    prepared = assembly.prepare(config)
    trainer: Any = gpu_rig.ours(config, prepared, config.run_dir)
    cards = range(torch.cuda.device_count())
    held = {f"cuda:{card}": round(torch.cuda.memory_allocated(card) / 2**30, 2) for card in cards}
    reward: Any = prepared.functions[0]
    score: RenderedScores = reward._score
    phases, drawn = Phases(given.until), list[RenderRequest]()
    follow(phases, trainer, reward, drawn)
    with phases.watching():
        trainer.add_callback(phases)
        try:
            trainer.train()
        finally:
            if phases.steps:  # what was measured stays, whatever came after
                record(told(phases, trainer))
        found = told(phases, trainer) | {
            "completions": given.completions, "pictures a step": round(len(drawn) / len(phases.steps), 2), "tokens": given.length,
            "layers recomputed": prepared.recomputed, "weights": made.weights, "seconds to make the renderer": round(made.seconds, 1),
            "weights, GiB": {"policy, adapter, engine": held, "renderer": round(made.gib, 2)},
            "policy": {name: total for name, (_, total) in policy.trainable_parts(trainer.model).items()},
        }  # fmt: skip
        record(found)
        renderer: Any = score.generator
        some = drawn[-given.pictures :]
        with phases.during("judge alone"):
            found["judge alone, seconds"] = judged(score, renderer.render(some), some)
        record(found | {"allocated at most, GiB": dict(phases.allocated)})
        found["renderer"] = gain(renderer, some, given)
    record(found | {"allocated at most, GiB": dict(phases.allocated), "in use at most, GiB": dict(phases.in_use)})


def yaml(holds: bool) -> str:
    return str(holds).lower()


def follow(phases: Phases, trainer: Any, reward: Any, drawn: list[RenderRequest]) -> None:
    """Name the phases of a step; what a reward does beside them is waiting for the judge."""
    phases.follow(trainer, "_generate", "generate")
    phases.follow(trainer, "_calculate_rewards", "judge")
    if states := getattr(reward, "_states", None):
        phases.follow(states._encoder, "_read", "embed")
    render = reward._score.generator.render

    def kept(requests: Sequence[RenderRequest]) -> Any:
        drawn.extend(requests)
        return render(requests)

    reward._score.generator.render = kept
    phases.follow(reward._score.generator, "render", "render")


def told(phases: Phases, trainer: Any) -> dict[str, Any]:
    """Medians of the steps after the first one, in which kernels are chosen and the renderer's weights are made."""
    warm = phases.steps[1:] or phases.steps
    names = list(dict.fromkeys(name for step in phases.steps for name in step))
    return {
        "seconds a step": {name: round(statistics.median(step.get(name, 0.0) for step in warm), 3) for name in names},
        "steps": [{name: round(taken, 3) for name, taken in step.items()} for step in phases.steps],
        "logged": gpu_rig.logged(trainer, "rollouts/", "rendered/", "judge/", "step_time", "loss", "grad_norm", "reward"),
        "allocated at most, GiB": dict(phases.allocated), "in use at most, GiB": dict(phases.in_use),
    }  # fmt: skip


def judged(score: RenderedScores, pictures: Sequence[Any], requests: Sequence[RenderRequest]) -> float:
    """Seconds of one call of the judge with nothing beside it."""
    pairs = [(request, picture) for request, picture in zip(requests, pictures, strict=True) if not isinstance(picture, RenderError)]
    started = time.perf_counter()
    score.judge.judge(pairs[: score.judge.batch_size])
    return round(time.perf_counter() - started, 3)


def gain(renderer: FrozenRenderer, requests: Sequence[RenderRequest], given: argparse.Namespace) -> dict[str, Any]:
    """Seconds a picture one by one and in batches, and of a denoising step: the difference to a picture of twice as many."""

    def seconds(size: int, steps: int) -> float:
        renderer.batch_size = size
        renderer._section = section.model_copy(update={"steps": steps})
        started = time.perf_counter()
        failed.extend(picture for picture in renderer.render(requests) if isinstance(picture, RenderError))
        return (time.perf_counter() - started) / len(requests)

    section, failed, batch = renderer._section, list[RenderError](), renderer.batch_size
    usual, few = section.steps, max(1, min(4, section.steps // 2))
    seconds(batch, few)
    single, several = seconds(1, usual), seconds(batch, usual)
    step = (seconds(batch, 2 * few) - seconds(batch, few)) / few
    published = 28 if section.name == "sd3" else renderer_speed.STEPS
    computed = (
        {} if usual == published else {f"seconds a picture of {published} steps, computed": round(several + step * (published - usual), 2)}
    )
    return {
        "seconds a picture, one by one": round(single, 3), f"seconds a picture, {batch} at once": round(several, 3),
        "gain": round(single / several, 3),
        "seconds of a denoising step and picture": round(step, 4), "denoising steps": usual, "failed": len(failed),
    } | computed  # fmt: skip


def model(given: argparse.Namespace) -> Path:
    """The policy's folder, written if it is not there."""
    size = "tiny" if given.tiny else ROWS[given.row][0]
    folder = FOLDER / f"{size}-random"
    if given.tiny:
        tiny_qwen.build(folder, "qwen2_5_vl", vocabulary=800)
    elif not (folder / "config.json").exists():
        script = Path(__file__).with_name("random_checkpoint.py")
        command = [sys.executable, str(script), size, str(folder), "--vocabulary", given.vocabulary, "--device", "cuda"]
        subprocess.run(command, check=True)
    return folder


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", choices=list(ROWS))
    parser.add_argument("--vocabulary", help="qwen.tiktoken, as for benchmarks/random_checkpoint.py")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal on a CPU")
    parser.add_argument("--vllm", action="store_true", help="vLLM with sleep mode generates, on the policy's card; transformers otherwise")
    parser.add_argument("--engine-share", type=float, default=0.3, help="of the card's memory, for the engine")
    parser.add_argument("--offload", default="none", choices=["none", "asleep"], help="of the renderer, between the pictures of two steps")
    parser.add_argument("--steps", type=int, default=4, help="training steps, the first of which is no figure")
    parser.add_argument("--until", type=float, default=360.0, help="seconds after which no training step is begun")
    parser.add_argument("--set", action="append", default=[], metavar="key=value", help="change one more key of the row's config")
    for name, what in OPTIONS.items():
        parser.add_argument(f"--{name}", type=int, help=what)
    given = parser.parse_args(words)
    if not given.tiny and (not torch.cuda.is_available() or not given.vocabulary):
        parser.error("needs a GPU and --vocabulary; rehearse with --tiny")
    given.until += time.perf_counter()
    for name, value in (ROWS[given.row][1] | (TINY if given.tiny else {})).items():
        if given.tiny or getattr(given, name, None) is None:
            setattr(given, name, value)
    return given


def main(words: Sequence[str] | None = None) -> None:
    given = arguments(words)
    hardware.quiet_libraries()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("qwen_vl_grpo").setLevel(logging.INFO)
    started, cards = time.perf_counter(), torch.cuda.device_count()
    marks = {f"{cards}-cards": cards > 1, "vllm": given.vllm, given.offload: given.offload != "none", "tiny": given.tiny}
    name = "-".join([given.row, *(mark for mark, holds in marks.items() if holds)])
    path = FOLDER / "rows" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = {key: value for key, value in vars(given).items() if key not in ("vocabulary", "until")}

    def record(found: dict[str, Any]) -> None:
        about = {
            "row": name, "date": time.strftime("%Y-%m-%d"), "card": torch.cuda.get_device_name() if cards else "cpu",
            "cards": max(1, cards), "versions": hardware.versions(), "settings": settings,
            "wall seconds": round(time.perf_counter() - started),
        }  # fmt: skip
        path.write_text(json.dumps(about | found, indent=1) + "\n", encoding="utf-8")

    ROWS[given.row][2](given, record)
    print(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
