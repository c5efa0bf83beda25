"""Covers text to image as a command: a run with a judge behind HTTP, a judge that breaks on the way, a key that is missing or kept."""

import json

import pytest

from demo import images, knowledge_rows, tiny_qwen_image
from demo.judge_server import JudgeServer, Response

KEY = "sk-never-to-be-told"


@pytest.fixture(scope="module")
def drawn(workshop):
    """What the config of a run that draws has beside the tiny one's keys."""
    tiny_qwen_image.build(workshop.folder / "qwen-image", "qwen_image", workshop.folder / "tiny-qwen2.5-vl")
    knowledge_rows.write(workshop.folder / "knowledge")
    renderer = {"name": "qwen_image", "model": "qwen-image", "width": 32, "height": 32, "steps": 1, "guidance_scale": 1}
    return {
        "task": {"name": "text_to_image"}, "dataset_name": "knowledge", "rewards": [], "renderer": renderer, "max_steps": 2,
        "judge": {"name": "mmmg", "cache": "judgements.sqlite", "attempts": 1},
        "lora": {"enabled": True}, "data": {"limit": 8, "decoys": 1},
    }  # fmt: skip


def judge(drawn, server):
    return drawn | {"judge": drawn["judge"] | {"base_url": server.url}}


@pytest.fixture
def own_key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def test_a_run_is_judged_over_http_and_the_key_is_nowhere(workshop, drawn, own_key):
    with JudgeServer(images.answer) as server:
        done = workshop.train("painted", **judge(drawn, server), tracking={"report_to": "wandb", "mode": "offline"})
    assert done.returncode == 0, done.stderr
    assert {asked.headers["authorization"] for asked in server.asked} == {f"Bearer {KEY}"}
    steps = [line for line in workshop.metrics("painted") if "loss" in line]
    assert all(0 < step["reward"] < 1 and 0 <= step["judge/fidelity"] <= 1 and step["rendered/embed_seconds"] > 0 for step in steps)
    files = [path for path in workshop.folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert {"gallery.jsonl", "judgements.sqlite", "run-painted.wandb"} <= {path.name for path in files}
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    assert KEY not in done.stdout + done.stderr


def test_a_drawn_run_and_its_base_are_evaluated_by_the_judge_and_kept(workshop, drawn, own_key):
    with JudgeServer(images.answer) as server:
        done = workshop.train("painted-again", **judge(drawn, server) | {"seed": 2})
        assert done.returncode == 0, done.stderr
        asked = len(server.asked)
        command = ("evaluate", "painted-again", "--limit", "4", "--samples", "1", "--json")
        first = workshop.grpo(*command, "--against", "base")
        assert first.returncode == 0, first.stderr
        told, asked_now = json.loads(first.stdout), len(server.asked)
        assert asked_now > asked
        again = workshop.grpo(*command)
        assert again.returncode == 0 and len(server.asked) == asked_now
    assert told["tuned"]["protocol"]["generation"]["backend"] == "transformers"
    assert [told[who]["scores"]["greedy"]["n"] for who in ("base", "tuned")] == [4, 4]
    assert 0 < told["tuned"]["scores"]["greedy"]["rewards"]["rendered_reward"] <= 1
    assert json.loads(again.stdout)["scores"] == told["tuned"]["scores"]
    assert KEY not in first.stdout + first.stderr


def test_a_judge_that_breaks_on_the_way_ends_the_run_and_no_score_is_made_up(workshop, drawn, refused):
    with JudgeServer(lambda asked: images.answer(asked) if asked.number <= 8 else Response(status=500)) as server:
        said = refused(workshop.train("broken-off", **judge(drawn, server) | {"seed": 1}))
    assert "pictures could not be drawn or judged, and judge.most_failures allows 25%" in said
    assert "500" in said
    assert [line["step"] for line in workshop.metrics("broken-off") if "reward" in line] == [1]
    assert workshop.card("broken-off")["state"] == "failed"


def test_a_missing_key_is_said_before_anything_is_loaded(workshop, drawn, refused, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    said = refused(workshop.train("keyless", **drawn))
    assert "OPENAI_API_KEY is not set, and the judge needs it" in said
    assert not workshop.run_dir("keyless").exists()
