"""Covers tasks/prompt_enhancement.py with tiny real parts: rows, the reward, a whole run, and its replay without renderer or judge."""

import csv
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from demo import tiny_pictures
from qwen_vl_grpo import evaluation, placement, rendered_gallery, rendered_parts, tasks, training
from qwen_vl_grpo.errors import ConfigError, DataError, HardwareError, JudgeError, RenderError
from qwen_vl_grpo.sections import DataSection, TaskSection
from qwen_vl_grpo.tasks import prompt_enhancement

PROMPTS = Path(__file__).resolve().parents[2] / "configs/prompt_enhancement"
TASK = tasks.build(TaskSection(name="prompt_enhancement"))


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    tiny_pictures.sd3(folder / "sd3")
    tiny_pictures.clip(folder / "clip")
    return folder


@pytest.fixture
def sections(parts):
    return {
        "task": {"name": "prompt_enhancement"},
        "renderer": {"model": str(parts / "sd3"), "t5": False, "width": 32, "height": 32, "steps": 1},
        "judge": {"model": str(parts / "clip"), "low": -1.0, "high": 1.0},
    }


@pytest.fixture
def reward(config_of, sections):
    """The reward of a config, called as TRL calls it."""

    def call(pairs, columns=None, **changes):
        function = tasks.rewards(TASK, config_of(**(sections | changes)))[0][0]
        completions = [[{"role": "assistant", "content": completion}] for _, completion in pairs]
        told = {}
        scores = function(
            completions=completions,
            original_prompt=[original for original, _ in pairs],
            log_metric=told.__setitem__,
            log_extra=told.__setitem__,
            **(columns or {}),
        )
        return scores, told

    return call


def read(row, **columns):
    return prompt_enhancement.read_row(row, DataSection(columns=columns), "rewrite")


def test_a_row_becomes_a_chat_without_a_picture():
    sample = read({"id": "colour-01", "kind": "colour", "prompt": " a cat "})
    assert (sample.id, list(sample.images)) == ("colour-01", [])
    assert sample.prompt == [{"role": "system", "content": "rewrite"}, {"role": "user", "content": "a cat"}]
    assert sample.columns == {"original_prompt": "a cat", "kind": "colour"}
    assert read({"caption": "a cat"}).columns["original_prompt"] == read({"x": "a cat"}, question="x").columns["original_prompt"] == "a cat"
    assert {"width": 512, "height": 256}.items() <= read({"prompt": "a cat", "width": 512, "height": "256"}).columns.items()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"words": "a cat"}, "has no column 'prompt' or 'text' or 'caption' or 'question' for the prompt; it has words"),
        ({"prompt": "  "}, "holds '  '; a prompt is text"),
        ({"prompt": None}, "holds None; a prompt is text"),
        ({"prompt": "a cat", "width": 512}, "holds width 512 and height None; give both in pixels, or neither"),
        ({"prompt": "a cat", "width": "wide", "height": 3}, "give both in pixels"),
    ],
)
def test_a_row_at_fault_is_said(row, said):
    with pytest.raises(DataError, match=said):
        read(row)


def test_the_prompts_that_come_along_are_200_of_six_kinds_and_none_is_on_both_sides():
    rows = {split: list(csv.DictReader((PROMPTS / f"{split}.csv").open(encoding="utf-8"))) for split in ("train", "test")}
    prompts = {split: {row["prompt"] for row in part} for split, part in rows.items()}
    assert len(prompts["train"] | prompts["test"]) == len(rows["train"]) + len(rows["test"]) == 200
    assert {row["kind"] for row in rows["train"]} == {row["kind"] for row in rows["test"]}
    assert prompts["test"] >= {
        "a purple rabbit eating carrots", "a green cat with blue eyes", "a square wheel rolling down a hill",
        "the concept of happiness as a creature", "a transparent glass butterfly",
    }  # fmt: skip


