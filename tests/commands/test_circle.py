"""Covers what `make circle` does when a claim does not hold, and that the guides show what it printed; the circle itself takes minutes."""

import fcntl

import pytest

from demo import circle
from demo.node import BrokenClaim
from docs import generate


def test_the_walk_ends_at_the_first_claim_that_does_not_hold():
    asked: list[str] = []

    def holds():
        asked.append("holds")
        return "[seen]"

    def breaks():
        raise BrokenClaim("the answers differ")

    rows = circle.walk([("one", holds), ("two", breaks), ("three", holds)])
    assert [(row.claim, row.seen, row.held) for row in rows] == [
        ("one", "[seen]", "yes"),
        ("two", "the answers differ", "no"),
        ("three", "", ""),
    ]
    assert asked == ["holds"]
    table = circle.as_table(rows)
    assert table.title == "The circle of two runs: 1 of 3 claims held"
    assert list(table.columns[2].cells)[:3] == ["yes", "no", "not tried"]


def test_a_second_circle_leaves_the_first_one_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(circle, "FOLDER", tmp_path / "circle")
    with (tmp_path / "circle.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BrokenClaim, match="another `make circle` is at work"), circle.alone():
            pass
    with circle.alone():
        pass


def test_an_output_that_names_a_folder_of_this_machine_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(circle, "FOLDER", tmp_path)
    monkeypatch.setattr(circle, "SAMPLES", tmp_path)
    with pytest.raises(BrokenClaim, match=r"asked\.txt names a folder"):
        circle.keep("asked.txt", f"{tmp_path}/runs\n")
    assert not (tmp_path / "asked.txt").exists()


@pytest.mark.parametrize(("page", "sample"), [("inference_guide.md", "batch.txt"), ("model_registry.md", "circle.txt")])
def test_a_guide_whose_example_was_changed_by_hand_is_stale(page, sample, tmp_path, monkeypatch):
    shown = (generate.DOCS / "sample_outputs" / sample).read_text(encoding="utf-8")
    written = (generate.DOCS / page).read_text(encoding="utf-8")
    assert shown in written
    (tmp_path / page).write_text(written.replace(shown, "better numbers\n"), encoding="utf-8")
    (tmp_path / "sample_outputs").symlink_to(generate.DOCS / "sample_outputs")
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    assert generate.with_samples(page) == written
