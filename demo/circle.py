"""The full circle of a run_id, offline on a CPU: trained, published, wiped here, found again, asked, compared.

    make circle                      # or: python -m demo.circle; --docs puts what it saw into docs/

Every command is the product's own, in a process of its own, as a person types it; the Hub is one on the loopback, and its client the
unmodified huggingface_hub. What is checked stands in `claims`, one after the other. The first that does not hold ends the walk, since each
stands on those before it: the table says which, the rest is marked as not tried, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from transformers.utils import logging as transformers_logging

from demo import digits, tiny_qwen
from demo.__main__ import in_one_line
from demo.node import PROJECT, REPOSITORY, BrokenClaim, Node
from tests.hub.loopback import Fault, Hub

FOLDER = Path("outputs/circle")
SAMPLES = FOLDER / "samples"
SHORT = ("--max_new_tokens", "16")
QUESTION = ("--prompt", digits.QUESTION, "--image_path", "digits/pictures/0000.png", *SHORT)
RUN = {
    "output_dir": "runs", "model_name": "tiny", "dataset_name": "digits", "dataset_split": "train", "use_vllm": False,
    "learning_rate": 0.05, "max_steps": 4, "batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 4,
    "max_completion_length": 16, "gradient_checkpointing": False, "data": {"limit": 24}, "tracking": {"report_to": "none"},
    "evaluation": {"dataset_split": "few", "samples": 2},
}  # fmt: skip
RUNS = {"circle-wide": {"lora": {"r": 16}}, "circle-narrow": {"lora": {"r": 4}, "seed": 1}}


class Row(NamedTuple):
    """One line of the table; `held` is yes, no, or empty for a claim that was not tried."""

    claim: str
    seen: str = ""
    held: str = ""
    seconds: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="make circle", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--docs", action="store_true", help="write what was seen into docs/sample_outputs and the pages that show it")
    given = parser.parse_args()
    with alone(), Hub() as hub:
        prepare()
        rows = walk(claims(Node(FOLDER.resolve(), hub.url), hub))
    shown = Console(width=120, record=True, highlight=False)
    shown.print(as_table(rows))
    broken = [row for row in rows if row.held != "yes"]
    if broken:
        raise BrokenClaim(f"{broken[0].claim}: this did not hold; {broken[0].seen}")
    keep("circle.txt", "".join(f"{line.rstrip()}\n" for line in shown.export_text().splitlines()))
    if given.docs:
        write_docs()


@contextmanager
def alone() -> Iterator[None]:
    """Hold the folder, which each walk begins by emptying; another walk in it is refused."""
    FOLDER.parent.mkdir(exist_ok=True)
    with FOLDER.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BrokenClaim(f"{FOLDER}: another `make circle` is at work there; wait for it, or stop it") from None
        yield


def prepare() -> None:
    """Empty the folder, then lay a tiny random model and scanned digits into it."""
    if FOLDER.exists():
        shutil.rmtree(FOLDER)
    SAMPLES.mkdir(parents=True)
    transformers_logging.disable_progress_bar()
    tiny_qwen.build(FOLDER / "tiny")
    digits.write(FOLDER / "digits")
    few = (FOLDER / "digits/validation.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:16]
    (FOLDER / "digits/few.jsonl").write_text("".join(few), encoding="utf-8")


def walk(story: list[tuple[str, Callable[[], str]]]) -> list[Row]:
    """Check one claim after the other, up to the first that does not hold."""
    console, rows = Console(stderr=True, highlight=False), []
    for claim, check in story:
        if rows and rows[-1].held != "yes":
            rows.append(Row(claim))
            continue
        started = time.perf_counter()
        with console.status(claim):
            try:
                seen, held = check(), "yes"
            except BrokenClaim as error:
                seen, held = str(error), "no"
        rows.append(Row(claim, seen, held, time.perf_counter() - started))
    return rows


def as_table(rows: list[Row]) -> Table:
    held = sum(row.held == "yes" for row in rows)
    table = Table(title=f"The circle of two runs: {held} of {len(rows)} claims held", title_style="bold")
    for column in ("what is claimed", "what was seen", "held"):
        table.add_column(column)
    table.add_column("s", justify="right")
    for row in rows:
        table.add_row(row.claim, escape(row.seen), row.held or "not tried", f"{row.seconds:.0f}")
    table.add_section()
    table.add_row("", "", "", f"{sum(row.seconds for row in rows):.0f}")
    return table


def claims(node: Node, hub: Hub) -> list[tuple[str, Callable[[], str]]]:
    """The circle, in order; each check returns what it saw or raises."""
    before: dict[str, dict[str, Any]] = {}

    def trained() -> str:
        for run_id, changes in RUNS.items():
            (node.folder / f"{run_id}.yaml").write_text(yaml.safe_dump({"run_id": run_id} | RUN | changes), encoding="utf-8")
            node.run(str(PROJECT / "src/fine_tuning/train.py"), "--config", f"{run_id}.yaml")
        for record in node.records("--run_id", ",".join(RUNS), *QUESTION):
            before[record["run_id"]] = record
        states = [node.card(run_id)["state"] for run_id in RUNS]
        expect(states == ["finished"] * len(RUNS), f"the runs are {states}")
        return f"{len(RUNS)} finished runs; {before['circle-wide']['completion']!r} and {before['circle-narrow']['completion']!r}"

    def survives_the_hub() -> str:
        hub.faults = [Fault("POST", f"/api/models/{REPOSITORY}/commit/", 500)]
        node.grpo("publish", "circle-narrow", fails=True)
        hub.faults = []
        said = node.grpo("publish", "--pending")
        expect(set(hub.repos[REPOSITORY].tags) == {"run/circle-narrow"}, f"the Hub has {hub.repos[REPOSITORY].tags}")
        return said.strip()

    def proved() -> str:
        node.grpo("publish", "circle-wide")
        for run_id in RUNS:
            node.grpo("publish", run_id, "--verify")
        verdicts = [node.card(run_id)["proof"]["verdict"] for run_id in RUNS]
        seen = [(verdict["state"], verdict["copy"]) for verdict in verdicts]
        expect(seen == [("proved", "Hub")] * len(RUNS), f"the verdicts are {seen}")
        keep("run.json", json.dumps(node.card("circle-wide"), indent=2) + "\n")
        return verdicts[0]["text"]

    def wiped() -> str:
        for name in ("runs", "home", "huggingface"):
            shutil.rmtree(node.folder / name, ignore_errors=True)
        listed = json.loads(node.grpo("runs", "--json"))
        expect(not listed, f"the node still lists {listed}")
        return "no run, index or cache is left on the node"

    def answered_by_pattern() -> str:
        records = node.records("--run_id", "all", "--prompt", "Test prompt", *SHORT)
        expect({record["run_id"] for record in records} == set(RUNS), f"answers came from {[record['run_id'] for record in records]}")
        keep("all.jsonl", lines(records))
        return "; ".join(f"{record['run_id']}: {record['completion']!r}" for record in records)

    def answered_as_before() -> str:
        again: dict[str, Any] = {}
        for run_id in RUNS:
            again = node.records("--run_id", run_id, *QUESTION)[0]
            old, new = ([record[name] for name in ("completion", "sha")] for record in (before[run_id], again))
            expect(old == new, f"{run_id} answered {old} before it was wiped, and {new} after")
        keep("one.json", json.dumps(again, indent=2) + "\n")
        keep("asked.txt", node.shown("infer", "--run_id", "all", *QUESTION))
        return "the same completions, from files of the same sha256"

    def batch_survives() -> str:
        rows = [json.loads(line) for line in (node.folder / "digits/test.jsonl").read_text(encoding="utf-8").splitlines()[:60]]
        asked = [{"id": row["id"], "prompt": row["question"], "image": f"digits/{row['image']}"} for row in rows]
        asked.append({"id": "gone", "prompt": digits.QUESTION, "image": "gone.png"})
        good = lines(asked).splitlines(keepends=True)
        (node.folder / "questions.jsonl").write_text("".join([*good[:6], '{"id": "seven"\n', *good[6:]]), encoding="utf-8")
        command = ("--run_id", "all", "--input", "questions.jsonl", "--output", "answers.jsonl", *SHORT)
        killed = node.killed_at(node.folder / "answers.jsonl", 10, *command)
        keep("batch.txt", node.shown("infer", *command))
        answers = (node.folder / "answers.jsonl").read_text(encoding="utf-8")
        records = [json.loads(line) for line in answers.splitlines()]
        pairs = [(record["run_id"], record["item"]) for record in records]
        expect(len(pairs) == len(set(pairs)) == (len(rows) + 2) * len(RUNS), f"{len(pairs)} answers, {len(set(pairs))} different ones")
        kept = [line for line in killed if line in answers]
        expect(len(kept) == len(killed), f"{len(killed) - len(kept)} answers from before the kill were lost or asked again")
        faulty = {record["item"] for record in records if record["error"]}
        expect(faulty == {"gone", "line 7"}, f"the items at fault are {faulty}")
        keep("batch.jsonl", lines(records[:6]))
        return f"kill -9 after {len(killed)} of {len(pairs)} records; then each once, and two questions at fault named"

    def aliased() -> str:
        node.grpo("runs", "alias", "champion", "circle-wide")
        found = {word: node.card(word)["run_id"] for word in ("champion", "latest")}
        expect(found == {"champion": "circle-wide", "latest": "circle-narrow"}, f"the words stand for {found}")
        record = node.records("--run_id", "champion", *QUESTION)[0]
        expect(record["completion"] == before["circle-wide"]["completion"], f"champion answered {record['completion']!r}")
        return f"champion is {found['champion']}, latest is {found['latest']}"

    def exported() -> str:
        node.grpo("export", "circle-wide", "--merged", "full")
        moved = json.loads((node.folder / "full/grpo_export.json").read_text(encoding="utf-8"))
        expect(moved["moved_by_writing"] <= 0.001 < moved["moved_by_training"], f"the merged copy moved {moved}")
        return f"writing moved probabilities by {moved['moved_by_writing']:.1e}, training by {moved['moved_by_training']:.2f}"

    def compared() -> str:
        node.grpo("compare", "all", "--output", "comparison")
        text = (node.folder / "comparison/comparison.md").read_text(encoding="utf-8")
        expect(all(run_id in text for run_id in RUNS), "the comparison lacks a run")
        keep("comparison.md", text)
        return ", ".join(sorted(f"{path.name} {path.stat().st_size // 1000} kB" for path in (node.folder / "comparison").iterdir()))

    return [
        ("Two runs train from one YAML each and answer by their ids", trained),
        ("A push that the Hub fails waits, and goes with --pending", survives_the_hub),
        ("The copy on the Hub answers as the policy did, and not as its base", proved),
        ("The node is wiped", wiped),
        ("--run_id all finds both on the Hub and asks them beside each other", answered_by_pattern),
        ("Each id answers as it did where it was trained", answered_as_before),
        ("A batch killed in its middle loses and repeats no answer", batch_survives),
        ("An alias and `latest` stand for their runs", aliased),
        ("A merged checkpoint is the run's policy", exported),
        ("The runs are compared from what came from the Hub", compared),
    ]


def expect(held: bool, seen: str) -> None:
    if not held:
        raise BrokenClaim(seen)


def lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def keep(name: str, text: str) -> None:
    """Write one of the outputs that the docs show, which say nothing of where they were made."""
    expect(str(FOLDER.resolve()) not in text, f"{name} names a folder of this machine")
    (SAMPLES / name).write_text(text, encoding="utf-8")


def write_docs() -> None:
    """Put the outputs into docs/sample_outputs, and from there into the pages that show them."""
    for sample in sorted(SAMPLES.iterdir()):
        shutil.copy(sample, Path("docs/sample_outputs") / sample.name)
    subprocess.run([sys.executable, "docs/generate.py"], check=True)


if __name__ == "__main__":
    in_one_line(main)
