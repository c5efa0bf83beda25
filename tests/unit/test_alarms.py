"""Covers the alarms: each rings on the series that it is for, is silent on a healthy run, and starts and ends once."""

from typing import get_args

import pytest

from qwen_vl_grpo.alarms import ALARMS, STEPS, Watch, active, replay
from qwen_vl_grpo.sections import AlarmName

HEALTHY = {
    "reward": 0.5, "reward_std": 0.4, "loss": 1e-8, "grad_norm": 0.3, "entropy": 0.5, "frac_reward_zero_std": 0.1,
    "groups/without_spread": 0.1, "groups/best": 1.0, "completions/clipped_ratio": 0.02, "completions/mean_length": 200.0,
    "rewards/strict_format_reward_func/mean": 0.1, "rewards/correctness_reward_func/mean": 0.4,
    "rollouts/effective_sample_size": 0.99, "rollouts/logp_difference/mean": 0.01, "rollouts/masked_share": 0.0,
    "kl": 0.02, "step_time": 10.0, "rendered/failed": 0.0, "rendered/empty": 0.0, "eval/greedy/correct": 0.5,
}  # fmt: skip
SICK = {
    "clipped": {"completions/clipped_ratio": 0.6},
    "groups_without_spread": {"groups/without_spread": 0.97},
    "format_without_correctness": {"rewards/strict_format_reward_func/mean": 0.9},
    "length_collapse": {"completions/mean_length": 60.0},
    "length_runaway": {"completions/mean_length": 400.0},
    "entropy_collapse": {"entropy": 0.01},
    "kl": {"kl": 1.5},
    "reward_alone": {"reward": 0.6, "eval/greedy/correct": 0.4},
    "judge_failures": {"rendered/failed": 0.1},
    "silent": {"rendered/empty": 0.2},
    "slow_step": {"step_time": 30.0},
    "not_a_number": {"rewards/correctness_reward_func/mean": None},
    "zero_reward": {"reward": 0.0, "reward_std": 0.0},
    "sampling_disagreement": {"rollouts/effective_sample_size": 0.3},
}


NEAR = {
    "clipped": {"completions/clipped_ratio": 0.45},
    "groups_without_spread": {"groups/without_spread": 0.9},
    "format_without_correctness": {"rewards/strict_format_reward_func/mean": 0.9, "rewards/correctness_reward_func/mean": 0.5},
    "length_collapse": {"completions/mean_length": 110.0},
    "length_runaway": {"completions/mean_length": 400.0, "reward": 0.7, "step_time": 35.0},  # longer, slower, and it earns more
    "entropy_collapse": {"entropy": 0.06},
    "kl": {"kl": 0.9},
    "reward_alone": {"reward": 0.6, "eval/greedy/correct": 0.46},  # within what the few rows of an evaluation move by chance
    "judge_failures": {"rendered/failed": 0.04},
    "silent": {"rendered/empty": 0.08},
    "not_a_number": {"loss": 0.0},
    "zero_reward": {"reward": 0.0},  # no mean, but a spread
    "slow_step": {"step_time": 19.0},
    "sampling_disagreement": {"rollouts/masked_share": 0.2},
}


def series(*parts, cadence=1):
    """Entries of a run from (how many, what differs from a healthy one) in order."""
    changes = [change for count, change in parts for _ in range(count)]
    return [{"step": cadence * (i + 1)} | HEALTHY | change for i, change in enumerate(changes)]


def test_every_alarm_has_a_sick_series_one_that_is_near_it_and_a_name_in_the_config():
    assert set(SICK) == set(NEAR) == set(get_args(AlarmName)) == {alarm.name for alarm in ALARMS}


@pytest.mark.parametrize("name", SICK)
def test_an_alarm_rings_alone_and_says_what_to_do(name):
    told = active(series((STEPS, {}), (STEPS, SICK[name])))
    assert set(told) == {name}
    assert len(told[name].split(". ", 1)[1]) > 20


@pytest.mark.parametrize("name", NEAR)
def test_what_comes_near_an_alarm_rings_none(name):
    assert active(series((STEPS, {}), (STEPS, NEAR[name]))) == {}


@pytest.mark.parametrize("count", [1, STEPS - 1, STEPS, 5 * STEPS])
def test_a_healthy_run_has_no_alarm(count):
    assert replay(series((count, {}))) == []


