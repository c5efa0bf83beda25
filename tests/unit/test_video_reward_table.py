"""Covers the completions of docs/reward_logic_video.md: right ones earn everything, hacks earn nothing for their answer."""

import pytest

from docs.reward_logic_video import TASKS, load, modes, scored

CASES = [(question, case, next(iter(case))) for question in load() for case in question["cases"]]


@pytest.mark.parametrize(("question", "case", "kind"), CASES, ids=[f"{kind}: {case[kind]}" for _, case, kind in CASES])
def test_a_completion_of_a_clip_earns_what_its_kind_says(question, case, kind):
    mode = modes(question)[-1]
    scores = scored(mode, case, question)
    form, answer = (scores[name] for name, _ in TASKS[mode])
    if kind == "right":
        assert (form, answer, scores[mode]) == (1, 1, 1)
    elif kind == "part":
        assert form == 1
        assert 0 < answer < 1
    else:
        assert answer == 0
        assert scores[mode] <= 0.3


def test_there_are_forty_completions_and_hacks_that_the_documented_rewards_pay_for():
    hacks = [(question, case) for question, case, kind in CASES if kind == "hack" and "documented" in modes(question)]
    assert len(CASES) >= 40
    assert sum(scored("documented", case, question)["documented"] >= 0.75 for question, case in hacks) >= 10


def test_the_documented_rewards_are_the_published_ones_for_what_is_right_and_for_a_part_of_it():
    for question, case, kind in CASES:
        if kind in ("right", "part") and "documented" in modes(question):
            assert scored("documented", case, question)["documented"] == scored("strict", case, question)["strict"]
