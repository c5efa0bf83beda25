"""Covers the page of the shapes demonstration: each of its shares is the record's, and its sheet shows what was drawn."""

import numpy
from PIL import Image

from demo import shapes, shapes_page
from qwen_vl_grpo.evaluation import wilson
from qwen_vl_grpo.interfaces import RunCard


def points(share: float, n: int = 108) -> dict:
    return {"right": share, "interval": wilson(share, 108), "score": share, "n": n}


def measured(shares, moments) -> dict:
    """What shapes.measured finds, every number of it another one."""
    found = {
        name: {moment: {"greedy": points(next(shares)), "sampled": points(next(shares), 432)} for moment in moments}
        for name in ("its words", "no words")
    }
    return found | {"the right words": {moment: points(next(shares)) for moment in moments}}


def test_the_page_shows_what_was_measured():
    shares = iter(number / 1000 for number in range(101, 160))
    drawn = measured(shares, shapes.MOMENTS)
    whole = {name: of["whole"] for name, of in measured(shares, ["whole"]).items()}
    card = RunCard(
        run_id="shapes-demo", task="shapes", base_model="a folder", dataset={"held_out": "test"},
        config={"max_steps": 7, "batch_size": 16, "learning_rate": 0.5}, hardware={"machine": "x", "cores": 1, "python": "3"},
        versions={"torch": "1", "transformers": "2", "trl": "3"},
    )  # fmt: skip
    ends = {2: {"drawn": drawn, "cpu_seconds": 600, "taught_cpu_seconds": 150}}
    page = shapes_page.written(card, ends, {2: {"0.25": whole}})
    assert "108 held-out prompts (split `test`), 4 sampled answers each; seeds 2." in page
    for name in ("its words", "no words"):
        assert f"{drawn[name]['after']['greedy']['right']:.3f} (" in page
    for moment in shapes.MOMENTS:
        assert f"{drawn['its words'][moment]['sampled']['right']:.3f} (" in page
        assert f"{drawn['the right words'][moment]['right']:.3f} (" in page
    assert "| 600 | 150 |" in page and "7 steps of 16 completions at a learning rate of 0.5" in page
    assert f"| 2 | all layers, 0.25 | {whole['the right words']['right']:.3f} (" in page
    assert "measured for seed 2 and the learning rates above alone" in page and "Not that a DiT can follow" not in page
    unmeasured = shapes_page.written(card, ends, {})
    assert "that was not measured here" in unmeasured and "Not that a DiT can follow" in unmeasured


def test_the_sheet_has_each_picture_beside_its_prompt(tmp_path):
    Image.new("RGB", (16, 16), "red").save(tmp_path / "red.png")
    rows = [("grass, a coin", "green circle", tmp_path / "red.png"), ("grass, a coin", "", None)]
    board = numpy.asarray(shapes_page.sheet({"before": rows, "after": rows[1:]}))
    across, down = shapes_page.CELL
    assert board.shape == (24 + down * shapes_page.SHOWN, across * 3, 3)
    red = (board == (255, 0, 0)).all(-1)
    assert red.sum() == (16 * shapes_page.SCALE) ** 2
    assert red[24 : 24 + down, across : 2 * across].sum() == red.sum()
