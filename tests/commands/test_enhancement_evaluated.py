"""Covers `grpo evaluate` of a run that rewrites prompts: its answers are drawn and judged, and what was answered is kept."""

import json

import pytest

from demo import tiny_pictures
from tests.made_runs import make_run

PROMPTS = ["a red cat", "a green dog", "a blue wheel"]


@pytest.fixture(scope="module")
def rewriter(workshop):
    """The id of a run with a tiny Stable Diffusion 3 and a tiny CLIP behind its reward."""
    tiny_pictures.sd3(workshop.folder / "evaluated-sd3")
    tiny_pictures.clip(workshop.folder / "evaluated-clip")
    (workshop.folder / "prompts").mkdir()
    (workshop.folder / "prompts/train.txt").write_text("\n".join(PROMPTS) + "\n")
    with pytest.MonkeyPatch.context() as there:
        there.setenv("GRPO_HOME", str(workshop.folder / "home"))
        there.chdir(workshop.folder)
        make_run(
            workshop.folder / "runs", "rewriter", "tiny-qwen2.5-vl", dataset_name="prompts", dataset_split="train",
            task={"name": "prompt_enhancement"}, placement={"renderer": "cpu", "judge": "cpu"},
            renderer={"model": "evaluated-sd3", "t5": False, "width": 32, "height": 32, "steps": 1},
            judge={"model": "evaluated-clip", "low": -0.5, "high": 0.5, "cache": "rewriter.sqlite"},
        )  # fmt: skip
    return "rewriter"


def test_a_rewriter_and_its_base_are_drawn_and_judged_once(workshop, rewriter):
    command = ("evaluate", rewriter, "--samples", "1", "--json")
    done = workshop.grpo(*command, "--against", "base")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [told[who]["scores"][kind]["n"] for who in ("base", "tuned") for kind in ("greedy", "sampled")] == [len(PROMPTS)] * 4
    assert told["tuned"]["protocol"]["drawn"], "what draws and judges is part of the protocol"
    files = {path: path.read_bytes() for path in (workshop.run_dir(rewriter) / "evaluations").glob("*/items.jsonl")}
    again = workshop.grpo(*command)
    assert again.returncode == 0, again.stderr
    assert files == {path: path.read_bytes() for path in (workshop.run_dir(rewriter) / "evaluations").glob("*/items.jsonl")} != {}
    assert json.loads(again.stdout)["scores"] == told["tuned"]["scores"]
