"""Covers a whole run of image editing with tiny real parts: judged by Complex-Edit's protocol, shown, and replayed from its recording."""

import json

import pytest
from PIL import Image

from demo import edit_rows, tiny_qwen_image
from demo.images import answer
from demo.judge_server import JudgeServer
from qwen_vl_grpo import rendered_gallery, training


@pytest.fixture
def run(config_of, checkpoint, tmp_path):
    """Train for two steps; returns the card and the steps' metrics."""
    edit_rows.write(tmp_path / "edits")
    tiny_qwen_image.build(tmp_path / "pipeline", "qwen_image_edit", checkpoint("qwen2_5_vl"))

    def train(run_id, **judge):
        config = config_of(
            run_id=run_id, output_dir=str(tmp_path / "runs"), model_name=checkpoint("qwen2_5_vl"), dataset_name=str(tmp_path / "edits"),
            dataset_split="test_real", data={"complexity": 2, "limit": 8}, evaluation={"held_out": 0.25, "samples": 1, "blind": False},
            task={"name": "image_edit"}, max_steps=2, batch_size=4, num_generations=4, gradient_accumulation_steps=1,
            max_completion_length=8, loss_type="dr_grpo", lora={"r": 4, "alpha": 8}, tracking={"report_to": "none"},
            renderer={"name": "qwen_image_edit", "model": str(tmp_path / "pipeline"), "width": 32, "height": 32, "steps": 1},
            judge={"name": "complex_edit", "votes": 2, "cache": str(tmp_path / "kept.sqlite")} | judge,
        )  # fmt: skip
        with tiny_qwen_image.small_sources():
            card = training.train(config)
        lines = map(json.loads, (config.run_dir / "metrics.jsonl").read_text().splitlines())
        return card, [line for line in lines if "reward" in line]

    return train


def test_an_edit_is_judged_beside_its_source_and_a_replay_needs_neither_renderer_nor_judge(run, tmp_path):
    with JudgeServer(answer) as server:
        recorded, steps = run("recorded", base_url=server.url)
    shown = {len(asked.images) for asked in server.asked}
    assert shown == {1, 2}, "quality is judged by the picture alone, alignment beside the source"
    for step in steps:
        assert step["reward"] == pytest.approx((0.6 * step["judge/alignment"] + 0.4 * step["judge/quality"]) / 10)
        parts = [step[f"judge/{name}"] for name in ("alignment", "identity", "quality")]
        assert step["judge/official"] == pytest.approx(sum(parts) / 3)
        assert step["judge/noise"] > 0
    folder = tmp_path / "runs/recorded"
    kept, _ = rendered_gallery.read(folder)
    assert {line["kind"] for line in kept} == {"held-out", "best", "worst"}
    assert all(len(line["sources"]) == 1 for line in kept)
    for line in kept:
        with Image.open(folder / line["sources"][0]) as source:
            assert source.size == (112, 112), "as the policy sees it"

    (tmp_path / "pipeline").rename(tmp_path / "gone")
    replayed, again = run("replayed", replay="only")
    replay, _ = rendered_gallery.read(tmp_path / "runs/replayed")
    assert [line["sources"] for line in replay] == [line["sources"] for line in kept]
    assert [step["reward"] for step in again] == [step["reward"] for step in steps]
    assert replayed.metrics["after"] == recorded.metrics["after"]
    assert "correct" not in recorded.metrics["after"]["greedy"]
