"""Covers the completions of docs/reward_logic.md: right ones earn everything, hacks earn nothing for their answer."""

import pytest

from docs import reward_logic, reward_logic_video
from qwen_vl_grpo import rewards
from qwen_vl_grpo.tasks.visual_reasoning import REWARDS

CASES = [(question["gold"], case, next(iter(case))) for question in reward_logic.load() for case in question["cases"]]
PARTS = [name for mode in REWARDS for name, _ in REWARDS[mode]]


def earned(mode, case, gold):
    columns = {key: [value] for key, value in gold.items()}
    scores = {name: rewards.find(name)(completions=[reward_logic.completion(case)], **columns)[0] for name, _ in REWARDS[mode]}
    return scores, sum(scores[name] * weight for name, weight in REWARDS[mode])


@pytest.mark.parametrize(("gold", "case", "kind"), CASES, ids=[f"{kind}: {case[kind]}" for _, case, kind in CASES])
def test_a_completion_earns_what_its_kind_says(gold, case, kind):
    scores, total = earned("strict", case, gold)
    if kind == "right":
        assert (scores, total) == ({"tags_reward": 1.0, "well_formed_reward": 1.0, "solved_reward": 1.0}, 3.0)
    else:
        assert scores["solved_reward"] == 0.0
        assert total <= 1.0


def test_there_are_sixty_completions_and_hacks_that_the_documented_rewards_pay_for():
    hacks = [(gold, case) for gold, case, kind in CASES if kind == "hack"]
    assert len(CASES) >= 60
    assert len(hacks) >= 20
    assert sum(earned("documented", case, gold)[1] >= 2.0 for gold, case in hacks) >= 8


def test_every_reward_of_a_task_has_a_range():
    of_clips = {name for listed in reward_logic_video.TASKS.values() for name, _ in listed}
    assert {*PARTS, *of_clips} == set(rewards.RANGES) == set(rewards.REWARDS)
