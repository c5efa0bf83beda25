"""Covers rewards/rendered.py: judging while drawing, failures that are no scores, sizes, the cache and the replay."""

import math
import threading
import time

import pytest
from PIL import Image

from qwen_vl_grpo.errors import JudgeError, RenderError
from qwen_vl_grpo.interfaces import Judgement, RenderRequest
from qwen_vl_grpo.judges.cache import JudgementCache
from qwen_vl_grpo.rewards.rendered import RenderedScores, batches, scores, seed_of


def plain(text):
    return Image.new("RGB", (8, 8), (sum(map(ord, text)) % 256, 0, 0))


class Painter:
    """Draws a plain picture whose colour is the completion's; a completion that says so cannot be drawn."""

    identity = "painter"

    def __init__(self, seconds=0.0, batch_size=2, watching=None):
        self.seconds, self.batch_size, self.watching = seconds, batch_size, watching
        self.judged_before: list[int] = []
        self.drawn: list[list[str]] = []
        self.rests = 0

    def render(self, requests):
        self.judged_before.append(len(self.watching.calls) if self.watching else 0)
        time.sleep(self.seconds)
        self.drawn.append([request.completion for request in requests])
        return [RenderError("nothing to see") if "undrawable" in request.completion else plain(request.completion) for request in requests]

    def rest(self):
        self.rests += 1


class Critic:
    """Scores the red of a picture, some calls later than others, and fails as it is told."""

    identity = "critic"
    batch_size = 1

    def __init__(self, seconds=0.0, concurrency=4, failing=lambda request, call: None):
        self.seconds, self.concurrency, self.failing = seconds, concurrency, failing
        self.calls: list[str] = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()

    def judge(self, pictures):
        with self.lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            self.calls += [request.completion for request, _ in pictures]
        time.sleep(self.seconds)
        with self.lock:
            self.at_once -= 1
            calls = {request: self.calls.count(request.completion) for request, _ in pictures}
        return [self.failing(request, calls[request]) or Judgement(image.getpixel((0, 0))[0] / 255) for request, image in pictures]


def request(completion, original="a cat", size=None):
    return RenderRequest(original, completion, seed_of(0, original), size)


def test_outcomes_come_in_the_order_of_the_requests_and_equal_ones_are_drawn_once():
    painter, critic = Painter(), Critic()
    wanted = [request(text) for text in ("b", "a", "b", "c", "a")]
    rendered = RenderedScores(painter, critic)(wanted)
    assert [outcome.score for outcome in rendered.outcomes] == [ord(text) / 255 for text in "babca"]
    assert painter.drawn == [["b", "a"], ["c"]]
    assert sorted(critic.calls) == ["a", "b", "c"]
    assert (painter.rests, rendered.remembered) == (1, 0)


def test_a_batch_holds_pictures_of_one_size():
    wanted = [request("a"), request("b", size=(64, 32)), request("c"), request("d"), request("e", size=(64, 32))]
    assert [[item.completion for item in batch] for batch in batches(wanted, 2)] == [["a", "c"], ["b", "e"], ["d"]]


def test_judging_goes_on_while_the_next_batch_is_drawn():
    critic = Critic(seconds=0.6, concurrency=3)
    painter = Painter(seconds=0.2, batch_size=1, watching=critic)
    rendered = RenderedScores(painter, critic)([request(text) for text in "abcdef"])
    assert 1 < critic.most_at_once <= 3
    assert painter.judged_before[0] == 0 < painter.judged_before[-1] < 6
    assert len(rendered.render_seconds) == len(rendered.judge_seconds) == 6


