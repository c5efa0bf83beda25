"""Covers the way from a completion to its final answer, and when two answers are the same."""

import pytest

from qwen_vl_grpo import answers

GOOD = "<reasoning>\nSix times seven.\nSo it is 42.\n</reasoning>\n<answer>\n42\n</answer>\n"


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (GOOD, "42"),
        (GOOD.rstrip("\n"), "42"),
        (GOOD + "<|im_end|>\n", "42"),
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
    "given", ["B", "b", "(B)", "(b)", "B.", "B)", "B:", "(B).", "Option B", "choice (b)", "**B**", "$B$", "\\boxed{\\text{B}}"]
)
def test_a_letter_in_any_usual_spelling_is_its_choice(given):
    assert answers.same(given, "64°", ("58°", "64°", "116°"))
    assert not answers.same(given, "58°", ("58°", "64°", "116°"))


@pytest.mark.parametrize("given", ["64°", "64", "64 degrees", "64.0", "(B) 64°", "B) 64", "B. 64°", "the answer is (B) 64°."])
def test_the_text_of_a_choice_with_its_letter_or_without_is_the_choice(given):
    assert answers.same(given, "64°", ("58°", "64°", "116°"))


@pytest.mark.parametrize("given", ["", "(A) 64°", "(B) 58°", "A or B", "A, B", "(B) (A)", "58° 64°", "64° or 58°", "D", "Z", "?", "B B"])
def test_two_choices_or_none_are_not_the_right_one(given):
    assert not answers.same(given, "64°", ("58°", "64°", "116°"))


def test_a_gold_answer_may_be_the_letter_of_its_choice():
    assert answers.same("(b) dog", "B", ("cat", "dog"))
    assert answers.same("dog", "B", ("cat", "dog"))
    assert not answers.same("cat", "B", ("cat", "dog"))


def test_a_letter_goes_before_a_choice_that_is_called_like_it():
    assert answers.same("A", "B", ("B", "A"))
    assert not answers.same("A", "A", ("B", "A"))


def test_choices_that_are_called_like_letters_in_brackets_are_named_by_text_or_by_their_own_letter():
    choices = ("(c)", "(a)", "(e)", "(d)", "(b)")
    assert [given for given in ("(b)", "**(b)**", "E", "(E)", "B", "(B)", "b", "(e)") if answers.same(given, "(b)", choices)] == [
        "(b)", "**(b)**", "E", "(E)",
    ]  # fmt: skip


def test_a_value_that_fits_two_choices_names_none():
    assert not answers.same("50%", "50", ("50", "0.5"))
    assert answers.same("50", "50", ("50", "0.5"))


def test_choices_have_no_tolerance():
    assert not answers.same("3.74", "3.7", ("3.7", "3.8"), precision=1)


def test_equal_choices_are_one_choice():
    assert answers.same("C", "20", ("20", "15", "20"))


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
