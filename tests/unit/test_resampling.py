"""Covers intervals and paired tests against known values: scipy's binomial test, an enumeration of all flips, and the normal interval."""

import itertools
import math
import random

import pytest
from scipy import stats

from qwen_vl_grpo import resampling


def alone(values):
    return {item: item for item in values}


def numbered(values):
    return {str(place): float(value) for place, value in enumerate(values)}


@pytest.mark.parametrize(("up", "down"), [(0, 0), (1, 0), (9, 1), (5, 5), (3, 12), (40, 17)])
def test_mcnemar_is_the_exact_binomial_test_of_the_changed_items(up, down):
    expected = stats.binomtest(up, up + down).pvalue if up + down else 1.0
    assert resampling.mcnemar(up, down) == pytest.approx(expected)


def test_sign_flips_come_near_the_enumeration_of_all_of_them():
    changes = numbered([0.5, 0.25, -0.25, 0.75, 0.1, 0.3, -0.05, 0.2])
    sums = [
        sum(sign * value for sign, value in zip(signs, changes.values(), strict=True)) for signs in itertools.product((1, -1), repeat=8)
    ]
    exact = sum(abs(total) >= sum(changes.values()) - 1e-9 for total in sums) / len(sums)
    assert resampling.sign_flips(changes, alone(changes)) == pytest.approx(exact, abs=0.01)


def test_items_of_one_picture_are_flipped_together():
    changes = numbered([1, 1, 1, 1, 1, 1])
    one_picture = dict.fromkeys(changes, "the same")
    assert resampling.sign_flips(changes, one_picture) == 1.0
    assert resampling.sign_flips(changes, alone(changes)) == pytest.approx(2 / 2**6, abs=0.01)


def test_the_interval_of_many_items_is_the_normal_one_and_the_same_each_time():
    draw = random.Random(0)
    values = numbered([draw.random() < 0.3 for _ in range(400)])
    mean = sum(values.values()) / 400
    half = 1.96 * math.sqrt(mean * (1 - mean) / 400)
    found = resampling.interval(values, alone(values))
    assert found == pytest.approx((mean - half, mean + half), abs=0.006)
    assert found == resampling.interval(values, alone(values))


def test_the_same_rows_twice_make_no_interval_narrower():
    once = numbered([1, 0, 1, 1, 0, 1, 0, 1])
    twice = once | {f"again {item}": value for item, value in once.items()}
    pictures = {item: item.removeprefix("again ") for item in twice}
    assert resampling.interval(twice, pictures) == resampling.interval(once, alone(once))
    low, high = resampling.interval(twice, alone(twice))
    assert (low, high) > resampling.interval(once, alone(once))[:1]


def test_a_difference_counts_the_items_of_both_and_says_how_it_was_tested():
    base, tuned = numbered([0, 0, 0, 1, 1]), numbered([1, 1, 0, 0, 1]) | {"new": 1.0}
    found = resampling.difference(base, tuned, alone(tuned))
    assert (found.change, found.n, found.up, found.down, found.test) == (0.2, 5, 2, 1, "McNemar, exact")
    assert found.p == pytest.approx(1.0)
    pictures = dict.fromkeys(tuned, "one")
    assert resampling.difference(base, tuned, pictures).test == "10000 sign flips"
    assert resampling.difference(base, {"new": 1.0}, {"new": "new"}) is None