def test_the_evaluation_counts_points():
    full = "A cat on a windowsill, soft morning light, highly detailed fur, 4k"
    sample = read({"prompt": "a cat"})
    scores = evaluation.score([sample, sample], [[full], [""]], TASK, [])
    assert (scores["correct"], scores["format"], scores["quality"]) == (0.5, 0.5, 2.5)


def test_a_completion_is_scored_by_its_picture_and_an_empty_one_not_at_all(reward):
    scores, told = reward([("a cat", "a cat in the sun"), ("a cat", "Sure! Here is the prompt: a cat in the sun"), ("a cat", " ")])
    assert scores[0] == scores[1] == pytest.approx((told["cosine"][0] + 1) / 2)
    assert scores[2] is None and told["cosine"][2] is None
    assert told["rendered/empty"] == pytest.approx(1 / 3)
    assert reward([("a cat", "")])[0] == [None]


def test_3000_tokens_are_drawn_as_far_as_the_renderer_reads(reward):
    scores, _ = reward([("a cat", "a cat " * 1500)])
    assert 0 < scores[0] < 1


def test_penalties_are_taken_off(reward):
    pairs = [("a cat", "a cat"), ("a cat", 'a cat and a huge banner with the words "a cat" in red ink'), ("a cat", "fine fur " * 15)]
    plain, _ = reward(pairs)
    less, told = reward(pairs, penalties={"copying": 0.5, "painted_text": 0.25, "length": 0.1, "longest": 20})
    assert [before - after for before, after in zip(plain, less, strict=True)] == pytest.approx([0.5, 0.25, 0.35])
    assert told["rendered/penalty"] == pytest.approx((0.5 + 0.25 + 0.35) / 3)


def test_memory_is_given_back_every_few_steps(reward, monkeypatch):
    given_back = []
    for step in range(12):
        monkeypatch.setattr(placement, "release", lambda step=step: given_back.append(step))
        reward([("a cat", "")], {"trainer_state": SimpleNamespace(global_step=step)}, placement={"empty_cache_every": 5})
    assert given_back == [0, 5, 10]


def test_a_row_may_have_a_size_of_its_own(reward):
    scores, _ = reward([("a cat", "a cat"), ("a cat", "a cat")], {"width": [48, None], "height": [32, None]})
    assert scores[0] != scores[1]


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"renderer": {"name": "sd4"}}, ConfigError, "there is no renderer 'sd4'; take sd3"),
        ({"judge": {"name": "clap"}}, ConfigError, "there is no judge 'clap'; take clip or complex_edit or mmmg"),
        ({"renderer": {"model": "nowhere/to/be/found"}}, RenderError, "there is no such folder here"),
        ({"placement": {"renderer": "cuda:5"}}, HardwareError, "placement.renderer: there is no cuda:5 here"),
        ({"placement": {"judge": "gpu"}}, ConfigError, "placement.judge: 'gpu' is no device"),
        ({"judge": {"replay": "only", "cache": "nowhere.sqlite"}}, JudgeError, "there is no recording nowhere.sqlite"),
    ],
)
def test_a_part_that_is_not_there_is_refused_when_the_run_is_prepared(reward, changes, error, said):
    with pytest.raises(error, match=said):
        reward([("a cat", "a cat")], **changes)


OWN_PARTS = """\
from PIL import Image
from qwen_vl_grpo.interfaces import Judgement

class Painter:
    identity, batch_size = "own", 8
    def render(self, requests):
        return [Image.new("RGB", (4, 4), (len(request.completion), 0, 0)) for request in requests]
    def rest(self):
        pass

class Critic:
    identity, batch_size, concurrency = "own", 1, 4
    def judge(self, pictures):
        return [Judgement(image.getpixel((0, 0))[0] / 100) for _, image in pictures]

def painter(section):
    return Painter()

def critic(section):
    return Critic()
"""


