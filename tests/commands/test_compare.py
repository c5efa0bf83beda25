"""Covers `grpo compare` as a person runs it: two real runs of three steps, scored on the same held-out digits."""

import csv
import json
import re

import pytest

LIMIT = 12
"""Held-out rows of the tiny runs; a run keeps its answers to 16 at most."""


@pytest.fixture(scope="module")
def compared(workshop, finished):
    """Compare the finished run with a second one; returns the lines that were printed, and the folder."""
    done = workshop.train(
        "second",
        task={"mode": "documented"},
        rewards=[],
        seed=1,
        warmup={"dataset_name": "digits", "steps": 4, "batch_size": 4},
        evaluation={"dataset_split": "test", "samples": 2},
    )
    assert done.returncode == 0, done.stderr
    answers, aside = workshop.folder / "home/inference", workshop.folder / "home/asked-elsewhere"
    if asked := answers.exists():  # by the tests before this one, in whatever order; the page would show those answers, too
        answers.rename(aside)
    done = workshop.grpo("compare", finished, "second", "--output", "compared")
    if asked:
        aside.rename(answers)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), workshop.folder / "compared"


def test_a_run_keeps_its_answers_to_the_first_held_out_rows_with_their_pictures(workshop, finished, compared):
    kept = [json.loads(line) for line in (workshop.run_dir(finished) / "answers.jsonl").read_text().splitlines()]
    assert [item["place"] for item in kept] == list(range(LIMIT))
    asked = [json.loads(line) for line in (workshop.folder / "digits/test.jsonl").read_text().splitlines()][:LIMIT]
    assert [item["gold"] for item in kept] == [row["answer"] for row in asked]
    assert all(isinstance(item[when]["completion"], str) for item in kept for when in ("before", "after"))
    assert all((workshop.run_dir(finished) / name).is_file() for item in kept for name in item["pictures"])


def test_three_files_are_written_and_named(compared):
    lines, folder = compared
    assert lines == ["compared/comparison.html", "compared/comparison.md", "compared/comparison.csv"]
    assert sorted(path.name for path in folder.iterdir()) == ["comparison.csv", "comparison.html", "comparison.md"]


def test_the_page_asks_nothing_of_the_network(compared):
    page = (compared[1] / "comparison.html").read_text(encoding="utf-8")
    assert not re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?(?:https?:)?//", page)
    assert page.count("data:image/png;base64,") == LIMIT


def test_both_runs_answers_stand_beside_each_question(compared):
    page = (compared[1] / "comparison.html").read_text(encoding="utf-8")
    articles = re.findall(r"<article>.*?</article>", page, re.DOTALL)
    assert len(articles) == LIMIT
    assert all("first</h4>" in article and "second</h4>" in article for article in articles)
    assert all(article.count("<pre>") == 4 for article in articles)


def test_the_table_holds_the_scores_of_the_cards_and_what_differs(workshop, compared):
    rows = list(csv.DictReader((compared[1] / "comparison.csv").open(encoding="utf-8")))
    assert [row["run_id"] for row in rows] == ["first", "second"]
    for row in rows:
        metrics = workshop.card(row["run_id"])["metrics"]
        assert float(row["sampled answers: after"]) == metrics["after"]["sampled"]["correct"]
        assert float(row["tokens"]) == workshop.metrics(row["run_id"])[-1].get(
            "num_tokens", workshop.metrics(row["run_id"])[2]["num_tokens"]
        )
    assert [row["config: seed"] for row in rows] == ["0", "1"]
    assert "config: learning_rate" not in rows[0]


def test_all_are_the_finished_runs(workshop, compared):
    done = workshop.grpo("compare", "all", "--output", "everything")
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((workshop.folder / "everything/comparison.csv").open(encoding="utf-8")))
    assert {"first", "second"} <= {row["run_id"] for row in rows}
    assert all(row["state"] == "finished" for row in rows)


def test_an_unknown_run_is_refused_in_one_line_and_nothing_is_written(workshop, finished, refused):
    assert "nobody: no such run" in refused(workshop.grpo("compare", finished, "nobody", "--output", "refused"))
    assert not (workshop.folder / "refused").exists()
