"""Covers the way from a completion to its final answer, and when two answers are the same."""

import pytest

from qwen_vl_grpo import answers

GOOD = "<reasoning>\nSix times seven.\nSo it is 42.\n</reasoning>\n<answer>\n42\n</answer>\n"


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (GOOD, "42"),
        (GOOD.rstrip("\n"), "42"),
        (GOOD.replace("42\n</answer>", " 4 \n2 \n</answer>"), "4 \n2"),
        ("<reasoning>\n\n</reasoning>\n<answer>\n\n</answer>\n", ""),
    ],
)
def test_a_well_formed_completion_gives_the_text_of_its_answer_block(completion, answer):
    assert answers.strict_answer(completion) == answer


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "42",
        "Sure! " + GOOD,
        "\n" + GOOD,
        GOOD + "\n",
        GOOD + "I hope this helps.",
        GOOD + GOOD,
        GOOD + "<answer>\n43\n</answer>\n",
        "<answer>\n42\n</answer>\n<reasoning>\nlate\n</reasoning>\n",
        "<reasoning>late</reasoning><answer>42</answer>",
        "<reasoning>\n<answer>\n42\n</answer>\n</reasoning>\n",
        GOOD.replace("</answer>", ""),
        GOOD.replace("</reasoning>\n", "</reasoning>\n\n"),
        GOOD.replace("reasoning", "Reasoning"),
    ],
)
def test_any_other_completion_has_no_answer(completion):
    assert answers.strict_answer(completion) is None


@pytest.mark.parametrize(
    ("completion", "reasoning", "answer"),
    [
        (GOOD, "Six times seven.\nSo it is 42.", "42"),
        ("<reasoning>why</reasoning><answer>42</answer>", "why", "42"),
        ("  just text ", None, "just text"),
        ("<reasoning>why</reasoning>", "why", "<reasoning>why</reasoning>"),
    ],
)
def test_any_completion_can_be_split_for_showing(completion, reasoning, answer):
    assert answers.parts(completion) == (reasoning, answer)


@pytest.mark.parametrize(
    ("given", "gold", "choices"),
    [
        ("42", "42", ()),
        ("42.", "42", ()),
        (" Yes ", "yes", ()),
        ("12.0", "12", ()),
        ("1,000", "1000", ()),
        ("-3", "-3.0", ()),
        ("the  red\nball", "The red ball", ()),
        ("B", "cat", ("dog", "cat")),
        ("(b)", "cat", ("dog", "cat")),
        ("B.", "cat", ("dog", "cat")),
        ("cat", "cat", ("dog", "cat")),
    ],
)
def test_answers_that_mean_the_same_are_the_same(given, gold, choices):
    assert answers.same(given, gold, choices)


@pytest.mark.parametrize(
    ("given", "gold", "choices"),
    [
        ("", "", ()),
        ("  ", "42", ()),
        ("", "0", ()),
        ("12.9", "12", ()),
        ("42 43", "42", ()),
        ("no", "yes", ()),
        ("nan", "42", ()),
        ("1,2", "12", ()),
        ("A", "cat", ("dog", "cat")),
        ("C", "cat", ("dog", "cat")),
        ("dog", "cat", ("dog", "cat")),
        ("B", "cat", ()),
    ],
)
def test_answers_that_mean_something_else_are_not_the_same(given, gold, choices):
    assert not answers.same(given, gold, choices)
