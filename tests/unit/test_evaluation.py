"""Covers the evaluator: scores by hand, their interval, and the white pictures and clips of the blind one."""

from dataclasses import replace

import numpy
import pytest
from PIL import Image

from qwen_vl_grpo import evaluation, rewards, tasks
from qwen_vl_grpo.interfaces import Clip, Sample
from qwen_vl_grpo.sections import TaskSection

TASK = tasks.build(TaskSection())
QUESTION = [{"role": "user", "content": "Which digit is this?"}]


def right(digit):
    return f"<reasoning>\nI see it.\n</reasoning>\n<answer>\n{digit}\n</answer>\n"


def sample(digit, **columns):
    return Sample(digit, QUESTION, [Image.new("RGB", (56, 84), "red")], digit, {"answer": digit, "prompt": QUESTION} | columns)


def level_reward(completions, level, **_):
    return [None if one is None else float(one) for one in level]


def test_scores_are_shares_of_all_completions():
    samples = [sample("1"), sample("2")]
    completions = [[right("1"), right("2")], [right("2"), "2"]]
    chosen = [rewards.find("strict_format_reward_func"), rewards.find("correctness_reward_func")]
    assert evaluation.score(samples, completions, TASK, chosen) == {
        "correct": 0.5,  # right and well-formed: the first of each; a bare "2" is right but not well-formed
        "format": 0.75,
        "interval": evaluation.wilson(0.5, 2),
        "n": 4,
        "rows": 2,
        "rewards": {"strict_format_reward_func": 0.375, "correctness_reward_func": 1.5},
    }


def test_the_published_rule_is_a_share_of_its_own_where_every_row_has_one():
    types = {"question_type": "free_form", "answer_type": "integer"}
    scores = evaluation.score([sample("1", **types), sample("2", **types)], [["1.9"], [right("2")]], TASK, [])
    assert (scores["correct"], scores["official"]) == (0.5, 1.0)
    assert evaluation.flat({"greedy": scores})["eval_greedy/official"] == 1.0
    assert "official" not in evaluation.score([sample("1", **types), sample("2")], [["1"], ["2"]], TASK, [])


def test_a_reward_gets_the_columns_of_its_own_row():
    samples = [sample("1", level=1), sample("2", level=5)]
    assert evaluation.score(samples, [["a", "b"], ["c", "d"]], TASK, [level_reward])["rewards"] == {"level_reward": 3.0}


def test_what_could_not_be_judged_is_left_out_of_the_mean():
    samples = [sample("1", level=None), sample("2", level=5)]
    assert evaluation.score(samples, [["a"], ["b"]], TASK, [level_reward])["rewards"] == {"level_reward": 5.0}


def test_a_reward_that_could_judge_nothing_has_no_mean():
    assert evaluation.score([sample("1", level=None)], [["a"]], TASK, [level_reward])["rewards"] == {"level_reward": None}


def test_evaluating_asks_for_one_greedy_and_several_sampled_answers():
    asked = []

    def generate(samples, count, temperature):
        asked.append((len(samples), count, temperature))
        return [[right(one.answer)] * count for one in samples]

    scores = evaluation.evaluate([sample("1"), sample("2")], TASK, [], generate, 4, 0.7)
    assert asked == [(2, 1, 0.0), (2, 4, 0.7)]
    assert [(kind, values["n"], values["correct"]) for kind, values in scores.items()] == [("greedy", 2, 1.0), ("sampled", 8, 1.0)]


def test_the_blind_score_shows_white_pictures_of_the_same_size():
    shown = []

    def generate(samples, count, temperature):
        shown.extend(image for one in samples for image in one.images)
        return [["7"] for _ in samples]

    seen = sample("1")
    scores = evaluation.blind([seen, sample("2")], TASK, [], generate)
    assert [(image.size, image.getextrema()) for image in shown] == [((56, 84), ((255, 255),) * 3)] * 2
    assert seen.images[0].getpixel((0, 0)) == (255, 0, 0)
    assert scores["n"] == 2


def test_the_blind_score_shows_white_clips_of_the_same_sizes_and_times_and_rewards_get_them_too():
    clip = Clip(numpy.zeros((3, 56, 84, 3), numpy.uint8), (0, 4, 8), 8.0, 12, "a")
    shown, judged = [], []

    def generate(samples, count, temperature):
        shown.extend(clip for one in samples for clip in one.videos)
        return [["7"] for _ in samples]

    def reward(completions, videos, **_):
        judged.extend(len(row) for row in videos)
        return [0.0] * len(completions)

    evaluation.blind([replace(sample("1"), images=[], videos=[clip]), sample("2")], TASK, [reward], generate)
    assert [(white.frames.shape, white.frames.min(), white) for white in shown] == [((3, 56, 84, 3), 255, clip)]
    assert clip.frames.max() == 0
    assert judged == [1, 0]


@pytest.mark.parametrize(
    ("right_ones", "n", "interval"),
    [(81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)), (0, 20, (0.0, 0.1611)), (1, 29, (0.0061, 0.1718))],
)
def test_the_interval_is_that_of_the_literature(right_ones, n, interval):
    """R. G. Newcombe, Statistics in Medicine 17 (1998), table I, method 3."""
    assert evaluation.wilson(right_ones / n, n) == pytest.approx(interval, abs=1e-4)


def test_scores_are_named_for_a_tracker():
    scores = evaluation.evaluate([sample("1")], TASK, [rewards.find("correctness_reward_func")], lambda s, c, t: [[right("1")] * c], 2, 1.0)
    assert evaluation.flat(scores) == {
        f"eval_{kind}/{name}": value
        for kind in ("greedy", "sampled")
        for name, value in (("correct", 1.0), ("format", 1.0), ("rewards/correctness_reward_func", 2.0))
    }
