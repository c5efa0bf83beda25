"""Covers MathVista's published rule: the verdicts that the published scorer gave on responses of ours."""

import json
from collections import Counter
from pathlib import Path

import pytest

from qwen_vl_grpo import answers, mathvista

HEAD, *ROWS = map(json.loads, (Path(__file__).parents[1] / "fixtures/mathvista_scores.jsonl").read_text(encoding="utf-8").splitlines())
OWL = {"question_type": "multi_choice", "answer_type": "text", "choices": ["red fox", "barn owl", "mole"]}
WHOLE = {"question_type": "free_form", "answer_type": "integer"}


def columns(row):
    return row["question_type"], row["answer_type"], row["choices"] or (), row["precision"]


def test_the_fixture_says_where_it_is_from_and_holds_right_and_wrong_responses_of_every_kind():
    assert HEAD["commit"] == "53d525874bdde205128e6b160b7357a88277d479"
    kinds = Counter((row["question_type"], row["answer_type"], row["precision"], row["correct"]) for row in ROWS)
    types = [("multi_choice", "text", None), ("free_form", "integer", None), ("free_form", "float", 1.0), ("free_form", "float", 2.0)]
    assert set(kinds) == {(*kind, correct) for kind in [*types, ("free_form", "list", None)] for correct in (True, False)}
    assert len(ROWS) >= 200


def test_the_rule_reads_every_response_as_the_published_scorer_does():
    differing = [row for row in ROWS if mathvista.prediction(row["response"], *columns(row)) != row["prediction"]]
    assert differing == []


def test_the_rule_gives_every_verdict_of_the_published_scorer():
    differing = [row for row in ROWS if mathvista.right(row["response"], row["answer"], *columns(row)) != row["correct"]]
    assert differing == []


@pytest.mark.parametrize(
    ("response", "gold", "row"),
    [
        ("", "mole", OWL),
        ("The owl, a barn owl I think", "barn owl", OWL),
        ("(B) or (A)", "barn owl", OWL),
        ("12.9", "12", WHOLE),
        ("1_2", "12", WHOLE),
    ],
)
def test_what_the_rule_pays_for_a_reward_must_not(response, gold, row):
    assert mathvista.right(response, gold, **row)
    assert not answers.same(response, gold, row.get("choices", ()))


def test_a_row_without_choices_or_with_another_type_is_never_right():
    assert not mathvista.right("A", "A", "multi_choice", "text")
    assert not mathvista.right("A", "A", "free_form", "text")
