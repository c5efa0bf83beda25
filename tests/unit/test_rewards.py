"""Covers the documented rewards: completions -> their public values (measured on the published functions, with DOTALL)."""

import pytest

from qwen_vl_grpo import rewards
from qwen_vl_grpo.errors import RewardError

THOUGHT = "6 times 7\nmake 42"
GOOD = f"<reasoning>\n{THOUGHT}\n</reasoning>\n<answer>\n42\n</answer>\n"
VALUES = {
    "canonical, reasoning of two lines, final newline": (GOOD, 0.5, 0.5, 0.5, 2.0),
    "the same without its final newline": (GOOD[:-1], 0.437, 0.5, 0.0, 2.0),
    "reasoning of 400 characters, no final newline": (GOOD[:-1].replace(THOUGHT, "x" * 400), 0.054, 0.5, 0.0, 2.0),
    "reasoning of one line": (GOOD.replace(THOUGHT, "6 times 7"), 0.5, 0.5, 0.5, 2.0),
    "tags without line breaks": ("<reasoning>why</reasoning><answer>42</answer>", 0.0, 0.5, 0.0, 2.0),
    "a word before": ("Sure!" + GOOD, 0.5, 0.0, 0.0, 2.0),
    "a line break before": ("\n" + GOOD, 0.5, 0.0, 0.0, 2.0),
    "300 characters after": (GOOD + "x" * 300, -0.1, 0.5, 0.0, 2.0),
    "1000 characters after": (GOOD + "x" * 1000, -1.5, 0.5, 0.0, 2.0),
    "two answer blocks, the last one right": (GOOD.replace("<answer>", "<answer>\n41\n</answer>\n<answer>"), 0.25, 0.5, 0.5, 2.0),
    "an answer block inside the reasoning": (GOOD.replace(THOUGHT, "<answer>\n41\n</answer>"), 0.25, 0.5, 0.5, 2.0),
    "the bare answer": ("42", 0.0, 0.0, 0.0, 2.0),
    "an answer block that never closes": ("<answer>\n42", 0.0, 0.0, 0.0, 2.0),
    "empty tags": ("<reasoning>\n\n</reasoning>\n<answer>\n\n</answer>\n", 0.5, 0.5, 0.5, 0.0),
    "a wrong answer": (GOOD.replace("42\n</answer>", "41\n</answer>"), 0.5, 0.5, 0.5, 0.0),
    "nothing": ("", 0.0, 0.0, 0.0, 0.0),
}
NAMES = ("xmlcount_reward_func", "soft_format_reward_func", "strict_format_reward_func", "correctness_reward_func")


@pytest.mark.parametrize(("completion", "expected"), [(text, values) for text, *values in VALUES.values()], ids=VALUES)
@pytest.mark.parametrize("form", ["chat", "text"])
def test_a_completion_earns_its_public_values(completion, expected, form):
    given = [[{"role": "assistant", "content": completion}]] if form == "chat" else [completion]
    earned = [rewards.find(name)(completions=given, answer=["42"], prompts=[[]])[0] for name in NAMES]
    assert earned == pytest.approx(expected)


def test_each_completion_is_scored_for_itself_in_order():
    assert rewards.find("correctness_reward_func")(completions=["1", "2", "3"], answer=["3", "2", "1"]) == [0.0, 2.0, 0.0]


def test_every_reward_is_listed_under_its_own_name():
    assert set(NAMES) <= set(rewards.REWARDS)
    assert all(function.__name__ == name for name, function in rewards.REWARDS.items())


def test_a_misspelt_name_gets_the_nearest_one():
    with pytest.raises(RewardError, match=r"no reward is called 'corectness_reward'; did you mean 'correctness_reward_func'\?"):
        rewards.find("corectness_reward")


def test_a_name_like_no_other_gets_the_list_and_the_way_to_an_own_one():
    with pytest.raises(RewardError, match=r"the documented ones are xmlcount_reward_func.*path/to/file\.py:function"):
        rewards.find("zzz")
