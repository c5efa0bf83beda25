"""Answers by run_id on a GPU: eight adapters in one engine beside eight engines, beside one adapter, and beside bare `LLM.chat`.

Row answers-3b of gpu_rows.py. Eight runs with adapters of noise answer questions about digits. One process with every adapter puts the
same requests to one adapter, to all eight in turn, and to one through vLLM's own `LLM.chat`, the arms in turns (`LLM.chat` gets its
pictures opened and sized before the clock starts, ours reads them from files; both sample under the same parameters). Then
`grpo infer --run_id all` is timed as a person waits for it, and `grpo infer` for each run alone. What has a record in
outputs/gpu/rows/answers/ is not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from peft import get_peft_model
from safetensors.torch import save_file
from transformers import AutoConfig

from benchmarks import gpu_rig
from benchmarks.gpu_rig import FOLDER
from qwen_vl_grpo import answering, dataset, hardware, items, loading, opening, policy, registry
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.engine_prompts import forbid_vision_tokens
from qwen_vl_grpo.errors import EngineError
from qwen_vl_grpo.interfaces import RunCard
from qwen_vl_grpo.items import Item
from qwen_vl_grpo.loading import Completion, Question, RunPolicy, finished

RUNS, ROUNDS = 8, 3
REQUESTS = 512
"""Of one arm; each is about a picture of its own."""
SHARE = 32
"""Questions that each run is asked where engines are compared end to end."""
TOKENS = 128
UNTIL, LIMIT = 330, 240
"""Seconds after which no further engine is begun, and those that one process may take; the throughput, whose start is cold, has twice
as many (on a machine just started, an H200 had one round of four behind it after 240 s)."""
PLACE = FOLDER / "rows/answers"
NEEDED = {"eight engines / one engine": 3.0, "eight adapters / one adapter": 0.7, "ours / LLM.chat": 0.95}


def measure(size: str) -> dict[str, Any]:
    """What is measured already, and what fits into the time of a call."""
    settings = gpu_rig.settings(size, [f"max_completion_length={TOKENS}", f"output_dir={PLACE.resolve()}"])
    if not (PLACE / "questions.jsonl").is_file():
        make(settings, PLACE)
        questions(FOLDER / "digits/train.jsonl", PLACE)
    return row(PLACE)


def row(place: Path) -> dict[str, Any]:
    """Measure what has no record below `place`, each in a process of its own, and compare."""
    started = time.perf_counter()
    whole = kept(place / "throughput.json") or alone(place)
    found: dict[str, Any] = {"throughput": whole}
    for name in ("all", *ids()):
        path = place / f"{name}.json"
        if not (known := kept(path)) and time.perf_counter() - started < UNTIL:
            known = engine(name, place)
            if "seconds" in known:
                path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        found[name] = known or {"not run": "no time was left; make this row again"}
    return {"measured": found, "ratios": ratios(found), "needed": NEEDED}


def make(settings: RunConfig, place: Path) -> None:
    """Eight finished runs below `place` and in its registry: cards, and adapters of noise that no training made."""
    base = str(Path(settings.model_name).resolve())
    lora, processor = policy.adapter(settings.lora), policy.load_processor(settings)
    assert lora is not None
    known = AutoConfig.from_pretrained(base)
    with torch.device("meta"):
        shapes = get_peft_model(policy.auto_class(known).from_config(known), lora).state_dict()
    lora.base_model_name_or_path = base
    os.environ["GRPO_HOME"] = str(place.resolve() / "home")
    for seed, run_id in enumerate(ids()):
        run_dir, generator = place / run_id, torch.Generator().manual_seed(seed)
        (run_dir / "checkpoint-1").mkdir(parents=True, exist_ok=True)
        tensors = {
            name.replace(".default", ""): torch.randn(like.shape, generator=generator)
            * (0.02 if ".lora_B." in name else like.shape[1] ** -0.5)
            for name, like in shapes.items() if ".lora_" in name
        }  # fmt: skip
        save_file(tensors, run_dir / "checkpoint-1/adapter_model.safetensors", metadata={"format": "pt"})
        lora.save_pretrained(str(run_dir / "checkpoint-1"))
        processor.save_pretrained(run_dir / "checkpoint-1")
        card = RunCard(
            run_id=run_id, state="finished", task=settings.task.name, base_model=base, checkpoint="checkpoint-1", created=registry.now(),
            config=settings.model_dump(mode="json") | {"run_id": run_id, "model_name": base, "output_dir": str(place)},
            system_prompt="You are a helpful assistant.", checkpoint_files=registry.hash_files(run_dir, "checkpoint-1"),
        )  # fmt: skip
        registry.write(card, run_dir)


def questions(rows: Path, place: Path) -> None:
    """One question a picture: `requests.jsonl` for the throughput, the first of them in `questions.jsonl` for whole commands."""
    with rows.open(encoding="utf-8") as file:
        asked = [json.loads(line) for line in islice(file, REQUESTS)]
    lines = [
        json.dumps({"id": str(number), "prompt": line["question"], "images": [str((rows.parent / line["image"]).resolve())]}) + "\n"
        for number, line in enumerate(asked)
    ]
    (place / "requests.jsonl").write_text("".join(lines), encoding="utf-8")
    (place / "questions.jsonl").write_text("".join(lines[:SHARE]), encoding="utf-8")


def ids() -> list[str]:
    return [f"answers-{number}" for number in range(RUNS)]


def throughput(place: Path, rounds: int = ROUNDS) -> dict[str, Any]:
    """Seconds of the same requests by arm, the engine warm and its caches emptied before each."""
    os.environ["GRPO_HOME"] = str(place.resolve() / "home")
    runs = [loading.load(*registry.resolve(run_id)) for run_id in ids()]
    asked = items.read(str(place / "requests.jsonl"), None).items
    chats = [chat(runs[0], item) for item in asked]
    told: dict[str, dict[str, list[int]]] = {}
    started = time.perf_counter()
    with closing(answering._start("vllm", runs, asked, answering.How())) as backend:
        moved = {run.run_id: backend.check(run, loading.canary(run)) for run in runs}
        ready = time.perf_counter() - started
        arms = {
            "one adapter": lambda: ours(backend, runs[:1], asked, told.setdefault("one adapter", {})),
            "eight adapters": lambda: ours(backend, runs, asked, told.setdefault("eight adapters", {})),
            "LLM.chat": lambda: bare(backend, runs[0], chats, told.setdefault("LLM.chat", {})),
        }
        seconds = gpu_rig.interleaved(arms, rounds)
    one, chatted = told["one adapter"], told["LLM.chat"]
    return {
        "requests": len(asked), "adapters moved a canary by": moved, "started and checked in, s": round(ready, 2),
        "seconds": {name: [round(second, 3) for second in taken] for name, taken in seconds.items()},
        "answers a second": {name: round(len(asked) / statistics.median(taken), 2) for name, taken in seconds.items()},
        "tokens": {name: sum(len(ids) for ids in answers.values()) for name, answers in told.items()},
        "answers of LLM.chat that are ours": sum(chatted[str(place)] == one[item.id] for place, item in enumerate(asked)),
        "tokens until the two part, median": statistics.median(
            alike(chatted[str(place)], one[item.id]) for place, item in enumerate(asked)
        ),
        "eight adapters / one adapter": gpu_rig.ratio(seconds["one adapter"], seconds["eight adapters"]),
        "ours / LLM.chat": gpu_rig.ratio(seconds["LLM.chat"], seconds["one adapter"]),
    }  # fmt: skip


def alike(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that two answers begin with alike: under random weights a near tie parts them soon, and a wrong prompt at once."""
    return next(
        (place for place, (first, second) in enumerate(zip(one, other, strict=False)) if first != second), min(len(one), len(other))
    )


