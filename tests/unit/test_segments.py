"""Covers stretches of time: what an answer names, and how much of two sets of them is the same."""

import random

import pytest

from qwen_vl_grpo import segments


@pytest.mark.parametrize(
    "text",
    ["1.5 to 4, 7 to 8", "1.5s - 4s; 7s - 8s", "1.5 to 4 and 7 to 8.", "1.5 to 4 seconds,\n7 sec to 8 sec", "7 TO 8\n1.50 to 4.0"],
)
def test_an_answer_is_a_list_of_start_and_end(text):
    assert sorted(segments.read(text)) == [(1.5, 4.0), (7.0, 8.0)]


@pytest.mark.parametrize(
    "text", ["", "4", "4 to 2", "-1 to 2", "nan to 2", "0 to inf", "1e3 to 2e3", "1 to 2 to 3", "so 1 to 2", "1 to 2 or 3"]
)
def test_what_is_no_list_of_stretches_is_not_read(text):
    assert segments.read(text) is None


def test_segments_that_overlap_or_touch_count_once_and_those_of_no_length_not_at_all():
    assert segments.merged([(5, 5), (2, 3), (0, 1), (1, 2), (0.5, 1.5)]) == [(0, 3)]
    assert segments.merged([(1, 3), (2, 2), (1, 2)]) == [(1, 3)]


@pytest.mark.parametrize("wrong", [(float("nan"), 1), (0, float("nan")), (0, float("inf")), (2, 1)])
def test_a_stretch_that_is_none_is_an_error_and_never_a_score(wrong):
    with pytest.raises(ValueError, match="is no stretch of time"):
        segments.overlap([(0, 1)], [(0, 1), wrong])


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [
        ([(0, 4)], [(0, 4)], 1), ([(0, 4)], [(2, 6)], 1 / 3), ([(0, 1)], [(1, 2)], 0), ([(0, 2), (4, 6)], [(0, 6)], 2 / 3),
        ([(3, 3)], [(3, 3)], 0), ([(3, 3)], [(0, 4)], 0), ([], [], 0), ([], [(0, 1)], 0), ([(0, 4), (0, 4)], [(0, 4)], 1),
        ([(0, 1000)], [(0, 10)], 0.01),
    ],
)  # fmt: skip
def test_the_overlap_is_intersection_over_union_in_seconds(one, other, share):
    assert segments.overlap(one, other) == segments.overlap(other, one) == pytest.approx(share)


def test_the_overlap_is_that_of_counted_seconds():
    drawn = random.Random(0)
    for _ in range(200):
        sides = [[tuple(sorted(drawn.choices(range(20), k=2))) for _ in range(drawn.randint(0, 4))] for _ in range(2)]
        one, other = ({second for start, end in side for second in range(start, end)} for side in sides)
        assert segments.overlap(*sides) == pytest.approx(len(one & other) / len(one | other) if one | other else 0)
