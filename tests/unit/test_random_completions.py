"""Covers 10,000 random and mutated completions of all tasks through every reward: no exception, no score out of its range, in time."""

import random
import time

import pytest

from docs import reward_hacks, reward_logic, reward_logic_video
from qwen_vl_grpo import enhancement, rewards
from qwen_vl_grpo.audit import kept, suspicion
from qwen_vl_grpo.interfaces import Sample
from qwen_vl_grpo.tasks import visual_reasoning

COUNT = 10_000
SEEDS = [
    *((question["gold"], reward_logic.completion(case)) for question in reward_logic.load() for case in question["cases"]),
    *((asked["gold"], reward_logic_video.completion(case, asked)) for asked in reward_logic_video.load() for case in asked["cases"]),
    *((question["gold"], reward_hacks.completion(case, question)) for question in reward_hacks.load() for case in question["hacks"]),
]
OF_CLIPS = [question["gold"] for question in reward_logic_video.load()]
PIECES = [
    "<reasoning>", "</reasoning>", "<answer>", "</answer>", "<answer>\n", "\n</answer>\n", "<|im_end|>", "<|endoftext|>", "\n", " ", "\0",
    "42", "1,200", "-", ".", "1e9", "nan", "inf", "%", "$", "°", "cm", "years", " or ", "A", "(B)", "barn owl", "[", "]", ",", "²", "😀",
    "\\frac{", "\\sqrt{", "}", "{", "(", ")", "^", "^{9}", "\\boxed{", "\\text{", "\\pi", "\\", "*", "/", "=", "x", "√", "**", "\ud800",
    "<think>", "</think>", "(1)", "(3) move", "2.0", " to ", " and ", ";", "caption", "\u200b", "\u0430", "10/10", "* sun: yes\n",
]  # fmt: skip


def soup(draw, longest):
    return "".join(draw.choice(PIECES) for _ in range(draw.randrange(longest)))


def mutated(draw, text):
    for _ in range(draw.randrange(1, 4)):
        start, end = sorted(draw.randrange(len(text) + 1) for _ in range(2))
        cut = text[start : min(end, start + 12)]
        text = text[:start] + draw.choice(["", cut + cut, cut[::-1], soup(draw, 3), draw.choice(SEEDS)[1][:30]]) + text[start + len(cut) :]
    return text


def draw_one(draw):
    gold, text = draw.choice(SEEDS)
    kind = draw.randrange(3)
    if kind == 0:
        return gold, soup(draw, 40)
    if kind == 1:
        return gold, f"<reasoning>\nwhy\n</reasoning>\n<answer>\n{soup(draw, 12)}\n</answer>\n"
    return gold, mutated(draw, text)


@pytest.fixture(scope="module")
def drawn():
    draw = random.Random(4)
    return [draw_one(draw) for _ in range(COUNT)]


@pytest.fixture(scope="module")
def scores(drawn):
    columns = {key: [gold.get(key) for gold, _ in drawn] for key in ("choices", "precision", "unit")}
    columns["answer"] = [gold.get("answer", "42") for gold, _ in drawn]
    completions = [[{"role": "assistant", "content": text}] for _, text in drawn]
    start = time.process_time()
    earned = {name: rewards.find(name)(completions=completions, **columns) for name in rewards.REWARDS}
    return earned | {"seconds": time.process_time() - start}


@pytest.mark.parametrize("name", rewards.REWARDS)
def test_every_score_is_in_its_range(scores, name):
    low, high = rewards.RANGES[name]
    assert len(scores[name]) == COUNT
    assert [score for score in scores[name] if score is None or not low <= score <= high] == []


def test_the_draw_reaches_both_ends_of_every_strict_reward(scores):
    assert all({0.0, 1.0} <= set(scores[name]) for name, _ in visual_reasoning.REWARDS["strict"])


def test_what_is_solved_is_well_formed_and_what_is_well_formed_has_its_tags(scores):
    rows = zip(scores["solved_reward"], scores["well_formed_reward"], scores["tags_reward"], strict=True)
    assert all(solved <= well_formed <= tags for solved, well_formed, tags in rows)


def test_all_rewards_together_take_less_than_ten_seconds(scores):
    assert scores["seconds"] < 10


def test_the_judge_agrees_with_the_reward_and_the_published_rule_raises_nothing(drawn, scores):
    of_words = [(pair, solved) for pair, solved in zip(drawn, scores["solved_reward"], strict=True) if "answer" in pair[0]]
    for (gold, text), solved in of_words[:2000]:
        types = {
            "question_type": "multi_choice" if "choices" in gold else "free_form",
            "answer_type": "float" if "precision" in gold else "integer",
        }
        verdict = visual_reasoning.judge(text, Sample("", [], [], gold["answer"], gold | types))
        assert verdict.correct == (solved == 1.0)
        assert verdict.official in (True, False)


def test_the_rewards_of_clips_pay_all_of_an_answer_some_of_it_and_nothing(drawn, scores):
    for name in ("actions_reward", "segments_reward"):
        paid = {score for (gold, _), score in zip(drawn, scores[name], strict=True) if gold in OF_CLIPS}
        assert {0.0, 1.0} < paid


def test_penalties_are_shares_and_the_rules_of_the_audit_say_why_or_nothing(drawn):
    seen = suspicion.look(kept.Completions({}, visual_reasoning.build()))
    for gold, text in drawn[:2000]:
        original = gold.get("original_prompt", "a cat on a mat")
        rewritten = enhancement.enhanced(text)
        assert 0 <= enhancement.copying(original, rewritten) <= 1
        assert enhancement.overlength(rewritten, 60) >= 0
        assert enhancement.asks_for_words(original, rewritten) in (0, 1)
        assert enhancement.quality(original, rewritten) in range(6)
        assert all(suspicion.reasons(kept.Kept("", f"user: {original}", text, {}, 1.0, gold=gold), seen).values())
