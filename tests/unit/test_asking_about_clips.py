"""Covers putting questions about clips to runs: each sees the frames and the prompt that it learned with; clips at fault are named."""

import base64
import json

import numpy
import pytest

from demo import clips
from qwen_vl_grpo import answering, dataset, loading, opening, registry
from qwen_vl_grpo.items import Item
from tests.made_runs import make_run

ASKED = "Which of these happen?\n(1) reach\n(2) grasp"


@pytest.fixture
def run_of(checkpoint, tmp_path):
    """A run that learned from clips, with small frames."""
    clips.write(tmp_path / "long.mp4", clips.counting(40), fps=8.0)

    def make(family="qwen2_5_vl", **video):
        section = {"min_pixels": 28 * 28, "max_pixels": 64 * 64} | video
        make_run(tmp_path, "clips", checkpoint(family), task={"name": "video_actions"}, video=section)
        return loading.load(*registry.resolve("clips"))

    return make


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("mode", ["video", "frames"])
def test_a_clip_is_asked_about_with_the_frames_and_the_prompt_of_training(run_of, tmp_path, family, mode):
    run = run_of(family, mode=mode, fps=1.5)
    turns = [{"from": "human", "value": f"<video>\n{ASKED}"}, {"from": "gpt", "value": "<answer>(1)</answer>"}]
    (tmp_path / "train.json").write_text(json.dumps([{"id": 0, "video": "long.mp4", "conversations": turns}]), encoding="utf-8")
    rows, _ = dataset.prepare(run.config, run.task, run.processor, str(tmp_path / "train.json"), "train")
    (learned,) = dataset.to_samples(rows)
    item = Item("1", [{"role": "user", "content": ASKED}], folder=tmp_path, videos=["long.mp4"])
    how = answering.How(system_prompt=run.task.system_prompt)
    asked = answering._question(run, opening.opened_of(item, False), how, 4096, []).sample
    assert loading.prompt_ids(run.processor, asked) == loading.prompt_ids(run.processor, learned)
    seen, known = ([*sample.images, *(clip.frames for clip in sample.videos)] for sample in (asked, learned))
    assert len(seen) == len(known) >= 1
    assert all(numpy.array_equal(numpy.array(one), numpy.array(other)) for one, other in zip(seen, known, strict=True))
    assert [clip.indices for clip in asked.videos] == [clip.indices for clip in learned.videos]


def test_a_clip_at_fault_is_named_and_the_others_are_answered(run_of, tmp_path):
    run, chat = run_of(), [{"role": "user", "content": ASKED}]
    asked = [Item(name, chat, folder=tmp_path, videos=[f"{name}.mp4"]) for name in ("long", "gone")]
    records = {record["item"]: record for record in answering.ask([run], asked, answering.How(backend="transformers"))}
    assert records["long"]["error"] is None
    assert records["long"]["videos"] == ["long.mp4"]
    assert records["long"]["completion_tokens"] > 0
    assert "gone.mp4" in records["gone"]["error"]
    data = "data:video/mp4;base64," + base64.b64encode((tmp_path / "long.mp4").read_bytes()).decode()
    parts = [{"type": "video"}, {"type": "text", "text": ASKED}]
    how = answering.How(backend="transformers")
    (sent,) = answering.ask([run], [Item("sent", [{"role": "user", "content": parts}], videos=[data])], how)
    assert sent["completion"] == records["long"]["completion"]
    assert sent["videos"][0].startswith("data:video/mp4;base64,… (")
    words = [Item("long", chat, folder=tmp_path)]
    assert answering.key_of(run, asked[0], answering.How()) != answering.key_of(run, words[0], answering.How())
