"""Covers a whole run of image editing with tiny real parts: judged by Complex-Edit's protocol, shown, replayed, and evaluated."""

import json

import pytest
from PIL import Image

from demo import edit_rows, tiny_qwen_image
from demo.images import answer
from demo.judge_server import JudgeServer
from qwen_vl_grpo import cli, rendered_gallery, training


@pytest.fixture
def run(config_of, checkpoint, tmp_path):
    """Train for two steps; returns the card and the steps' metrics."""
    edit_rows.write(tmp_path / "edits")
    tiny_qwen_image.build(tmp_path / "pipeline", "qwen_image_edit", checkpoint("qwen2_5_vl"))

    def train(run_id, learning_rate=1e-5, **judge):
        config = config_of(
            run_id=run_id, output_dir=str(tmp_path / "runs"), model_name=checkpoint("qwen2_5_vl"), dataset_name=str(tmp_path / "edits"),
            dataset_split="test_real", data={"complexity": 2, "limit": 8}, evaluation={"held_out": 0.25, "samples": 1, "blind": False},
            task={"name": "image_edit"}, max_steps=2, batch_size=4, num_generations=4, gradient_accumulation_steps=1,
            max_completion_length=8, loss_type="dr_grpo", lora={"r": 4, "alpha": 8}, tracking={"report_to": "none"},
            renderer={"name": "qwen_image_edit", "model": str(tmp_path / "pipeline"), "width": 32, "height": 32, "steps": 1},
            learning_rate=learning_rate, judge={"name": "complex_edit", "votes": 2, "cache": str(tmp_path / "kept.sqlite")} | judge,
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


@pytest.fixture
def evaluate(tmp_path, capsys):
    """Run `grpo evaluate` with a cache of judgements of its own, and return what it told."""

    def told(*command):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(["evaluate", *command, "--json", "--set", f"judge.cache={tmp_path / 'evaluated.sqlite'}"])
        assert ended.value.code == 0
        return json.loads(capsys.readouterr().out)

    return told


def test_a_run_and_its_base_are_evaluated_from_their_own_states_as_training_scored_them(run, evaluate):
    with JudgeServer(answer) as server, tiny_qwen_image.small_sources():
        card, _ = run("edited", learning_rate=0.05, base_url=server.url)
        trained = len(server.asked)
        told, evaluated = evaluate("edited", "--against", "base"), len(server.asked)
        again = evaluate("edited")
    assert trained < evaluated == len(server.asked), "the judge is asked anew, and then what was answered is kept"
    assert again["scores"] == told["tuned"]["scores"]
    for who, when in (("base", "before"), ("tuned", "after")):
        scored, trainings = told[who]["scores"]["greedy"], card.metrics[when]["greedy"]
        assert {key: scored[key] for key in trainings} == trainings
        alignment, identity, quality, official = (
            scored["measures"][f"told/{name}"]["mean"] for name in ("alignment", "identity", "quality", "official")
        )
        assert official == pytest.approx((alignment + identity + quality) / 3, abs=1e-4)
    assert card.metrics["before"]["greedy"]["rewards"] != card.metrics["after"]["greedy"]["rewards"]
