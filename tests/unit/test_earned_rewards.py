"""Covers the rewards without holes: 0 or 1, nothing for a repeated tag, and correct only where the evaluator says so."""

import pytest

from qwen_vl_grpo import rewards

GOOD = "<reasoning>\n6 times 7\n</reasoning>\n<answer>\n42\n</answer>\n"
EARNED = {
    "well-formed and right": (GOOD, 1.0, 1.0),
    "with the end-of-turn token": (GOOD + "<|im_end|>", 1.0, 1.0),
    "with two of them, on a line": (GOOD + "\n<|endoftext|><|im_end|>\n", 1.0, 1.0),
    "words after the end-of-turn token": (GOOD + "<|im_end|>no", 0.0, 0.0),
    "another end token": (GOOD + "<|vision_end|>", 0.0, 0.0),
    "without the final newline": (GOOD[:-1], 1.0, 1.0),
    "well-formed and wrong": (GOOD.replace("42", "41"), 1.0, 0.0),
    "the same number, written otherwise": (GOOD.replace("42", "42.0"), 1.0, 1.0),
    "an empty answer": (GOOD.replace("42", ""), 1.0, 0.0),
    "a closing tag again and again": (GOOD + "</answer>\n</answer>\n", 0.0, 0.0),
    "a second answer block": (GOOD + "<answer>\n41\n</answer>\n", 0.0, 0.0),
    "right, but without line breaks": ("<reasoning>why</reasoning><answer>42</answer>", 0.0, 0.0),
    "right, but bare": ("42", 0.0, 0.0),
    "right, but with words after it": (GOOD + "I am sure.", 0.0, 0.0),
    "nothing": ("", 0.0, 0.0),
}


@pytest.mark.parametrize(("completion", "well_formed", "solved"), EARNED.values(), ids=EARNED)
def test_a_completion_earns_one_or_nothing(completion, well_formed, solved):
    given = [[{"role": "assistant", "content": completion}]]
    assert rewards.find("well_formed_reward")(completions=given, answer=["42"]) == [well_formed]
    assert rewards.find("solved_reward")(completions=given, answer=["42"]) == [solved]


def test_a_letter_is_read_with_the_choices_of_its_own_row():
    completions = [GOOD.replace("42", "B"), GOOD.replace("42", "B"), GOOD.replace("42", "B")]
    choices = [["cat", "dog"], ["dog", "cat"], None]
    assert rewards.find("solved_reward")(completions=completions, answer=["dog", "dog", "dog"], choices=choices) == [1.0, 0.0, 0.0]


def test_a_number_is_read_with_the_precision_and_the_unit_of_its_own_row():
    completions = [GOOD.replace("42", "42.04 years")] * 4
    columns = {"precision": [1.0, 1.0, None, 2], "unit": ["years", "days", None, "years"]}
    assert rewards.find("solved_reward")(completions=completions, answer=["42"] * 4, **columns) == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        (GOOD, 1.0),
        (GOOD + "<|im_end|>", 1.0),
        ("<reasoning>why</reasoning><answer>42</answer>", 1.0),
        ("Sure! " + GOOD, 0.995),
        (GOOD + "x" * 100, 0.9),
        ("x" * 100 + GOOD + "x" * 100, 0.8),
        (GOOD + "x" * 5000, 0.75),
        (GOOD + "</answer>", 0.75),
        ("<reasoning>\nwhy\n</reasoning>\n<answer>\n42", 0.75),
        ("<reasoning>", 0.25),
        ("</answer><answer></reasoning><reasoning>", 0.19),
        (GOOD + GOOD, 0.0),
        ("x" * 5000, 0.0),
        ("", 0.0),
    ],
)
def test_each_tag_earns_its_part_and_what_stands_around_costs_at_most_a_quarter(completion, score):
    assert rewards.find("tags_reward")(completions=[completion]) == [pytest.approx(score)]


def test_the_published_strict_format_still_pays_for_what_these_do_not():
    repeated = [GOOD + "</answer>\n"]
    assert rewards.find("strict_format_reward_func")(completions=repeated) == [0.5]
    assert rewards.find("well_formed_reward")(completions=repeated) == [0.0]