def test_renderer_and_judge_may_be_someones_own(reward, tmp_path):
    (tmp_path / "parts.py").write_text(OWN_PARTS)
    named = {part: {"name": f"{tmp_path}/parts.py:{name}"} for part, name in (("renderer", "painter"), ("judge", "critic"))}
    assert reward([("a cat", "a cat"), ("a cat", "a cat in rain")], **named)[0] == [0.05, 0.13]
    with pytest.raises(ConfigError, match="defines no function 'sculptor'"):
        reward([("a cat", "a cat")], renderer={"name": f"{tmp_path}/parts.py:sculptor"})


def weights_of(pipeline):
    digest = hashlib.sha256()
    for part in pipeline.components.values():
        if isinstance(part, torch.nn.Module):
            for weight in part.state_dict().values():
                digest.update(weight.cpu().numpy().tobytes())
    return digest.hexdigest()


def test_a_whole_run_and_its_replay_without_renderer_and_judge(config_of, sections, checkpoint, parts, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train.txt").write_text("a purple cat\na square wheel\na glass butterfly\n")
    (tmp_path / "data/test.csv").write_text("kind,prompt\ncolour,a green cow\n")

    def run(run_id, **judge):
        changes = sections | {"judge": sections["judge"] | {"cache": str(tmp_path / "kept.sqlite")} | judge}
        config = config_of(
            run_id=run_id, output_dir=str(tmp_path / "runs"), model_name=checkpoint("qwen2_vl"), dataset_name=str(tmp_path / "data"),
            dataset_split="train", evaluation={"dataset_split": "test", "samples": 2, "every": 1},
            max_steps=2, batch_size=8, num_generations=4,
            gradient_accumulation_steps=1, max_completion_length=12, learning_rate=1e-3, lora={"enabled": False},
            tracking={"report_to": "wandb", "mode": "offline"}, placement={"empty_cache_every": 1}, **changes,
        )  # fmt: skip
        card = training.train(config)
        lines = [json.loads(line) for line in (config.run_dir / "metrics.jsonl").read_text().splitlines()]
        return card, [line for line in lines if "reward" in line]

    made = []
    build = rendered_parts._generator
    monkeypatch.setattr(rendered_parts, "_generator", lambda *given: made.append(build(*given)) or made[-1])
    recorded, steps = run("recorded")
    assert weights_of(made[0].pipeline) == weights_of(build(made[0]._section, torch.device("cpu"), True).pipeline)
    assert all(step["rendered/render_seconds"] > 0 and step["rendered/judge_seconds"] > 0 for step in steps)
    assert all(-1 <= step["judge/cosine"] <= 1 and step["rendered/failed"] == 0 for step in steps)
    assert recorded.metrics["after"]["sampled"]["quality"] >= 0 and "blind" not in recorded.metrics

    folder = tmp_path / "runs/recorded"
    lines, _ = rendered_gallery.read(folder)
    assert [line["moment"] for line in lines if line["kind"] == "held-out"] == ["before", "step 1", "after"]
    assert [line["moment"] for line in lines if line["kind"] == "best"] == ["step 1", "step 2"]
    assert all(line["reward"] is None or ((folder / line["picture"]).is_file() and "cosine" in line["details"]) for line in lines)
    sent = {path.name.split("_")[0] for path in folder.glob("wandb/*/files/media/images/gallery/*.*")}
    assert sent == {"held-out", "best", "worst"}

    (parts / "sd3").rename(parts / "away-sd3")
    (parts / "clip").rename(parts / "away-clip")
    try:
        replayed, again = run("replayed", replay="only")
        with pytest.raises(RenderError, match="there is no such folder here"):
            run("drawn")
        with pytest.raises(JudgeError, match=r"replay: only: .* were never judged under these settings"):
            run("other", replay="only", low=-0.5)
    finally:
        (parts / "away-sd3").rename(parts / "sd3")
        (parts / "away-clip").rename(parts / "clip")
    assert [step["reward"] for step in again] == [step["reward"] for step in steps]
    assert replayed.metrics["after"] == recorded.metrics["after"]
    assert all(step["rendered/remembered"] == 1 for step in again)
