"""Covers the noise gate: a group that a judge's noise explains teaches nothing, and every other one as before."""

import datasets
import pandas
import pytest
import torch
from pydantic import ValidationError

from demo import tiny_qwen_image
from qwen_vl_grpo import assembly, groups, policy, tasks
from qwen_vl_grpo.ledger import Ledger
from qwen_vl_grpo.rendered_sections import JudgeSection

NAN = float("nan")
OWN_JUDGE = """\
import numpy
from qwen_vl_grpo.interfaces import Judgement

class Doubtful:
    identity, batch_size, concurrency = "doubtful", 8, 1

    def judge(self, pictures):
        scores = [float(numpy.asarray(image).mean() / 255) for _, image in pictures]
        return [Judgement(score, {"noise": float("doubt" in request.original)}) for (request, _), score in zip(pictures, scores)]

def judge(section):
    return Doubtful()
"""


def test_a_group_within_the_noise_gets_its_mean_and_the_others_keep_their_scores():
    scores, noises = torch.tensor([0.4, 0.6, 0.1, 0.9]), torch.tensor([0.1, 0.1, 0.1, 0.1])
    gated, share = groups.noise_gate(scores, noises, 2, 1.5)  # standard deviations 0.14 and 0.57
    assert (gated.tolist(), share) == (pytest.approx([0.5, 0.5, 0.1, 0.9]), 0.5)
    assert groups.noise_gate(scores, noises, 2, 1.4) == (pytest.approx(scores), 0)
    assert groups.noise_gate(scores, noises, 2, 6)[1] == 1


def test_what_was_not_judged_stays_so_and_an_unknown_noise_gates_nothing():
    scores = torch.tensor([0.4, 0.6, NAN, 0.4, 0.6, 0.5, NAN, NAN, NAN, NAN, 0.5, NAN])
    noises = torch.tensor([NAN, 0.2, 9.0, NAN, NAN, NAN, NAN, NAN, NAN, NAN, 0.2, NAN])
    gated, share = groups.noise_gate(scores, noises, 3, 1)
    assert gated.tolist() == pytest.approx([0.5, 0.5, NAN, *scores[3:].tolist()], nan_ok=True)
    assert share == pytest.approx(1 / 3)
    assert groups.noise_gate(torch.tensor([NAN, NAN]), torch.tensor([NAN, NAN]), 2, 1)[1] == 0


def test_scores_that_do_not_differ_and_a_judge_that_never_wavers_are_left_alone():
    assert groups.noise_gate(torch.tensor([0.5, 0.5]), torch.tensor([0.1, 0.1]), 2, 1)[1] == 0
    assert groups.noise_gate(torch.tensor([0.5, 0.6]), torch.zeros(2), 2, 1)[1] == 0


@pytest.mark.parametrize(("generations", "votes", "times"), [(8, 3, 1.63), (8, 5, 1.52), (4, 3, 2.02)])
def test_one_in_twenty_groups_of_noise_alone_gets_through_and_nearly_all_that_differ_clearly(generations, votes, times):
    """`times` is the root of F's 95% quantile for (generations - 1, generations * (votes - 1)) degrees of freedom."""
    asked = torch.randn(4000, generations, votes, generator=torch.Generator().manual_seed(0))
    noises = asked.std(-1).div(votes**0.5).flatten()
    assert groups.noise_gate(asked.mean(-1).flatten(), noises, generations, times)[1] == pytest.approx(0.95, abs=0.01)
    assert groups.noise_gate(asked.mean(-1).flatten(), noises, generations, 1)[1] == pytest.approx(0.55, abs=0.03)
    differ = asked.mean(-1) + 6 * torch.arange(generations) / generations  # by about three times the noise
    assert groups.noise_gate(differ.flatten(), noises, generations, times)[1] < 0.05


def test_a_gate_without_a_noise_is_refused():
    with pytest.raises(ValidationError, match="one vote does not tell a judge's noise; set votes to 3 or more"):
        JudgeSection(name="complex_edit", noise_gate=1.6)
    with pytest.raises(ValidationError, match="has no noise; remove it"):
        JudgeSection(noise_gate=1.6)
    assert JudgeSection(name="mmmg", noise_gate=1.6, votes=3).noise_gate == 1.6


@pytest.fixture
def run_of(checkpoint, config_of, tmp_path):
    """A trainer as a run has it, whose judge is sure of one prompt's pictures and not of the other's, with a whole step done."""
    tiny_qwen_image.build(tmp_path / "renderer", "qwen_image", checkpoint("qwen2_5_vl"))
    (tmp_path / "doubtful.py").write_text(OWN_JUDGE, encoding="utf-8")
    ledger = Ledger(tmp_path, 1)

    def run(gate, other="a cat"):
        prompts = [other, "a doubtful cat"]
        chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
        rows = datasets.Dataset.from_dict({"prompt": chats, "images": [[], []], "original_prompt": prompts})
        rows = rows.cast_column("images", datasets.List(datasets.Image()))
        config = config_of(
            model_name=checkpoint("qwen2_5_vl"), output_dir=str(tmp_path), task={"name": "text_to_image"}, max_steps=1, batch_size=8,
            gradient_accumulation_steps=1, num_generations=4, max_completion_length=6, scale_rewards="none", lora={"enabled": False},
            renderer={"name": "qwen_image", "model": str(tmp_path / "renderer"), "width": 32, "height": 32, "steps": 2},
            judge={"name": f"{tmp_path}/doubtful.py:judge", "noise_gate": gate}, tracking={"report_to": "none", "log_completions": True},
        )  # fmt: skip
        task = tasks.build(config.task)
        functions, weights = map(list, zip(*tasks.rewards(task, config), strict=True))
        prepared = assembly.Prepared(task, functions, weights, policy.load_processor(config), rows, [], None, 0)
        trainer = assembly.build_trainer(config, prepared, policy.load_model(config), tmp_path, ledger)
        trainer.train()
        table = pandas.read_parquet(tmp_path / "completions/completions_00001.parquet")
        return trainer.state.log_history[0], table[table["prompt"].str.contains("doubtful")], table

    yield run
    ledger.close()


def test_a_doubtful_group_of_a_step_teaches_nothing_and_its_own_scores_stay_in_the_table(run_of):
    logged, doubtful, table = run_of(1.0)
    assert logged["grad_norm"] > 0
    assert logged["groups/gated"] == logged["groups/without_spread"] == 0.5
    assert doubtful["judge_score"].nunique() > 1
    assert doubtful["rendered_reward"].tolist() == pytest.approx([doubtful["judge_score"].mean()] * 4)
    assert doubtful["advantage"].tolist() == pytest.approx([0.0] * 4, abs=1e-6)
    sure = table.drop(doubtful.index)
    assert sure["rendered_reward"].tolist() == pytest.approx(sure["judge_score"].tolist())
    assert sure["advantage"].abs().min() > 1e-6


def test_a_step_of_noise_alone_has_no_gradient_at_all(run_of):
    logged, *_ = run_of(1.0, "a doubtful dog")
    assert (logged["groups/gated"], logged["groups/without_spread"], logged["grad_norm"]) == (1, 1, 0)


def test_without_a_gate_every_group_teaches(run_of):
    logged, doubtful, _ = run_of(0.0)
    assert "groups/gated" not in logged
    assert doubtful["advantage"].abs().max() > 1e-6
