"""Disks that are full or read-only, files that have changed, numbers that are none, memory that is used up, clocks that jump."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from benchmarks.faults.place import Place, break_byte, need
from qwen_vl_grpo import checkpoints

CLOCK = """
import datetime, os, time
real = time.time
def jumping():
    return real() + (float(open("clock").read()) if os.path.exists("clock") else 0.0)
from qwen_vl_grpo import cli, registry
time.time = jumping
registry.now = lambda: datetime.datetime.fromtimestamp(jumping(), datetime.timezone.utc).isoformat(timespec="seconds")
cli.main()
"""
MEANWHILE = """
{before}
touch hold-at-4
{train} &
for _ in $(seq 6000); do
    grep -q '"step": 3' runs/run/metrics.jsonl 2> /dev/null && break
    kill -0 $! 2> /dev/null || break
    sleep 0.05
done
{fault}
rm hold-at-4
wait $!
code=$?
{after}
exit $code
"""


def disk_too_small(place: Place) -> str:
    """The disk has no room for the first checkpoint."""
    return _filled(place, "mount -t tmpfs -o size=600k tmpfs runs || exit 99", "touch hold-at-4", "true")


def disk_filled_meanwhile(place: Place) -> str:
    """Another process fills the disk between two saves."""
    return _filled(
        place, "mount -t tmpfs -o size=64m tmpfs runs || exit 99", "head -c 100m /dev/zero > runs/filler 2> /dev/null", "rm runs/filler"
    )


def disk_read_only_meanwhile(place: Place) -> str:
    """The disk becomes read-only between two saves, as a file system does that has found a fault."""
    return _filled(place, "true", "mount --bind runs runs && mount -o remount,bind,ro runs || exit 99", "umount runs")


def _filled(place: Place, before: str, fault: str, after: str) -> str:
    """Run with a fault of the disk before step 4, then on a disk that is right again; every step that was told of must still be there."""
    (place.folder / "runs").mkdir()
    train = " ".join(place.command("train"))
    script = MEANWHILE.format(before=before, train=train, fault=fault, after=f"{after}; mkdir kept; cp -r runs/. kept")
    done = place.inside(script)
    need(done.code != 99, "no mount is allowed here")
    said = done.sentence()
    shutil.rmtree(place.folder / "runs")
    (place.folder / "kept").rename(place.folder / "runs")
    place.finished(place.acknowledged())
    return said


def disk_read_only(place: Place) -> str:
    """The run's disk is read-only from the start: nothing is loaded and nothing claimed."""
    (place.folder / "runs").mkdir()
    train = " ".join(place.command("train"))
    said = place.inside(f"mount --bind runs runs && mount -o remount,bind,ro runs || exit 99\n{train}").sentence()
    need(place.run("train").code == 0, "the same command on a disk that can be written fails")
    place.whole()
    return said


def _stopped(place: Place, step: int = 6) -> None:
    """A run that was stopped before a step."""
    process = place.start(place.command("train"))
    with place.held_at(step, process):
        process.kill()
        place.end(process)


def checkpoint(place: Place) -> str:
    """A byte of the newest checkpoint has changed on the disk: the one before it is gone on from."""
    _stopped(place)
    newest = checkpoints.in_order(place.run_dir)[-1]
    break_byte(place.chance.choice(sorted(newest.glob("*.safetensors")) + sorted(newest.glob("optimizer.pt"))), place.chance.random())
    done = place.finished()
    return done.warning("is not as it was written")


def final_weights(place: Place) -> str:
    """A byte of a finished run's weights has changed: it does not answer, and --resume makes them again."""
    need(place.run("train").code == 0, "the run fails")
    break_byte(place.run_dir / place.card["checkpoint"] / "adapter_model.safetensors")
    said = place.run("infer", "--run_id", "run", "--prompt", "Why?").sentence()
    place.finished()
    need(place.run("infer", "--run_id", "run", "--prompt", "Why?").code == 0, "the weights that were made again do not answer")
    return said


def card(place: Place) -> str:
    """run.json is cut short: the run is refused, and goes on once its card is back."""
    _stopped(place)
    path = place.run_dir / "run.json"
    content = path.read_bytes()
    path.write_bytes(content[: place.chance.randrange(len(content))])
    said = place.run("train", "--resume").sentence()
    path.write_bytes(content)
    place.finished(place.acknowledged())
    return said