def ours(backend: Any, runs: Sequence[RunPolicy], asked: Sequence[Item], told: dict[str, list[int]]) -> list[float]:
    """The product's own way from questions to records, each question put to one of the runs in turn."""
    how = answering.How()
    passed = {answering.key_of(run, item, how) for place, item in enumerate(asked) for run in runs if run is not runs[place % len(runs)]}

    def answer(questions: Iterable[Question]) -> Iterator[tuple[Question, Completion]]:
        for question, completion in backend.answer(questions):
            told[question.sample.id] = completion.token_ids
            yield question, completion

    forget(backend)
    listened = SimpleNamespace(name=backend.name, context=backend.context, answer=answer)
    started = time.perf_counter()
    records = [record for _, record, _ in answering.answers_of(listened, runs, asked, how, passed)]
    taken = time.perf_counter() - started
    wrong = [record["error"] for record in records if record["error"]]
    if wrong or len(records) != len(asked):
        raise EngineError(f"{len(records)} answers to {len(asked)} questions, {len(wrong)} of them at fault: {wrong[:1]}")
    return [taken]


def bare(backend: Any, run: RunPolicy, chats: list[Any], told: dict[str, list[int]]) -> list[float]:
    """vLLM's `LLM.chat` with the run's adapter, chat template, and what it samples from.

    Greedy decoding without a bias passes vLLM's logits on untouched; with one they are copied to float32 at every step, so an arm
    without it does less work, and may write a placeholder where ours cannot.
    """
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]

    longest, template = run.config.max_completion_length, run.processor.chat_template
    forget(backend)
    started = time.perf_counter()
    answered = backend.llm.chat(
        chats,
        SamplingParams(temperature=0.0, max_tokens=longest, stop_token_ids=run.ends, **forbid_vision_tokens(run.processor, use_vllm=True)),
        use_tqdm=False,
        lora_request=backend._requests[run],
        chat_template=template,
    )
    taken = time.perf_counter() - started
    for place, one in enumerate(answered):
        told[str(place)] = finished(list(one.outputs[0].token_ids), run.ends, 0).token_ids
    return [taken]


