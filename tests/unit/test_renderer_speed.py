"""Covers benchmarks/renderer_speed.py, rehearsed on a CPU: every kind of pipeline is drawn with in batches, put to sleep and woken."""

import json
import sys

import pytest

from benchmarks import renderer_speed


@pytest.fixture
def rehearsed(tmp_path, monkeypatch):
    """What a call of the benchmark wrote for one kind."""
    monkeypatch.setattr(renderer_speed, "FOLDER", tmp_path)

    def run(kind, *options):
        monkeypatch.setattr(sys, "argv", ["renderer_speed", "--tiny", "--kinds", kind, *options])
        renderer_speed.main()
        return json.loads((tmp_path / f"{kind}-tiny.json").read_text(encoding="utf-8"))

    return run


@pytest.mark.parametrize(
    ("kind", "batches"), [("qwen_image", ["1", "2", "3"]), ("qwen_image_edit", ["1", "2", "3"]), ("qwen_image_edit_plus", ["1"])]
)
def test_every_kind_draws_the_same_pictures_in_batches_of_every_size(rehearsed, kind, batches):
    found = rehearsed(kind, "--pictures", "3", "--batches", "1", "2", "3", "--rounds", "2")
    assert (found["kind"], found["card"], list(found["batches"])) == (kind, "cpu", batches)
    assert min(found["weights"].values()) > 0
    for row in found["batches"].values():
        assert (row["failed"], row["halved to"], len(row["rounds"])) == (0, None, 2)
        assert row["seconds a picture"] > row["of which the VAE"] > 0
        assert row["differs by"] <= 1  # of 255: rounding, in batches of other sizes
        assert row[f"seconds a picture of {renderer_speed.STEPS} steps, computed"] > row["seconds a picture"]


def test_published_sizes_are_refused_without_a_card(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["renderer_speed", "--device", "cpu"])
    with pytest.raises(SystemExit):
        renderer_speed.main()
    assert "rehearse with --tiny" in capsys.readouterr().err