@pytest.mark.parametrize("name", [name for name in SICK if name != "not_a_number"])
def test_less_than_a_window_says_nothing(name):
    assert active(series((STEPS - 1, SICK[name]))) == {}


def test_a_run_that_learns_its_task_to_the_end_has_no_alarm():
    """Entropy, spread and length go down and the format up, as in the demonstration: what it is for, and no collapse."""
    done = {
        "reward": 0.97, "entropy": 0.02, "groups/without_spread": 0.85, "completions/mean_length": 120.0,
        "rewards/strict_format_reward_func/mean": 1.0, "rewards/correctness_reward_func/mean": 0.95, "eval/greedy/correct": 0.9,
    }  # fmt: skip
    assert replay(series((STEPS, {}), (4 * STEPS, done))) == []


def test_the_window_counts_steps_where_only_every_tenth_is_logged():
    assert active(series((1, SICK["zero_reward"]), cadence=10)) == {}
    assert set(active(series((2, SICK["zero_reward"]), cadence=10))) == {"zero_reward"}


@pytest.mark.parametrize("sick", [{"rollouts/logp_difference/mean": 0.2}, {"rollouts/masked_share": 0.3}])
def test_a_gap_in_log_probabilities_and_masked_weights_are_a_disagreement_too(sick):
    assert set(active(series((STEPS, sick)))) == {"sampling_disagreement"}


def evaluated(*scores):
    """The lines of a run whose reward rises slowly, with a line of its own for each score, before the step that it belongs to."""
    lines = []
    for step in range(1, 10 * len(scores) + 1):
        if step % 10 == 0:
            lines.append({"step": step, "eval/greedy/correct": scores[step // 10 - 1]})
        lines.append({"step": step} | {key: value for key, value in HEALTHY.items() if "eval" not in key} | {"reward": 0.3 + 0.005 * step})
    return lines


@pytest.mark.parametrize(
    ("scores", "rang"),
    [
        ((0.5, 0.6, 0.5, 0.6, 0.5), []),
        ((0.5, 0.6, 0.5, 0.5, 0.4), [("reward_alone", 40)]),
        ((0.2, 0.3, 0.4, 0.5, 0.6), []),
        ((0.5, 0.4), []),
    ],
    ids=["one fall", "two in a row", "rising", "two alone"],
)
def test_a_held_out_score_that_falls_twice_while_the_reward_rises_rings_at_the_second(scores, rang):
    assert [(alarm["name"], alarm["first_step"]) for alarm in replay(evaluated(*scores))] == rang


def test_a_run_without_vllm_or_known_rewards_has_fewer_alarms_and_no_error():
    bare = [{"step": step, "reward": 0.5, "rewards/own/mean": 0.5} for step in range(1, 3 * STEPS)]
    assert replay(bare) == []


def test_an_older_run_is_judged_by_the_share_that_trl_logs():
    old = [{"step": step, "reward": 1.0, "reward_std": 0.1, "frac_reward_zero_std": 1.0} for step in range(1, STEPS + 1)]
    assert set(active(old)) == {"groups_without_spread"}


@pytest.mark.parametrize("key", ["loss", "grad_norm", "reward"])
def test_what_is_no_number_rings_at_once(key):
    assert key in active(series((1, {key: float("nan")})))["not_a_number"]


def test_an_alarm_starts_once_and_ends_once():
    watch = Watch()
    changes = [watch.update(entry) for entry in series((STEPS, SICK["zero_reward"]), (3, SICK["zero_reward"]), (5, {}))]
    assert [[alarm["name"] for alarm in started] for started, _ in changes if started] == [["zero_reward"]]
    assert [[alarm["name"] for alarm in ended] for _, ended in changes if ended] == [["zero_reward"]]
    assert [(alarm["name"], alarm["first_step"], alarm["last_step"]) for alarm in watch.rang] == [("zero_reward", STEPS, STEPS + 3)]


def test_an_alarm_that_comes_back_is_kept_twice():
    sick = SICK["not_a_number"]
    rang = replay(series((2, {}), (2, sick), (2, {}), (1, sick)))
    assert [(alarm["first_step"], alarm["last_step"]) for alarm in rang] == [(3, 4), (7, 7)]


def test_lines_of_an_evaluation_are_no_steps():
    assert replay([{"step": 20, "eval/greedy/correct": 0.0}] * 3) == []
