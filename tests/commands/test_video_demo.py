"""Covers the video demonstration as a command: a few steps on real clips, the controls without time, and its page."""

import json

SMALL = ("max_steps=2", "warmup.steps=2", "warmup.batch_size=4", "batch_size=16", "data.limit=12", "evaluation.samples=1")


def test_a_run_of_two_steps_is_scored_with_and_without_time_and_written_down(demo, tmp_path):
    (tmp_path / "docs").mkdir()
    done = demo("demo.motion", *(argument for setting in SMALL for argument in ("--set", setting)))
    assert done.returncode == 0, done.stderr
    card = json.loads((tmp_path / "outputs/demo/video-demo/run.json").read_text(encoding="utf-8"))
    assert (card["state"], card["metrics"]["after"]["greedy"]["rows"]) == ("finished", 12)
    assert card["preprocessing"]["clips"]
    ends = json.loads((tmp_path / "outputs/demo/video-s0.json").read_text(encoding="utf-8"))
    assert {name: scores["n"] for name, scores in ends["controls"].items()} == {
        "the clips as they are": 12, "one frame of each, repeated": 12, "their frames in a drawn order": 12, "white frames": 12,
        "played forwards alone": 6, "played backwards alone": 6,
    }  # fmt: skip
    assert ends["controls"]["the clips as they are"]["correct"] == card["metrics"]["after"]["greedy"]["correct"]
    assert "before and after GRPO" in " ".join(done.stdout.split())
    page = demo("demo.motion_page")
    assert page.returncode == 0, page.stderr
    assert (tmp_path / "docs/video_demo.md").read_text(encoding="utf-8").count("\n| ") == 9
    evaluated = demo("qwen_vl_grpo", "evaluate", "video-demo", "--backend", "transformers", "--json")
    assert evaluated.returncode == 0, evaluated.stderr
    told = json.loads(evaluated.stdout)
    assert told["protocol"]["preprocessing"]["video"]["frames"] == 8
    after = card["metrics"]["after"]["greedy"]
    assert {key: told["scores"]["greedy"][key] for key in after} == after
