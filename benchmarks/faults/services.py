"""The Hub, W&B and the judge away: at the start, in the middle and at the end of a run, each a server on the loopback."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from benchmarks.faults.kills import REPO
from benchmarks.faults.place import NOTHING, STEPS, Done, Place, need
from demo.judge_server import Answer, JudgeServer, Response
from tests.commands.test_judged_run import KEY, PARTS
from tests.commands.wandb_service import served
from tests.hub.loopback import WRITER, Fault, Hub

AWAY = "http://127.0.0.1:9"
"""Where nothing listens."""
ONLINE = {"report_to": "wandb", "mode": "online", "log_completions": False}
PUSHED = {"registry": {"push": "save"}}


def hub_away(phase: str) -> Callable[[Place], str]:
    def fault(place: Place) -> str:
        with Hub() as hub:
            hub.create(REPO)
            environment = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_REGISTRY_REPO": REPO, "HF_TOKEN": WRITER}
            place.environment |= environment | {"HF_ENDPOINT": hub.url, "GRPO_HUB_TIMEOUT": "2"}
            if phase == "start":
                place.environment["HF_ENDPOINT"] = AWAY
            process = place.start(place.command("train", **PUSHED))
            if phase != "start":
                with place.held_at(4 if phase == "middle" else STEPS, process):
                    hub.faults = [Fault(method, "", 500) for method in ("GET", "HEAD", "POST", "PUT")]
                if phase == "middle":
                    with place.held_at(STEPS, process):
                        hub.faults = []
            done = place.end(process)
            place.whole()
            said = {"start": "the run starts all the same", "middle": "but not published", "end": "the run is finished and kept here, but"}
            told = done.warning(said[phase])
            hub.faults, place.environment["HF_ENDPOINT"] = [], hub.url
            need(phase == "middle" or place.run("publish", "--pending").code == 0, "what waits cannot be published")
            found = hub.repos[REPO].files("run/run")
            need(found and f"runs/run/{place.card['checkpoint']}/adapter_model.safetensors" in found[1], "the weights are not on the Hub")
        return told

    return fault


def wandb_away(phase: str) -> Callable[[Place], str]:
    def fault(place: Place) -> str:
        with ExitStack() as stack:
            service = stack.enter_context(served())
            place.environment |= service.environment | {"WANDB_FINISH_TIMEOUT": "3", "WANDB_INIT_TIMEOUT": "5"}
            if phase == "start":
                place.environment["WANDB_BASE_URL"] = AWAY
            process = place.start(place.command("train", tracking=ONLINE))
            if phase == "start":
                told = place.end(process).sentence()
                place.environment |= service.environment
                place.finished(tracking=ONLINE)
            else:
                with place.held_at(4, process):
                    stack.close() if phase == "middle" else setattr(service, "full", True)
                told = place.end(process).warning("it has gaps from here on, the files here have none")
                place.whole()
        return told

    return fault


def wandb_preempted(place: Place) -> str:
    """SIGTERM in step 4 of a tracked run: W&B has its steps, and the resumed run the others, each once."""
    with served() as service:
        place.environment |= service.environment
        process = place.start(place.command("train", tracking=ONLINE))
        with place.held_at(4, process):
            process.send_signal(signal.SIGTERM)
            done = place.end(process)
        need(done.code == 143, f"exit code {done.code}")
        need(_steps(service) == [1, 2, 3], f"W&B has the steps {_steps(service)} after SIGTERM")
        place.finished(place.acknowledged(), tracking=ONLINE)
        need(_steps(service) == list(range(1, STEPS + 1)), f"W&B has the steps {_steps(service)} after the resumption")
    return done.said.splitlines()[-2]


def _steps(service: Any) -> list[int]:
    return [row["train/global_step"] for row in service.history("run") if "train/loss" in row]


@contextmanager
def judged(place: Place) -> Iterator[tuple[dict[str, Any], dict[str, bool]]]:
    """A run whose pictures are judged over HTTP: its config, and a switch that takes the judge away."""
    (place.folder / "parts.py").write_text(PARTS, encoding="utf-8")
    (place.folder / "prompts").mkdir()
    (place.folder / "prompts/train.txt").write_text("a purple cat\na square wheel\na glass butterfly\n", encoding="utf-8")
    (place.folder / "prompts/test.txt").write_text("a green dog\n", encoding="utf-8")
    place.environment["OPENAI_API_KEY"] = KEY
    switch = {"away": False}

    def answer(asked: Any) -> Response:
        brightness = sum(asked.urls[0].encode()) % 11
        return Response(status=503) if switch["away"] else Response((Answer({"brightness": brightness}),))

    with JudgeServer(answer, key=KEY) as server:
        judge = {
            "name": "parts.py:Asking", "model": "gpt-4o-2024-11-20", "base_url": server.url, "concurrency": 2, "cache": "judged.sqlite",
            "attempts": 1, "breaker_pause": 0.5,
        }  # fmt: skip
        yield {
            "task": {"name": "prompt_enhancement"}, "rewards": [], "dataset_name": "prompts", "renderer": {"name": "parts.py:Painter"},
            "judge": judge, "evaluation": {"dataset_split": "test", "samples": 2},
        }, switch  # fmt: skip


def judge_away(phase: str) -> Callable[[Place], str]:
    def fault(place: Place) -> str:
        with judged(place) as (config, switch):
            at = {"start": 0, "middle": 3, "end": STEPS}[phase]
            switch["away"] = phase == "start"
            done = _until(place, config, at, lambda: switch.update(away=True))
            told = done.sentence()
            switch["away"] = False
            before = place.acknowledged() if phase != "start" else NOTHING
            if phase == "start" and not place.run_dir.exists():
                need(place.run("train", **config).code == 0, "it cannot be started later")
            else:
                place.finished(before, **config)
            place.whole(before)
        return told

    return fault


def _until(place: Place, config: dict[str, Any], step: int, away: Callable[[], Any]) -> Done:
    """A run whose judge goes away once a step is in its metrics."""
    process = place.start(place.command("train", **config))
    if step:
        metrics = place.run_dir / "metrics.jsonl"
        place.wait_for(process, lambda: metrics.is_file() and f'"step": {step},' in metrics.read_text(encoding="utf-8"))
        away()
    return place.end(process)


def judge_cache(place: Place) -> str:
    """The file of judgements has changed on the disk while the run was stopped: it is set aside, and a new one begun."""
    with judged(place) as (config, switch):
        done = _until(place, config, 3, lambda: switch.update(away=True))
        done.sentence()
        switch["away"] = False
        path = place.folder / "judged.sqlite"
        path.write_bytes(path.read_bytes()[:1000] + b"\xff" * 3000)
        told = place.finished(place.acknowledged(), **config).warning("is broken")
        need(list(place.folder.glob("judged.sqlite.broken-*")), "what was there is not kept")
    return told
