"""Covers the page of the shapes demonstration: each of its shares is the record's, and so is the number of answers behind it."""

from demo import shapes, shapes_page
from qwen_vl_grpo.evaluation import wilson
from qwen_vl_grpo.interfaces import RunCard


def points(share: float, n: int = 108) -> dict:
    return {"right": share, "interval": wilson(share, 108), "score": share, "n": n}


def test_the_page_shows_what_was_measured():
    shares = iter(number / 1000 for number in range(101, 140))
    drawn = {
        name: {moment: {"greedy": points(next(shares)), "sampled": points(next(shares), 432)} for moment in shapes.MOMENTS}
        for name in ("its words", "no words")
    }
    drawn["the right words"] = {moment: points(next(shares)) for moment in shapes.MOMENTS}
    card = RunCard(
        run_id="shapes-demo", task="shapes", base_model="a folder", dataset={"held_out": "test"},
        config={"max_steps": 7, "batch_size": 16, "learning_rate": 0.5}, hardware={"machine": "x", "cores": 1, "python": "3"},
        versions={"torch": "1", "transformers": "2", "trl": "3"},
    )  # fmt: skip
    page = shapes_page.written(card, {2: {"drawn": drawn, "cpu_seconds": 600, "taught_cpu_seconds": 150}})
    assert "108 held-out prompts (split `test`), 4 sampled answers each; seeds 2." in page
    for name in ("its words", "no words"):
        assert f"{drawn[name]['after']['greedy']['right']:.3f} (" in page
    for moment in shapes.MOMENTS:
        assert f"{drawn['its words'][moment]['sampled']['right']:.3f} (" in page
        assert f"{drawn['the right words'][moment]['right']:.3f} (" in page
    assert "| 600 | 150 |" in page and "7 steps of 16 completions, learning rate 0.5" in page
