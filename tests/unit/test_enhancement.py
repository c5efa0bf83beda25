"""Covers enhancement.py: what of a completion is the rewritten prompt, the five-point score, and what the penalties see."""

import pytest

from qwen_vl_grpo import enhancement

FULL = "A cat on a windowsill, soft morning light, highly detailed fur, shallow depth of field, 4k"


@pytest.mark.parametrize(
    "completion",
    [
        FULL,
        f"  {FULL}<|im_end|>",
        f'"{FULL}"',
        f"Sure! Here is the enhanced prompt:\n\n{FULL}",
        f"Sure, here's an improved version of your prompt: {FULL}",
        f"Here\u2019s a more detailed version:\n\u201c{FULL}\u201d",
        f"**Enhanced prompt:** {FULL}",
        f'Enhanced Prompt: "{FULL}"',
        f"Certainly! {FULL}",
        f"Of course! Here is your rewritten prompt, with style and light added:\n{FULL}\n",
        f"An enhanced version: {FULL}",
    ],
)
def test_a_preamble_is_taken_off(completion):
    assert enhancement.enhanced(completion) == FULL


@pytest.mark.parametrize(
    "prompt",
    [
        "Here is where the dragon sleeps, cinematic",
        "A new dawn: red sky over a quiet harbour",
        "Sure-footed goat on a cliff",
        "Great white shark, wide angle: detailed",
        'A sign that says "open" above a door',
        "An old clock at 10:45, detailed",
    ],
)
def test_a_prompt_that_only_looks_like_a_preamble_stays(prompt):
    assert enhancement.enhanced(prompt) == prompt


@pytest.mark.parametrize("completion", ["", "  \n", "<|im_end|>", '""'])
def test_nothing_stays_nothing(completion):
    assert enhancement.enhanced(completion) == ""


@pytest.mark.parametrize(
    ("rewritten", "points"),
    [
        ("", 0),
        ("a cat", 1),  # the keyword alone
        ("a dog", 0),
        ("a cat, 4k", 3),  # longer, keyword, quality word
        ("a cat on a hill now", 3),  # longer, keyword, five words
        ("a cat with soft light and long shadows", 4),  # and five new words
        (FULL, 5),
        (FULL.replace("cat", "dog"), 4),
        (FULL.replace("detailed", "fine").replace("4k", "film"), 4),
        ("the cat " * 40, 3),  # repeating adds no new words
        ("A CAT, MASTERPIECE, golden hour, bokeh, dust, drifting", 5),
        ("a cathedral with soft light and detailed windows all around", 4),  # a cathedral is no cat
    ],
)
def test_the_five_points(rewritten, points):
    assert enhancement.quality("a cat", rewritten) == points


def test_copying_falls_with_each_new_word():
    assert [enhancement.copying("a cat", text) for text in ("a cat", "A CAT!", "a cat in rain", FULL)] == [1, 1, 0.8, 0]


def test_length_costs_beyond_the_limit_alone():
    assert enhancement.overlength("word " * 60, 60) == 0
    assert enhancement.overlength("word " * 90, 60) == 0.5


@pytest.mark.parametrize(
    ("original", "rewritten", "asks"),
    [
        ("a cat", "a cat, with the word cat painted in large letters", 1),
        ("a cat", 'a cat and a banner "a cat"', 1),
        ("a cat", "a cat beside a caption", 1),
        ("a cat", FULL, 0),
        ("a cat", "a cat in a context of contexts, a swordsman", 0),
        ("a sign that says open", 'a neon sign that reads "open"', 0),
    ],
)
def test_words_asked_for_in_the_picture_are_seen(original, rewritten, asks):
    assert enhancement.asks_for_words(original, rewritten) == asks