def metrics(place: Place) -> str:
    """A line of metrics.jsonl is cut short: the others stand."""
    _stopped(place)
    path = place.run_dir / "metrics.jsonl"
    before = place.acknowledged()
    path.write_bytes(path.read_bytes() + b'{"step": 6, "att')
    place.finished(before)
    return "the line stays by itself, and the run goes on"


def prepared(place: Place) -> str:
    """The cache of prepared rows has changed on the disk: the rows are prepared again."""
    _stopped(place)
    files = [path for path in (place.folder / "home/prepared").rglob("*") if path.is_file() and path.stat().st_size > 100]
    for path in files:
        break_byte(path, place.chance.random())
    need(files, "there is no cache of prepared rows")
    place.finished(place.acknowledged())
    return "the rows are prepared again"


def config(place: Place) -> str:
    """The YAML file is cut in the middle of a line."""
    command = place.command("train")
    path = place.folder / "run.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text[: text.index("lora:") + 7] + "\n", encoding="utf-8")
    said = place.end(place.start(command)).sentence()
    path.write_text(text, encoding="utf-8")
    need(place.end(place.start(command)).code == 0, "the whole file is refused too")
    place.whole()
    return said


def picture(place: Place) -> str:
    """A picture in the middle of the data is half there: the row is named, and left out on request."""
    rows = place.folder / "rows"
    shutil.copytree(place.folder / "digits", rows)
    path = _picture(rows, 3)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    said = place.run("train", dataset_name="rows").sentence()
    need(place.run("train", dataset_name="rows", data={"limit": 8, "unusable": "drop"}).code == 0, "the others are not trained on")
    place.whole()
    return said


def _picture(rows: Path, row: int) -> Path:
    """The picture of a row that is trained on."""
    return rows / json.loads((rows / "train.jsonl").read_text(encoding="utf-8").splitlines()[row])["image"]


def picture_meanwhile(place: Place) -> str:
    """A picture of the data is replaced by another one while the run is stopped: it is not gone on with, until the old one is back."""
    rows = place.folder / "rows"
    shutil.copytree(place.folder / "digits", rows)
    process = place.start(place.command("train", dataset_name="rows"))
    with place.held_at(5, process):
        process.kill()
        place.end(process)
    first = _picture(rows, 0)
    content = first.read_bytes()
    Image.new("RGB", Image.open(first).size, "red").save(first)
    said = place.run("train", "--resume", dataset_name="rows").sentence()
    first.write_bytes(content)
    place.finished(place.acknowledged(), dataset_name="rows")
    return said


def reward(place: Place) -> str:
    """A reward gives NaN in step 4."""
    return _trouble(place, "if step == 4: return [math.nan] * len(completions)")


def memory(place: Place) -> str:
    """Memory is used up in step 4, while completions are scored."""
    return _trouble(place, "if step == 4: import torch; torch.empty(1 << 60)")


def _trouble(place: Place, code: str) -> str:
    place.trouble(code)
    said = place.run("train").sentence()
    need("step 3 of 6 is kept in runs/run/checkpoint-3" in said, f"step 3 is not kept: {said}")
    place.trouble("pass")
    place.finished(place.acknowledged())
    return said


def preempted(number: signal.Signals) -> Callable[[Place], str]:
    def fault(place: Place) -> str:
        process = place.start(place.command("train"))
        with place.held_at(4, process):
            process.send_signal(number)
            done = place.end(process)
        need(done.code == 128 + number, f"exit code {done.code}: {done.said[-200:]}")
        need((place.card["state"], place.card["checkpoint"]) == ("interrupted", "checkpoint-3"), "step 3 is not kept")
        place.finished(place.acknowledged())
        return done.said.splitlines()[-2]

    return fault


def clock(seconds: float) -> Callable[[Place], str]:
    def fault(place: Place) -> str:
        process = place.start([sys.executable, "-c", CLOCK, *place.command("train", save_steps=1)[3:]])
        with place.held_at(4, process):
            Path(place.folder / "clock").write_text(str(seconds), encoding="utf-8")
        need(place.end(process).code == 0, "the run fails")
        place.whole()
        need(all(0 <= line.get("step_time", 0) < 600 for line in place.acknowledged()[0]), "a step has no sane duration")
        need(0 < place.card["metrics"]["train_seconds"] < 600, "training has no sane duration")
        compared = place.run("compare", "run", "--output", "compared")
        need(compared.code == 0, f"the run cannot be compared: {compared.said[-200:]}")
        return "durations are of a clock that does not jump"

    return fault