def chat(run: RunPolicy, item: Item) -> list[dict[str, Any]]:
    """A question as `LLM.chat` takes it, its picture opened and sized as the run's own are."""
    opened = opening.opened_of(item, False)
    if not isinstance(opened, Item):
        raise opened
    pictures = [dataset.fit(picture.image, run.processor, run.config) for picture in opened.opened or ()]
    parts = [{"type": "image_pil", "image_pil": picture} for picture in pictures]
    return [
        {"role": "system", "content": run.card.system_prompt},
        {"role": "user", "content": [*parts, {"type": "text", "text": item.prompt}]},
    ]


def forget(backend: Any) -> None:
    """Nothing that an arm before computed is used again."""
    backend.llm.reset_prefix_cache()
    backend.llm.llm_engine.reset_mm_cache()
    backend.llm.llm_engine.reset_encoder_cache()


def engine(run_id: str, place: Path) -> dict[str, Any]:
    """Seconds of `grpo infer` as a person waits for it: the process, the engine, the checks, the answers."""
    home = place.resolve() / "home"
    for journal in (home / "inference").glob("questions-*.jsonl"):
        journal.unlink()
    command = ["-m", "qwen_vl_grpo", "infer", "--run_id", run_id, "--input", str(place / "questions.jsonl"), "--backend", "vllm"]
    started = time.perf_counter()
    ended = gpu_rig.ended(command, place / f"{run_id}.log", LIMIT, {"GRPO_HOME": str(home)})
    taken = time.perf_counter() - started
    found = [line for journal in (home / "inference").glob("questions-*.jsonl") for line in journal.read_text().splitlines()]
    if ended or not found:
        return {"ended with": ended, "said": (place / f"{run_id}.log").read_text(errors="replace").splitlines()[-8:]}
    return {"seconds": round(taken, 2), "answers": len(found)}


def alone(place: Path) -> dict[str, Any]:
    """The throughput, measured in a process of its own so that the card is empty after it."""
    ended = gpu_rig.ended(["-m", "benchmarks.gpu_answers", str(place)], place / "throughput.log", 2 * LIMIT)
    said = (place / "throughput.log").read_text(errors="replace").splitlines()[-8:]
    return kept(place / "throughput.json") or {"ended with": ended, "said": said}


def kept(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def ratios(found: dict[str, Any]) -> dict[str, Any]:
    """The three that are asked for; eight engines are those that ran, the others taken to be as their median."""
    made: dict[str, Any] = {name: found["throughput"][name] for name in list(NEEDED)[1:] if name in found["throughput"]}
    single = [found[name]["seconds"] for name in ids() if "seconds" in found[name]]
    if single and "seconds" in found["all"]:
        eight = sum(single) + (RUNS - len(single)) * statistics.median(single)
        made["eight engines / one engine"] = {"ratio": round(eight / found["all"]["seconds"], 2), "engines that ran": len(single)}
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure the throughput of the row answers-3b.")
    parser.add_argument("place", type=Path)
    given = parser.parse_args()
    hardware.quiet_libraries()
    told = throughput(given.place)
    (given.place / "throughput.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
