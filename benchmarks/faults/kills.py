"""kill -9 at twenty random moments: in the start, in steps, in saves, in a push, in the cache of judgements, in a batch of questions."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from benchmarks import kill_resume
from benchmarks.faults.forked import Command
from benchmarks.faults.place import Place, need
from qwen_vl_grpo import checkpoints
from qwen_vl_grpo.interfaces import RenderRequest
from qwen_vl_grpo.judges.cache import JudgementCache
from tests.hub.loopback import WRITER, Hub

REPO = "someone/runs"
KEEPING = """
import pathlib, sys
from qwen_vl_grpo.interfaces import Judgement, RenderRequest
from qwen_vl_grpo.judges.cache import JudgementCache
cache = JudgementCache(pathlib.Path("judged.sqlite"), "renderer", "judge")
for number in range(int(sys.argv[1]), 10**6):
    cache.keep([(RenderRequest("a cat", f"{number} cats", 0), f"p{number}", Judgement(number / 10**6))])
    print(number, flush=True)
"""


def training(place: Place, moments: dict[str, int]) -> str:
    """One run, killed and resumed again and again; at its end it must be, to the last digit, the run that was left alone."""
    order = [moment for moment, times in moments.items() for _ in range(times)]
    place.chance.shuffle(order)
    need(_train(place, "alone").wait() == 0, "the run that is left alone fails")
    run_dir, again = place.folder / "runs/killed", []
    for moment in order:
        process = _train(place, "killed", *again)
        if moment == "start":
            time.sleep(place.chance.uniform(0, 3))
            process.kill()
            killed = process.wait() < 0
        else:
            killed = kill_resume.kill(process, run_dir, moment, place.chance)
        need(killed, f"it ended before the kill in a {moment}")
        again = ["--resume"] if (run_dir / "run.json").is_file() else []
        for folder in checkpoints.in_order(run_dir)[-1:]:
            need(checkpoints.whole(folder), f"{folder.name} is not whole after a kill in a {moment}")
    need(_train(place, "killed", *again).wait() == 0, "it cannot be resumed to its end")
    compared = kill_resume.compare(place.folder / "runs/alone", run_dir)
    different = [title for title, _, count in compared if count]
    need(not different, f"differs from the run that was left alone in {', '.join(different)}")
    return (
        f"resumed each time, and equal to the run left alone: {sum(count for _, count, _ in compared)} numbers, scores and files compared"
    )


def _train(place: Place, run_id: str, *arguments: str) -> Command | subprocess.Popen[str]:
    place.command("train", **kill_resume.CONFIG | {"max_steps": 30})
    return place.start([sys.executable, "-m", "qwen_vl_grpo", "train", "--config", "run.yaml", "--set", f"run_id={run_id}", *arguments])


def push(place: Place) -> str:
    """A finished run, killed while it goes to the Hub; what is there by then must be whole or absent, and the run waits in the queue."""
    with Hub() as hub:
        place.environment |= {
            "HF_ENDPOINT": hub.url,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_REGISTRY_REPO": REPO,
            "HF_TOKEN": WRITER,
        }
        need(place.run("train", max_steps=2).code == 0, "the run that is to be published fails")
        for _ in range(4):
            hub.repos.pop(REPO, None)
            asked = len(hub.seen) + place.chance.randint(1, 8)
            process = place.start(place.command("publish", "run"))
            place.wait_for(process, lambda asked=asked: len(hub.seen) >= asked)
            time.sleep(place.chance.uniform(0, 0.02))
            process.kill()
            place.end(process)
            tagged = REPO in hub.repos and "run/run" in hub.repos[REPO].tags
            need(tagged or list((place.folder / "home/unpublished").glob("run.json")), "the run is neither published nor waiting")
            need(place.run("publish", "--pending").code == 0, "what waits cannot be published")
            need("run/run" in hub.repos[REPO].tags, "the run is not on the Hub after `grpo publish --pending`")
        found = hub.repos[REPO].files("run/run")
        need(found and set(place.card["checkpoint_files"]) <= {name.removeprefix("runs/run/") for name in found[1]}, "a file is not there")
    return "waits in the queue; `grpo publish --pending` puts it there whole"


def cache(place: Place) -> str:
    """A process that keeps judgement after judgement; each that it has told of must be found by the next."""
    told = 0
    for _ in range(3):
        process = place.start([sys.executable, "-c", KEEPING, str(told)])
        assert isinstance(process, subprocess.Popen) and process.stdout
        for _ in range(place.chance.randint(5, 60)):
            told = int(process.stdout.readline()) + 1
        time.sleep(place.chance.uniform(0, 0.01))
        process.kill()
        told = max([told, *(int(line) + 1 for line in place.end(process).out.splitlines(keepends=True) if line.endswith("\n"))])
        requests = [RenderRequest("a cat", f"{number} cats", 0) for number in range(told)]
        found = JudgementCache(place.folder / "judged.sqlite", "renderer", "judge").find(requests)
        need(
            [found[request].score for request in requests if request in found] == [number / 10**6 for number in range(told)],
            "judgements are gone",
        )
    return f"all {told} judgements that were acknowledged are found"


def batch(place: Place) -> str:
    """A file of questions, killed three times; no answer is given twice, changed or lost."""
    need(place.run("train", max_steps=2).code == 0, "the run that is to answer fails")
    rows = [{"id": f"q{number}", "prompt": "Which digit is this?", "image": f"digits/pictures/{number:04d}.png"} for number in range(60)]
    (place.folder / "many.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    command = place.command("infer", "--run_id", "run", "--input", "many.jsonl", "--output", "answers.jsonl", "--batch_size", "1")
    output = place.folder / "answers.jsonl"
    before: list[str] = []
    for _ in range(3):
        process, wanted = place.start(command), len(before) + place.chance.randint(1, 15)
        place.wait_for(process, lambda wanted=wanted: output.is_file() and output.read_bytes().count(b"\n") >= wanted)
        process.kill()
        place.end(process)
        now = output.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()
        need(now[: len(before)] == before, "answers are gone or changed")
        before = now
    done = place.end(place.start(command))
    records = output.read_text(encoding="utf-8").splitlines()
    need(done.code == 0 and records[: len(before)] == before, "answers are gone or changed")
    need(sorted(json.loads(record)["item"] for record in records) == sorted(row["id"] for row in rows), "a question has no answer, or two")
    return done.warning("answers are there already")
