"""Covers the figures of a step's groups, against numbers worked out by hand."""

import pytest
import torch

from qwen_vl_grpo import groups

NAN = float("nan")


def test_spread_best_and_worst_are_means_over_groups_of_the_weighted_reward():
    rewards = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [1.0, 1.0]])
    told = groups.statistics(rewards, torch.tensor([1.0, 0.5]), 2)
    assert told == pytest.approx({"groups/without_spread": 1.0, "groups/reward_std": 0.0, "groups/best": 1.25, "groups/worst": 1.25})
    told = groups.statistics(rewards, torch.tensor([1.0, 1.0]), 2)
    assert told == pytest.approx({"groups/without_spread": 0.5, "groups/reward_std": 0.5**0.5 / 2, "groups/best": 2.0, "groups/worst": 1.5})


def test_completions_that_nothing_judged_are_left_out():
    rewards = torch.tensor([[NAN, NAN], [3.0, NAN], [NAN, NAN], [NAN, NAN]])
    told = groups.statistics(rewards, torch.tensor([1.0, 1.0]), 2)
    assert told == {"groups/without_spread": 1.0, "groups/reward_std": 0.0, "groups/best": 3.0, "groups/worst": 3.0}
    assert groups.statistics(rewards[2:], torch.tensor([1.0, 1.0]), 2) == {}


def test_unique_completions_are_counted_inside_a_group():
    assert groups.unique([[1], [1], [1], [2]], 2) == {"groups/unique_completions": 1.5}
    assert groups.unique([[1], [1], [2], [2]], 2) == {"groups/unique_completions": 1.0}


def test_a_group_that_other_processes_share_is_not_counted():
    assert groups.unique([[1], [2], [3]], 2) == {}


def test_a_group_is_level_if_all_that_were_judged_earn_the_same():
    rewards = torch.tensor([[0.6, NAN], [0.6, NAN], [NAN, NAN], [0.6, 0.0], [0.5, 0.0], [NAN, NAN], [NAN, NAN], [NAN, NAN], [NAN, NAN]])
    assert groups.level(rewards, torch.tensor([0.3, 1.0]), 3).tolist() == [True] * 3 + [False] * 3 + [True] * 3


def test_eight_equal_rewards_have_no_spread_though_their_standard_deviation_is_rounded():
    assert torch.full((8,), 0.6).std() > 1e-8
    assert groups.statistics(torch.full((8, 1), 0.6), torch.ones(1), 8)["groups/without_spread"] == 1
