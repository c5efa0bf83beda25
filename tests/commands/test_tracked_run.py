"""Covers a run that is evaluated on the way and tracked offline by W&B with tables of completions and their pictures."""

import pandas
import pytest


@pytest.fixture(scope="module")
def tracked(workshop) -> str:
    done = workshop.train(
        "tracked", tracking={"report_to": "wandb", "mode": "offline", "log_completions": True},
        evaluation={"dataset_split": "test", "every": 2, "every_limit": 4, "samples": 2, "blind": False},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return "tracked"


def test_one_offline_run_has_the_run_id_as_its_id(workshop, tracked):
    runs = list(workshop.run_dir(tracked).glob("wandb/offline-run-*"))
    assert [run.name.split("-", 3)[3] for run in runs] == [tracked]
    assert list(runs[0].glob(f"run-{tracked}.wandb"))
    assert not (workshop.folder / "wandb").exists()


def test_the_card_says_how_the_run_was_tracked(workshop, tracked):
    kept = workshop.card(tracked)["tracking"]
    assert (kept["report_to"], kept["id"], kept["mode"]) == ("wandb", tracked, "offline")


def test_every_step_leaves_a_table_of_completions_as_text(workshop, tracked):
    for step in (1, 2, 3):
        table = pandas.read_parquet(workshop.run_dir(tracked) / f"completions/completions_{step:05}.parquet")
        assert len(table) == 8
        assert set(table["step"]) == {step}
        assert all(isinstance(text, str) and "[picture]" in text for text in table["prompt"])
        assert table["brevity"].tolist() == pytest.approx([-0.01 * len(text) for text in table["completion"]])


def test_the_tables_reach_the_tracker_with_their_pictures(workshop, tracked):
    run = next(workshop.run_dir(tracked).glob("wandb/offline-run-*"))
    assert list(run.rglob("completions*.table.json"))
    staged = [path.read_bytes() for path in (workshop.run_dir(tracked) / "wandb-data/artifacts/staging").iterdir()]
    assert any(content.startswith(b"\x89PNG") for content in staged)


def test_the_held_out_rows_are_scored_on_the_way(workshop, tracked):
    scored = [line for line in workshop.metrics(tracked) if any(key.startswith("eval/") for key in line)]
    assert [line["step"] for line in scored] == [2]
    assert {"eval/greedy/correct", "eval/greedy/format", "eval/sampled/rewards/brevity"} <= set(scored[0])
    assert scored[0]["eval/sampled/rewards/brevity"] < 0


def test_scoring_on_the_way_leaves_the_metrics_of_the_steps_whole(workshop, tracked):
    assert [line["step"] for line in workshop.metrics(tracked) if "rewards/brevity/mean" in line] == [1, 2, 3]


def test_the_scores_before_and_after_are_of_all_held_out_rows(workshop, tracked):
    metrics = workshop.card(tracked)["metrics"]
    assert [metrics[when]["greedy"]["n"] for when in ("before", "after")] == [12, 12]
    assert "blind" not in metrics