def test_what_cannot_be_drawn_or_judged_has_no_score():
    critic = Critic(failing=lambda request, call: JudgeError("unreadable") if request.completion == "c" else None)
    metrics = {}
    wanted = [request("a"), request("undrawable"), request("c"), None, request("d")]
    found = scores(RenderedScores(Painter(), critic), wanted, most_failures=0.5, log_metric=metrics.__setitem__)
    assert found.requests == wanted
    assert [str(getattr(item, "score", item)) for item in found.outcomes] == [
        str(ord("a") / 255),
        "nothing to see",
        "unreadable",
        "None",
        str(ord("d") / 255),
    ]
    assert [one.completion for one in found.pictures] == ["a", "c", "d"]
    assert metrics["rendered/failed"] == 0.5
    assert metrics["rendered/empty"] == 0.2


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_score_that_is_no_number_is_none(tmp_path, score):
    memory = JudgementCache(tmp_path / "kept.sqlite", "painter", "critic")
    critic = Critic(failing=lambda request, call: Judgement(score) if request.completion == "b" else None)
    metrics, wanted = {}, [request("a"), request("b")]
    found = scores(RenderedScores(Painter(), critic, memory), wanted, most_failures=0.5, log_metric=metrics.__setitem__)
    assert isinstance(found.outcomes[0], Judgement) and "is no number" in str(found.outcomes[1])
    assert metrics["rendered/failed"] == 0.5 and set(memory.find(wanted)) == {wanted[0]}


def test_how_long_each_part_took_is_logged():
    metrics = {}
    wanted = [request(text) for text in "abc"]
    scores(RenderedScores(Painter(0.02, batch_size=1), Critic(0.05, 1)), wanted, most_failures=0.5, log_metric=metrics.__setitem__)
    for part, least in (("render", 0.02), ("judge", 0.05)):
        assert least <= metrics[f"rendered/{part}_latency"] < metrics[f"rendered/{part}_seconds"]
        assert metrics[f"rendered/{part}_seconds"] >= 3 * least
    assert metrics["rendered/seconds"] >= 3 * 0.05


def test_too_many_failures_stop_the_run_and_say_why():
    wanted = [request(text) for text in ("a", "undrawable", "b", "undrawable 2")]
    with pytest.raises(RenderError, match=r"^2 of 4 pictures could not be drawn or judged, .* allows 25%; the first: nothing to see$"):
        scores(RenderedScores(Painter(), Critic()), wanted, most_failures=0.25)


def test_a_failure_is_not_remembered(tmp_path):
    memory = JudgementCache(tmp_path / "kept.sqlite", "painter", "critic")
    critic = Critic(failing=lambda request, call: JudgeError("429", passing=True) if call == 1 else None)
    score = RenderedScores(Painter(), critic, memory)
    assert isinstance(score([request("a")]).outcomes[0], JudgeError)
    assert isinstance(score([request("a")]).outcomes[0], Judgement)


def test_a_judge_that_breaks_down_ends_the_call_without_waiting_for_the_rest():
    class Broken(Critic):
        def judge(self, pictures):
            raise JudgeError("its weights cannot be loaded")

    with pytest.raises(JudgeError, match="cannot be loaded"):
        RenderedScores(Painter(), Broken())([request(text) for text in "abc"])


def test_nothing_is_drawn_twice_in_another_process_or_run(tmp_path):
    def score(painter, critic, **options):
        return RenderedScores(painter, critic, JudgementCache(tmp_path / "kept.sqlite", painter.identity, critic.identity), **options)

    wanted = [request(text) for text in "abc"]
    first = score(Painter(), Critic())(wanted)
    painter, critic = Painter(), Critic()
    again = score(painter, critic)([*wanted, request("d")])
    assert again.outcomes[:3] == first.outcomes
    assert (painter.drawn, critic.calls, again.remembered) == ([["d"]], ["d"], 3)


def test_a_replay_draws_and_judges_nothing(tmp_path):
    def score(painter, critic, only):
        memory = JudgementCache(tmp_path / "kept.sqlite", painter.identity, critic.identity, required=only)
        return RenderedScores(painter, critic, memory, replay_only=only)

    wanted = [request(text) for text in "abc"]
    recorded = score(Painter(), Critic(), only=False)(wanted)
    painter, critic = Painter(), Critic()
    assert score(painter, critic, only=True)(wanted).outcomes == recorded.outcomes
    with pytest.raises(JudgeError, match=r"replay: only: 1 of 4 completions were never judged .* 'a cat'; record them"):
        score(painter, critic, only=True)([*wanted, request("d")])
    assert (painter.drawn, painter.rests, critic.calls) == ([], 0, [])


def test_the_noise_follows_the_prompt_and_the_run_and_not_the_completion():
    assert seed_of(0, "a cat") == seed_of(0, "a cat") != seed_of(0, "a dog")
    assert seed_of(1, "a cat") != seed_of(0, "a cat")
    assert 0 <= seed_of(0, "a cat") < 2**32
