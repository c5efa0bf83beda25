"""Covers the shapes demonstration as a command: the whole path with few lessons, its control, its table and the answer by run_id."""

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.commands.conftest import demonstration

SMALL = (
    "max_steps=2", "warmup.steps=20", "warmup.batch_size=8", "batch_size=16", "data.limit=12", "evaluation.samples=1",
    "evaluation.dataset_split=validation", "renderer.steps=2", "judge.name=by_states.py:judge",
)  # fmt: skip
BY_STATES = """\
from qwen_vl_grpo.interfaces import Judgement

class ByStates:
    identity, batch_size, concurrency = "by states", 16, 1

    def judge(self, pictures):
        return [Judgement(int(request.conditioning.sha256[0], 16) / 16) for request, _ in pictures]  # the mean of sixteenths is exact

def judge(section):
    return ByStates()
"""
BRIEFLY = """\
from demo import shapes, tiny_painter

tiny_painter.LESSONS, tiny_painter.AUTOENCODER_STEPS, tiny_painter.TRANSFORMER_STEPS = 48, 10, 10
shapes.main()
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """What the command said, and its outputs; a DiT of few lessons draws much the same of all states, so another judge tells them apart."""
    folder = tmp_path_factory.mktemp("shapes")
    (folder / "by_states.py").write_text(BY_STATES, encoding="utf-8")
    done = demonstration(folder, "-c", BRIEFLY, *(argument for setting in SMALL for argument in ("--set", setting)))
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split()), folder / "outputs/demo"


def test_the_run_is_told_by_a_table_and_answers_by_its_id(finished):
    said, outputs = finished
    assert "shapes-demo: held-out prompts, before and after GRPO" in said and "inference.py --run_id shapes-demo" in said
    card = json.loads((outputs / "shapes-demo/run.json").read_text(encoding="utf-8"))
    assert (card["state"], card["dataset"]["held_out"], card["metrics"]["after"]["greedy"]["rows"]) == ("finished", "validation", 12)
    drawn = json.loads((outputs / "shapes-s0.json").read_text(encoding="utf-8"))["drawn"]
    assert list(drawn) == ["its words", "no words", "the right words"]
    assert all(list(moments) == ["before", "after", "control"] for moments in drawn.values())


def test_nothing_but_the_head_learns_and_in_the_control_nothing_at_all(finished):
    _, outputs = finished
    before = load_file(outputs / "shapes-policy-s0/model.safetensors")
    for run, learned in (("shapes-demo", {"lm_head.weight"}), ("shapes-unsaid", set())):
        after = load_file(outputs / run / "checkpoint-2/model.safetensors")
        assert after.keys() == before.keys()
        assert {name for name in before if not torch.equal(before[name], after[name])} == learned
