"""Covers what a probe stored: which rows a config trains on by it, in which order, and what is refused without it."""

import itertools
import json

import pytest

from qwen_vl_grpo import solve_rates
from qwen_vl_grpo.errors import ConfigError, DataError

ROWS = [{"prompt": [{"role": "user", "content": f"{n}?"}], "answer": str(n), "picture_ids": []} for n in range(5)]
KEYS = [solve_rates.row_key(row) for row in ROWS]
RATES = (0.5, 0.0, 1.0, 0.9, 0.1)


@pytest.fixture
def stored(config_of):
    """Store solve rates of the five rows for the config of these keys."""

    def write(rates=RATES, **changes):
        config = config_of(**changes)
        path = solve_rates.place(config)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [{"row": key, "solve_rate": rate} for key, rate in zip(KEYS, rates, strict=False)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"row": "half', encoding="utf-8")
        return config

    return write


@pytest.mark.parametrize(
    ("data", "places"),
    [
        ({"filter": [0.1, 0.9]}, [0, 3, 4]),
        ({"filter": [0, 0.5]}, [0, 1, 4]),
        ({"curriculum": "easy_first"}, [2, 3, 0, 4, 1]),
        ({"filter": [0.1, 0.9], "curriculum": "easy_first"}, [3, 0, 4]),
    ],
)
def test_rows_are_chosen_and_ordered_by_how_often_they_are_solved(stored, data, places):
    assert solve_rates.chosen(KEYS, stored(data=data)) == places


def test_a_config_whose_probe_is_missing_is_refused_with_the_command(config_of):
    with pytest.raises(DataError, match=r"data\.filter: measure them with `grpo probe some/model --config CONFIG`"):
        solve_rates.refuse(config_of(model_name="some/model", data={"filter": [0.1, 0.9]}))
    with pytest.raises(DataError, match="`grpo probe v1 --config"):
        solve_rates.refuse(config_of(data={"curriculum": "easy_first", "probe": "v1"}))
    solve_rates.refuse(config_of())


def test_rows_that_were_not_probed_are_counted(stored):
    with pytest.raises(DataError, match="2 of 5 rows have no solve rate; measure them"):
        solve_rates.chosen(KEYS, stored(RATES[:3], data={"filter": [0, 1]}))


def test_a_filter_that_leaves_nothing_says_what_there_is(stored):
    with pytest.raises(DataError, match=r"\[0\.6, 0\.8\]: leaves none of 5 rows, whose solve rates are 0 to 1"):
        solve_rates.chosen(KEYS, stored(data={"filter": [0.6, 0.8]}))


@pytest.mark.parametrize(
    "change", [{"temperature": 0.7}, {"model_name": "other"}, {"data": {"max_pixels": 10000}}, {"task": {"system_prompt": "Think."}}]
)
def test_another_question_to_another_policy_has_a_probe_of_its_own(config_of, change):
    same = {"run_id": "other", "max_steps": 7, "data": {"limit": 3, "filter": [0.2, 0.8]}, "evaluation": {"held_out": 0.1}}
    assert solve_rates.place(config_of()) == solve_rates.place(config_of(**same))
    assert solve_rates.place(config_of()) != solve_rates.place(config_of(**change))


def test_a_row_is_the_same_row_in_whatever_table_it_stands():
    part = {"type": "text", "text": "Which?"}
    row = ROWS[0] | {"prompt": [{"role": "user", "content": [part]}]}
    assert solve_rates.row_key(row) == solve_rates.row_key(row | {"prompt": [{"role": "user", "content": [part | {"image": None}]}]})
    assert len({solve_rates.row_key(row) for row in ROWS}) == 5


@pytest.mark.parametrize("values", [[1, 1, 0, 1, 0, 0, 0, 0], [2.0, 1.0, 2.0, None], [True] * 4])
@pytest.mark.parametrize("size", [2, 4])
def test_groups_without_spread_are_counted_over_all_groups_that_the_completions_make(values, size):
    groups = list(itertools.combinations(values, size))
    assert solve_rates.without_spread(values, size) == pytest.approx(sum(len(set(group)) == 1 for group in groups) / len(groups))


def test_fewer_completions_than_a_group_give_the_shares_power():
    assert solve_rates.without_spread([True, False, False, False], 8) == pytest.approx(0.25**8 + 0.75**8)


def test_a_histogram_has_a_line_for_each_rate():
    assert solve_rates.histogram([0.0, 0.5, 0.5, 1.0], 4) == "0.00 ██ 1\n0.50 ████ 2\n1.00 ██ 1"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {"filter": [0.9, 0.1]}}, "in this order"),
        ({"data": {"filter": [0.1, 1.5]}}, "of 0 to 1"),
        ({"data": {"curriculum": "easy_first"}, "warmup": {"dataset_name": "x"}}, "warmed-up model that nobody has probed"),
        ({"data": {"curriculum": "easy_first"}, "trl": {"shuffle_dataset": True}}, "would undo the order"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(config_of, changes, said):
    with pytest.raises(ConfigError, match=said):
        config_of(**changes)
