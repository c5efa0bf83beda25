"""Covers lists of actions: what a question offers, what an answer names, and how much of two sets is the same."""

import pytest

from qwen_vl_grpo import actions, answers
from qwen_vl_grpo.rewards import (
    actions_reward,
    segments_reward,
    think_format_reward,
    video_accuracy_reward_func,
    video_format_reward_func,
)

OFFERED = ["reach (left)", "grasp", "place"]


@pytest.mark.parametrize(
    "question",
    [
        "Which of these?\n(1) reach (left)\n(2) grasp\n(3) place",
        "Which of these? (1) reach (left), (2) grasp, (3) place. Output the thinking process in <think> </think>.",
        "Which of these?\n(1) reach (left)\n(2) grasp.\n(3) place\nAnswer like <answer>(1) Action 1 (2) Action 2</answer>",
        "Answer like <answer>(1) Action 1 (2) Action 2</answer>: (1) reach (left); (2) grasp; (3) place",
    ],
)
def test_the_actions_of_a_question_are_its_longest_run_of_numbers(question):
    assert actions.offered(question) == OFFERED


@pytest.mark.parametrize("question", ["What happens?", "What happens in (2) or (3)?", ""])
def test_a_question_without_a_first_number_offers_nothing(question):
    assert actions.offered(question) == []


@pytest.mark.parametrize("text", ["(1) (3)", "(3) Place, and (1) reach  (left)", "\n(1)\n(3)\n", "(1) & (3).", "(01) (3)"])
def test_an_answer_names_actions_by_number_and_may_name_them_by_name(text):
    assert actions.named(text, OFFERED) == {"1", "3"}


@pytest.mark.parametrize("text", ["", "1, 3", "(1) place", "(1) (1)", "(0)", "(4)", "so (1)", "(1) or (3)", "(1000)", "(-1)", "(1) left"])
def test_what_is_no_list_of_offered_actions_names_none(text):
    assert actions.named(text, OFFERED) is None


def test_names_are_the_actions_where_none_are_offered():
    assert actions.named("(1) Reach (2) grasp") == actions.named("(1) grasp, (2) reach") == {"reach", "grasp"}
    for text in ("(1)", "(2) reach", "(1) reach (3) grasp", "(1) reach (2) Reach"):
        assert actions.named(text) is None


def test_the_overlap_is_intersection_over_union_and_nothing_overlaps_with_nothing():
    assert actions.overlap({"1", "2"}, {"2", "3"}) == pytest.approx(1 / 3)
    assert actions.overlap(set(), set()) == 0


@pytest.mark.parametrize("between", ["", " ", "\n\n"])
def test_an_answer_behind_a_thought_is_read_whatever_stands_between(between):
    completion = f"<think>a\nb</think>{between}<answer> (1) </answer><|im_end|>"
    assert answers.thought_answer(completion) == "(1)"
    assert answers.parts(completion) == ("a\nb", "(1)")


@pytest.mark.parametrize("flood", ["<think>", "<answer>", "(1)", ". ", " ", "and ", "1 to 2,", "</think><think>\n"])
def test_no_completion_holds_up_a_step(flood):
    """What takes the square of the length of such a text would not come to an end here."""
    flood = flood * 100_000 + "x"
    for text in (flood, f"<think>.</think> <answer>{flood}</answer>"):
        for reward in (video_format_reward_func, video_accuracy_reward_func, think_format_reward, actions_reward, segments_reward):
            assert 0 <= reward(completions=[text], answer=["(1) (2)"], choices=[["a", "b"]])[0] <= 1
