"""Covers the tasks on clips: what a record becomes, which answers are right, and which gold answers are refused."""

import pytest

from qwen_vl_grpo import tasks, validation
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.sections import DataSection, TaskSection

ASKED = "<video>\nWhich of these happen? (1) reach (2) grasp (3) place"


def read(name, answer, asked=ASKED, columns=None, **row):
    turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": answer}]
    row = {"id": 7, "video": "clips/7.mp4", "conversations": turns, **row}
    return tasks.build(TaskSection(name=name)).read_row(row, DataSection(columns=columns or {}), "Answer.")


@pytest.mark.parametrize("answer", ["(1) reach (3) place", "<think>A hand.</think> <answer>(1) reach (3) place</answer>"])
def test_a_record_becomes_a_question_with_its_offered_actions_and_a_gold_answer(answer):
    sample = read("video_actions", answer)
    assert (sample.id, sample.answer, sample.columns["choices"]) == ("7", "(1) reach (3) place", ["reach", "grasp", "place"])
    assert len(sample.videos) == 1


def test_the_actions_may_stand_in_a_column():
    sample = read("video_actions", "(2)", "<video>\nWhich?", columns={"choices": "options"}, options=["sit", "walk"])
    assert sample.columns["choices"] == ["sit", "walk"]


@pytest.mark.parametrize(
    ("name", "answer", "said"),
    [
        ("video_actions", "(B)", r"its answer '\(B\)' is no list of \(1\) to \(3\)"),
        ("video_actions", "(4)", r"is no list of \(1\) to \(3\)"),
        ("video_actions", "(1) place", r"is no list of \(1\) to \(3\)"),
        ("video_actions", "<answer></answer>", r"its answer '' is no list"),
        ("video_grounding", "(1) reach", "names no stretch of time; write seconds"),
        ("video_grounding", "3 to 3", "names no stretch of time"),
        ("video_grounding", "5 to 2", "names no stretch of time"),
    ],
)
def test_a_gold_answer_that_cannot_be_read_is_an_error_of_its_row(name, answer, said):
    with pytest.raises(DataError, match=said):
        read(name, answer)


@pytest.mark.parametrize(
    ("name", "answer", "asked"),
    [
        ("video_actions", "(1) reach (3) place", ASKED), ("video_actions", "(1) (2) (3)", ASKED), ("video_actions", "(2)", ASKED),
        ("video_actions", "(1) open the door", "<video>\nWhat is done?"), ("video_actions", "(1) sit (2) walk", "<video>\nWhat is done?"),
        ("video_grounding", "2 to 5 and 8.5 to 9", "<video>\nWhen?"), ("video_grounding", "0 to 9", "<video>\nWhen?"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["strict", "documented"])
def test_gold_answers_are_paid_in_full_and_near_misses_less(config_of, name, answer, asked, mode):
    mode = mode if name in tasks.PUBLISHED else "strict"
    config = config_of(task={"name": name, "mode": mode})
    task = tasks.build(config.task)
    said, faults = validation.answers([read(name, answer, asked)], task, tasks.rewards(task, config))
    assert faults == []
    assert said.startswith("1 gold answers and ")


def test_an_answer_is_right_with_all_actions_and_no_other():
    sample, judge = read("video_actions", "(1) reach (3) place"), tasks.build(TaskSection(name="video_actions")).judge
    form = "<think>A hand.</think> <answer>{}</answer>"
    assert judge(form.format("(3) (1)"), sample).correct
    for text in (form.format("(1)"), form.format("(1) (2) (3)"), "(1) (3)", form.format("(1) (3)") + "!"):
        assert not judge(text, sample).correct


@pytest.mark.parametrize(("answer", "right"), [("2 to 4", True), ("3 to 5", False), ("2 to 3", True), ("2 to 2.9", False)])
def test_a_time_is_right_from_an_overlap_of_a_half(answer, right):
    judge = tasks.build(TaskSection(name="video_grounding")).judge
    assert judge(f"<think>.</think> <answer>{answer}</answer>", read("video_grounding", "2 to 4")).correct == right


def test_an_answer_is_told_with_its_thought_and_whether_it_is_well_formed():
    told = tasks.build(TaskSection(name="video_actions")).told
    assert told(ASKED, "<think>A hand.</think> <answer>(1)</answer>") == {"well_formed": True}
    assert told(ASKED, "(1)") == {"well_formed": False}


def test_the_scale_of_the_rewards_multiplies_their_weights(config_of):
    config = config_of(task={"name": "video_actions", "mode": "documented"}, reward_scale=0.5)
    weighted = {function.__name__: weight for function, weight in tasks.rewards(tasks.build(config.task), config)}
    assert weighted == {"video_format_reward_func": 0.15, "video_accuracy_reward_func": 0.35}
