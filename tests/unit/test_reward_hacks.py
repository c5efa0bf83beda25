"""Covers the hacks of docs/reward_hacks.md: each earns what the table says, and none earns anything for its answer."""

import pytest

from docs import reward_hacks, reward_logic, reward_logic_video
from qwen_vl_grpo import enhancement, tasks

CASES = [(question, case) for question in reward_hacks.load() for case in question["hacks"]]
FORM = {"visual_reasoning": 1.0, "video_actions": 0.3, "video_grounding": 0.3, "prompt_enhancement": 0.95}
"""What the form alone pays at most; of a rewritten prompt, what is left where a penalty is taken in proportion."""


@pytest.mark.parametrize(("question", "case"), CASES, ids=[f"{question['task']}: {case['hack']}" for question, case in CASES])
def test_a_hack_earns_what_the_table_says_and_nothing_for_its_answer(question, case):
    expected = None if case["earns"] == "none" else pytest.approx(case["earns"], abs=1e-9)
    assert reward_hacks.earned(case, question) == expected
    assert (reward_hacks.earned(case, question) or 0.0) <= FORM.get(question["task"], 0.0)


def test_there_are_more_than_sixty_over_all_tasks_and_no_two_are_the_same():
    assert {question["task"] for question, _ in CASES} == set(tasks.TASKS)
    texts = {(question["task"], question["question"], reward_hacks.completion(case, question)) for question, case in CASES}
    names = [(question["task"], case["hack"]) for question, case in CASES]
    assert len(texts) == len(set(names)) == len(CASES) >= 60
    known = {reward_logic.completion(case) for question in reward_logic.load()[:1] for case in question["cases"]}
    known |= {reward_logic_video.completion(case, question) for question in reward_logic_video.load() for case in question["cases"]}
    assert known.isdisjoint(text for task, _, text in texts if task in reward_hacks.OF_WORDS)


def test_the_documented_rewards_pay_for_some_that_strict_does_not():
    paid = [(q, case) for q, case in CASES if q["task"] in tasks.PUBLISHED and reward_hacks.earned(case, q, "documented") >= 0.75]
    assert len([case for question, case in paid if question["task"] == "video_actions"]) >= 5


@pytest.mark.parametrize("question", reward_hacks.load(), ids=lambda question: f"{question['task']}: {question['question']}")
def test_the_honest_answer_to_the_same_question_earns_everything(question):
    honest = {
        "prompt_enhancement": {"text": "a cat on a mat, warm light, soft fur, fine detail"},
        "text_to_image": {"text": question["good"].replace("no", "yes")},
        "image_edit": {"text": question["good"].replace('"0"', '"10"')},
    }.get(question["task"], {"answer": question["gold"].get("answer")})
    assert reward_hacks.earned(honest, question) == pytest.approx({"visual_reasoning": 3.0, "image_edit": 2 / 3}.get(question["task"], 1.0))


def test_an_honest_prompt_loses_nothing_to_the_rules_against_look_alikes():
    for original, rewritten in (
        ("кот на коврике", "кот на коврике, мягкий тёплый свет, детали шерсти, утро"),
        ("a cat's toy", "a cat's toy on the floor, dogs' bowls behind it, '60s wallpaper, dusty afternoon light"),
        ("ein Kätzchen", "ein Kätzchen im warmen Abendlicht, weiches Fell, schöne Tiefenunschärfe"),
    ):
        assert (enhancement.copying(original, rewritten), enhancement.asks_for_words(original, rewritten)) == (0, 0)
