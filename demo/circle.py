"""The full circle of a run_id, offline on a CPU: trained, published, wiped here, found again, asked, compared.

    make circle                      # or: python -m demo.circle; --docs puts what it saw into docs/

Every command is the product's own, in a process of its own, as a person types it; the Hub is one on the loopback, and its client the
unmodified huggingface_hub. What is checked stands in `claims`, one after the other; the first that does not hold ends it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from transformers.utils import logging as transformers_logging

from demo import digits, tiny_qwen
from demo.__main__ import in_one_line
from demo.node import PROJECT, REPOSITORY, BrokenClaim, Node
from tests.hub.loopback import Fault, Hub

FOLDER = Path("outputs/circle")
SAMPLES = FOLDER / "samples"
PAGES = {"asked.txt": "inference_guide.md", "batch.txt": "inference_guide.md", "circle.txt": "model_registry.md"}
SHORT = ("--max_new_tokens", "16")
QUESTION = ("--prompt", digits.QUESTION, "--image_path", "digits/pictures/0000.png", *SHORT)
RUN = {
    "output_dir": "runs", "model_name": "tiny", "dataset_name": "digits", "dataset_split": "train", "use_vllm": False,
    "learning_rate": 0.05, "max_steps": 4, "batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 4,
    "max_completion_length": 16, "gradient_checkpointing": False, "data": {"limit": 24}, "tracking": {"report_to": "none"},
    "evaluation": {"dataset_split": "few", "samples": 2},
}  # fmt: skip
RUNS = {"circle-wide": {"lora": {"r": 16}}, "circle-narrow": {"lora": {"r": 4}, "seed": 1}}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make circle", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--docs", action="store_true", help="write what was seen into docs/sample_outputs and the pages that show it")
    given = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    SAMPLES.mkdir(parents=True)
    transformers_logging.disable_progress_bar()
    tiny_qwen.build(FOLDER / "tiny")
    digits.write(FOLDER / "digits")
    few = (FOLDER / "digits/validation.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:16]
    (FOLDER / "digits/few.jsonl").write_text("".join(few), encoding="utf-8")
    with Hub() as hub:
        held = list(walk(claims(Node(FOLDER.resolve(), hub.url), hub)))
    shown = Console(width=120, record=True, highlight=False)
    shown.print(as_table(held))
    keep("circle.txt", "".join(f"{line.rstrip()}\n" for line in shown.export_text().splitlines()))
    if given.docs:
        write_docs()


def walk(story: list[tuple[str, Callable[[], str]]]) -> Iterator[tuple[str, str, float]]:
    """Check one claim after the other: what it says, what was seen, seconds."""
    console = Console(stderr=True, highlight=False)
    for claim, check in story:
        started = time.perf_counter()
        with console.status(claim):
            try:
                seen = check()
            except BrokenClaim as error:
                raise BrokenClaim(f"{claim}: this did not hold; {error}") from error
        yield claim, seen, time.perf_counter() - started


def as_table(held: list[tuple[str, str, float]]) -> Table:
    table = Table(title="The circle of two runs: every line held", title_style="bold")
    for column in ("what is claimed", "what was seen"):
        table.add_column(column)
    table.add_column("s", justify="right")
    for claim, seen, seconds in held:
        table.add_row(claim, seen, f"{seconds:.0f}")
    table.add_section()
    table.add_row("", "", f"{sum(seconds for *_, seconds in held):.0f}")
    return table


def claims(node: Node, hub: Hub) -> list[tuple[str, Callable[[], str]]]:
    """The circle, in order; each check returns what it saw or raises."""
    before: dict[str, list[dict[str, Any]]] = {}

    def trained() -> str:
        for run_id, changes in RUNS.items():
            (node.folder / f"{run_id}.yaml").write_text(yaml.safe_dump({"run_id": run_id} | RUN | changes), encoding="utf-8")
            node.run(str(PROJECT / "src/fine_tuning/train.py"), "--config", f"{run_id}.yaml")
            before[run_id] = node.records("--run_id", run_id, *QUESTION)
        states = [node.card(run_id)["state"] for run_id in RUNS]
        expect(states == ["finished"] * len(RUNS), f"the runs are {states}")
        return f"{len(RUNS)} finished runs; {before['circle-wide'][0]['completion']!r} and {before['circle-narrow'][0]['completion']!r}"

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
        again: list[dict[str, Any]] = []
        for run_id in RUNS:
            again = node.records("--run_id", run_id, *QUESTION)
            same = [[record[name] for name in ("completion", "sha")] for record in (*before[run_id], *again)]
            expect(same[0] == same[1], f"{run_id} answered {same[0]} before it was wiped, and {same[1]} after")
        keep("one.json", json.dumps(again[0], indent=2) + "\n")
        keep("asked.txt", node.shown("infer", "--run_id", "all", *QUESTION))
        return "the same completions, from files of the same sha256"

    def batch_survives() -> str:
        rows = [json.loads(line) for line in (node.folder / "digits/test.jsonl").read_text(encoding="utf-8").splitlines()[:60]]
        asked = [{"id": row["id"], "prompt": row["question"], "image": f"digits/{row['image']}"} for row in rows]
        asked.append({"id": "gone", "prompt": digits.QUESTION, "image": "gone.png"})
        good = lines(asked).splitlines(keepends=True)
        (node.folder / "questions.jsonl").write_text("".join([*good[:6], '{"id": "seven"\n', *good[6:]]), encoding="utf-8")
        command = ("--run_id", "all", "--input", "questions.jsonl", "--output", "answers.jsonl", *SHORT)
        killed = killed_after(node, 10, *command)
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
        record = node.records("--run_id", "champion", *QUESTION)[0]
        expect(record["completion"] == before["circle-wide"][0]["completion"], f"champion answered {record['completion']!r}")
        return f"champion is {record['run_id']}"

    def exported() -> str:
        node.grpo("export", "circle-wide", "--merged", "full")
        moved = json.loads((node.folder / "full/grpo_export.json").read_text(encoding="utf-8"))
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
        ("An alias stands for its run", aliased),
        ("A merged checkpoint is the run's policy", exported),
        ("The runs are compared from what came from the Hub", compared),
    ]


def killed_after(node: Node, answers: int, *command: str) -> list[str]:
    """Kill a batch with -9 as soon as so many answers are written; returns the answers that were whole then."""
    process = node.start(str(PROJECT / "src/inference/inference.py"), *command)
    output = node.folder / "answers.jsonl"
    while process.poll() is None and (not output.is_file() or output.read_bytes().count(b"\n") < answers):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    written = output.read_text(encoding="utf-8").splitlines(keepends=True) if output.is_file() else []
    return [line.rstrip("\n") for line in written if line.endswith("\n")]


def expect(held: bool, seen: str) -> None:
    if not held:
        raise BrokenClaim(seen)


def lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def keep(name: str, text: str) -> None:
    """Write one of the outputs that the docs show."""
    (SAMPLES / name).write_text(text, encoding="utf-8")


def write_docs() -> None:
    """Put the outputs into docs/sample_outputs, and those that a page shows between the page's marks."""
    for sample in sorted(SAMPLES.iterdir()):
        shutil.copy(sample, Path("docs/sample_outputs") / sample.name)
    for name, page in PAGES.items():
        path, text = Path("docs") / page, (SAMPLES / name).read_text(encoding="utf-8")
        block = f"<!-- {name}: written by `python -m demo.circle --docs` -->\n```text\n{text}```\n<!-- end -->"
        old = path.read_text(encoding="utf-8")
        start, rest = old.split(f"<!-- {name}:", 1)
        path.write_text(start + block + rest.split("<!-- end -->", 1)[1], encoding="utf-8")


if __name__ == "__main__":
    in_one_line(main)
