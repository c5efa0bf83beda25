"""Covers knowledge.py: graphs as data sets write them, broken dependencies by name, the Dice reward, and decoys."""

import itertools
import json

import pytest

from qwen_vl_grpo import knowledge
from qwen_vl_grpo.errors import DataError

CYCLE = {
    "elements": ["Sun", "water", "water vapour", "rain, snow and hail"],
    "dependencies": ["Causes(Sun, water vapour)", "Requires(rain, snow and hail, water vapour)", "Contains(water, water vapour)"],
}


def graph(**changes):
    return knowledge.read(CYCLE | changes)


def dependency(text, elements=("a", "b", "light reaction (green)")):
    return knowledge.read({"elements": list(elements), "dependencies": [text]}).dependencies[0]


def test_a_graph_is_read_from_json_and_written_as_it_was():
    read = knowledge.read(json.dumps(CYCLE | {"decoys": ["teapot"]}))
    assert read.elements == ("Sun", "water", "water vapour", "rain, snow and hail")
    assert [item.ends for item in read.dependencies] == [
        ("Sun", "water vapour"),
        ("rain, snow and hail", "water vapour"),
        ("water", "water vapour"),
    ]
    assert read.decoys == ("teapot",)
    assert knowledge.read(read.to_json()) == read


@pytest.mark.parametrize(
    "text",
    ["Causes(a, b)", "causes( A ,B )", "Causes(a,b", "Temporal Order(a, b)", "Causes(change(a), change(b))", "Causes(change(a), change(b)"],
)
def test_a_carelessly_written_dependency_is_read(text):
    assert dependency(text).ends == ("a", "b")


def test_an_end_that_only_one_element_can_mean_is_that_element():
    assert dependency("Entails(a, green)", ("a", "green leaf", "root")).ends == ("a", "green leaf")
    assert dependency("Entails(a, the green leaf)", ("a", "b leaf", "green leaf")).ends is None  # "a" is in it, too
    assert dependency("Entails(leaf, root)", ("brown leaf", "green leaf", "root")).fault.count("'leaf'") == 1
    assert dependency("Causes(a, light reaction (green))").ends == ("a", "light reaction (green)")
    assert dependency("Entails(leaf, )", ("leaf",)).ends is None


def test_an_element_word_for_word_goes_before_one_that_could_be_meant():
    assert dependency("Causes(rain, snow, b)", ("rain", "rain, snow", "b")).ends == ("rain, snow", "b")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a -> b", "'a -> b' is not written as Relation(a, b)"),
        ("Causes(a)", "'Causes(a)' has one end, and not two"),
        ("Causes(a, moon)", "'Causes(a, moon)' has the end 'moon', which is no element"),
        ("Causes(, b)", "has the end ''"),
        ("Causes(b, B)", "has one element for both of its ends"),
    ],
)
def test_a_broken_dependency_is_named_and_the_rest_of_the_graph_stays(text, said):
    read = graph(elements=["a", "b"], dependencies=[text, "Causes(a, b)"])
    assert len(read.faults) == 1
    assert said in read.faults[0]
    assert [item.text for item in read.sound] == ["Causes(a, b)"]


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ('{"elements": ["a"', "no JSON"),
        ("[1]", "must be an object"),
        ({"elements": []}, "no elements"),
        ({}, "no elements"),
        ({"elements": "water"}, "elements 'water'; give a list of texts"),
        ({"elements": ["a", " "]}, "give a list of texts"),
        ({"elements": ["a"], "dependencies": [1]}, "dependencies '"),
    ],
)
def test_what_is_no_graph_is_refused(held, said):
    with pytest.raises(DataError, match=said.replace("[", r"\[")):
        knowledge.read(held)


def test_an_element_that_is_named_twice_counts_once_and_no_element_is_a_decoy():
    read = knowledge.read({"elements": ["Water", "sun", "water"], "decoys": ["WATER", "teapot"]})
    assert read.elements == ("Water", "sun")
    assert read.decoys == ("teapot",)


def test_dice_counts_elements_and_dependencies_whose_two_ends_are_seen():
    read = graph()
    seen = dict.fromkeys([*read.elements, *(item.text for item in read.dependencies)], True)
    assert knowledge.dice(read, seen) == 1
    assert knowledge.dice(read, dict.fromkeys(seen, False)) == 0
    without = seen | {"Sun": False}  # and with it what it causes
    assert knowledge.dice(read, without) == pytest.approx(2 * 5 / (5 + 7))
    assert knowledge.dice(read, dict.fromkeys(seen, False) | {item.text: True for item in read.dependencies}) == 0


def test_a_dependency_that_cannot_be_read_neither_pays_nor_costs():
    read = knowledge.read({"elements": ["a", "b"], "dependencies": ["Causes(a, moon)"]})
    for said in (True, False):
        assert knowledge.dice(read, {"a": True, "b": True, "Causes(a, moon)": said}) == 1


def test_dice_is_above_the_published_fidelity_where_its_first_guess_misses():
    elements = [f"part {number}" for number in range(12)]
    read = knowledge.read({"elements": elements, "dependencies": [f"Causes({a}, {b})" for a, b in itertools.pairwise(elements)]})
    seen = {element: number % 3 > 0 for number, element in enumerate(elements)} | {item.text: True for item in read.dependencies}
    published = knowledge.fidelity({e: seen[e] for e in elements}, {item.text: True for item in read.dependencies})
    assert published < knowledge.dice(read, seen) < 1


def test_one_dependency_more_raises_dice_and_may_lower_the_published_fidelity():
    texts = ["Causes(a, d)", "Causes(b, a)", "Causes(b, c)"]
    elements = {"a": True, "b": True, "c": False, "d": True}
    read = knowledge.read({"elements": list(elements), "dependencies": texts})
    fewer, more = ({text: text in seen for text in texts} for seen in ([texts[0], texts[2]], texts))
    assert knowledge.dice(read, elements | fewer) < knowledge.dice(read, elements | more)
    assert knowledge.fidelity(elements, fewer) > knowledge.fidelity(elements, more)


def test_fidelity_does_not_break_off_at_a_dependency_that_the_published_code_cannot_read():
    for text in ("Causes(a)", "a -> b", "Causes(", "Causes(a,b)"):
        assert knowledge.fidelity({"a": True, "b": True}, {text: True}) == 1
    assert knowledge.fidelity({}, {}) == 0


def test_a_missing_count_of_regions_is_no_readability():
    assert knowledge.readability(None) is None
    assert [knowledge.readability(count) for count in (0, 70, 115, 160, 400)] == [1, 1, 0.5, 0, 0]


def test_decoys_are_of_other_graphs_share_no_word_and_stay_the_same():
    pool = ["water wheel", "senate", "boiler", "the sun", "mitosis", "a vapour trail"]
    drawn = knowledge.with_decoys(graph(), pool, 3, seed=1)
    assert sorted(drawn.decoys) == ["boiler", "mitosis", "senate"]
    assert knowledge.with_decoys(graph(), reversed(pool), 3, seed=1) == drawn
    assert {knowledge.with_decoys(graph(), pool, 1, seed).decoys for seed in range(9)} == {("boiler",), ("mitosis",), ("senate",)}


def test_decoys_are_made_up_where_no_other_graph_offers_any():
    drawn = knowledge.with_decoys(graph(elements=["teapot", "Sun"], dependencies=[]), ["senate"], 4, seed=1)
    assert len(set(drawn.decoys)) == 4
    assert "senate" in drawn.decoys
    assert "teapot" not in drawn.decoys
