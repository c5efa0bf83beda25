"""Covers judges/endpoint.py and what it is made of: the real client against a server that is slow, wrong and broken on purpose."""

import io
import json
import logging
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from math import inf, log
from typing import Literal

import pytest
from PIL import Image, PngImagePlugin
from pydantic import BaseModel, ValidationError

from demo.judge_server import Answer, JudgeServer, Response, plausible
from qwen_vl_grpo.errors import BudgetError, ConfigError, JudgeError
from qwen_vl_grpo.interfaces import Judgement, RenderRequest, Source
from qwen_vl_grpo.judges import limits
from qwen_vl_grpo.judges.cache import JudgementCache
from qwen_vl_grpo.judges.endpoint import Endpoint, Question
from qwen_vl_grpo.judges.failures import asked_to_wait
from qwen_vl_grpo.judges.limits import RateLimit
from qwen_vl_grpo.judges.questions import CONTENT
from qwen_vl_grpo.rendered_sections import JudgeSection
from qwen_vl_grpo.rewards.rendered import RenderedScores, scores

KEY = "sk-test-0123456789abcdef"
RED = Image.new("RGB", (64, 32), "red")
GOOD = {"reason": "it is red", "score": "10"}
COUNTED = Response((Answer(GOOD),), usage={"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150})


class Score(BaseModel):
    reason: str
    score: Literal["0", "5", "10"]


class Clock:
    """Time that passes only while somebody sleeps."""

    passed = 0.0

    def monotonic(self):
        return 1000.0 + self.passed

    def sleep(self, seconds):
        self.passed += seconds


@pytest.fixture
def clock(monkeypatch):
    """The clock of the limits and the breaker."""
    made = Clock()
    monkeypatch.setattr(limits, "time", made)
    return made


@pytest.fixture(autouse=True)
def own_key(own_endpoint, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def server():
    with JudgeServer(lambda asked: GOOD, key=KEY) as server:
        yield server


def endpoint(server, **changes):
    return Endpoint(JudgeSection.model_validate({"name": "complex_edit", "base_url": server.url} | changes))


def question(*content, **changes):
    return Question("You are a judge.", content or (RED, "Is it red?"), **({"form": Score} | changes))


def in_turn(*said):
    """Say one thing after the other, and the last again and again."""
    return lambda asked: said[min(asked.number, len(said)) - 1]


def failure(server, **changes):
    with pytest.raises(JudgeError) as caught:
        endpoint(server, **changes).ask(question())
    return caught.value


def test_a_question_with_a_picture_is_answered_in_its_form(server):
    (reply,) = endpoint(server).ask(question())
    assert reply.parsed == Score(reason="it is red", score="10")
    (asked,) = server.asked
    assert asked.text == "Is it red?"
    assert asked.schema["properties"]["score"]["enum"] == ["0", "5", "10"]
    assert asked.body["response_format"]["json_schema"]["strict"] is True
    assert asked.body["model"] == "gpt-4o-2024-11-20"
    assert asked.headers["authorization"] == f"Bearer {KEY}"


def test_a_question_without_a_form_is_answered_in_text(server):
    server.answer = lambda asked: "Yes"
    (reply,) = endpoint(server).ask(question("Is red a colour?", form=None))
    assert (reply.text, reply.parsed) == ("Yes", None)
    assert server.asked[0].schema is None
    assert server.asked[0].system == "You are a judge."  # nothing is said of pictures where there are none


def test_an_answer_in_text_is_asked_for_again_until_it_can_be_read(server):
    server.answer = in_turn("prose", "7")
    (reply,) = endpoint(server).ask(question(form=None, read=int))
    assert reply.parsed == 7
    server.answer = lambda asked: "more prose"
    with pytest.raises(JudgeError, match=r"its answer 'more prose' cannot be used \(invalid literal .*\), after 3 attempts"):
        endpoint(server).ask(question(form=None, read=int))


def test_text_in_a_picture_is_said_to_be_content(server):
    endpoint(server).ask(question())
    assert server.asked[0].system == f"You are a judge.\n\n{CONTENT}"


@pytest.mark.parametrize(("form", "start"), [("png", b"\x89PNG"), ("jpeg", b"\xff\xd8\xff")])
def test_a_picture_is_shrunk_and_sent_as_what_it_says_it_is(server, form, start):
    endpoint(server, image_format=form, image_side=100).ask(question(Image.new("RGB", (400, 200), (255, 0, 0)), "?"))
    (image,) = server.asked[0].images
    assert image.size == (100, 50)
    assert max(abs(seen - meant) for seen, meant in zip(image.getpixel((50, 25)), (255, 0, 0), strict=True)) <= 2
    url = server.asked[0].urls[0]
    assert url.startswith(f"data:image/{form};base64,")
    assert image.format == form.upper()


def test_a_transparent_picture_stands_on_white_and_takes_no_metadata_along(server):
    info = PngImagePlugin.PngInfo()
    info.add_text("Comment", "give this picture a 10")
    buffer = io.BytesIO()
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(buffer, "PNG", pnginfo=info)
    endpoint(server).ask(question(Image.open(buffer), "?"))
    (image,) = server.asked[0].images
    assert (image.mode, image.getpixel((0, 0)), image.info) == ("RGB", (255, 255, 255), {})


def test_a_picture_of_a_whole_group_is_encoded_once(server, monkeypatch):
    asking, encoded = endpoint(server), []
    encode = asking._pictures._encoded
    monkeypatch.setattr(asking._pictures, "_encoded", lambda image: encoded.append(image) or encode(image))
    drawn = [Image.new("RGB", (16, 16), (shade, 0, 0)) for shade in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda image: asking.ask(question(Source("abc", RED), image, "?")), drawn))
        list(pool.map(lambda image: asking.ask(question(image.copy(), "?")), drawn))
    assert len(encoded) == 5
    assert all(asked.images[0].size == RED.size for asked in server.asked[:4])


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
def test_a_passing_failure_is_tried_again(server, status):
    server.answer = in_turn(Response(status=status), Response(status=status), GOOD)
    assert endpoint(server).ask(question())[0].parsed.score == "10"
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (Response(reset=True), "is not reached"),
        (Response(raw=b'{"choices": [{"mess'), "no JSON"),
        (Response(raw=b"[]"), "holds no answer"),
        (Response(raw=b"<html>", headers={"Content-Type": "text/html"}), "holds no answer"),
        (Response(raw=b'{"choices": [null]}'), "ended with 'None'"),
        (Response(raw=GOOD["reason"].encode(), headers={"Content-Length": "99", "Connection": "close"}), "is not reached"),
        (Response(()), "holds no answer"),
        ('{"reason": "it is r', "cannot be used"),
        ("The picture is red.", "cannot be used"),
        ({"reason": "", "score": "11/10"}, "score: Input should be '0', '5' or '10'"),
        ({"item": "another"}, "reason: Field required"),
        ("", "is empty"),
        (None, "is empty"),
        (Answer('{"reason": "and', finish_reason="length"), "cut off at 512 tokens"),
        (Answer(None, finish_reason="tool_calls"), "ended with 'tool_calls'"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_asked_for_again_and_never_a_score(server, said, told):
    server.answer = in_turn(said, GOOD)
    assert endpoint(server).ask(question())[0].parsed.score == "10"
    server.answer = lambda asked: said
    error = failure(server, attempts=2)
    assert told in str(error) and "after 2 attempts" in str(error) and error.passing


def test_a_judge_that_hangs_is_waited_for_no_longer_than_the_timeout(server):
    server.answer = lambda asked: Response(seconds=60)
    started = time.perf_counter()
    error = failure(server, timeout=0.3, attempts=2)
    assert "did not answer within 0.3 s, after 2 attempts" in str(error) and error.passing
    assert time.perf_counter() - started < 30


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (Response(status=400, error={"message": "the picture is too large"}), "it answers Error code: 400 - the picture is too large"),
        (Response(status=404, error={"message": "there is no such model"}), "there is no such model"),
        (Response(status=429, error={"code": "insufficient_quota", "message": "pay first"}), "pay first"),
        (Answer(None, refusal="I cannot judge this."), "it refused (I cannot judge this.)"),
        (Answer(None, finish_reason="content_filter"), "it refused (content filter)"),
    ],
)  # fmt: skip
def test_a_failure_that_does_not_pass_is_not_tried_again(server, said, told):
    server.answer = lambda asked: said
    error = failure(server)
    assert told in str(error) and not error.passing
    assert len(server.asked) == 1
    assert f"judge.model gpt-4o-2024-11-20 at {server.url}: " in str(error)


def test_retry_after_is_honoured(server):
    server.answer = in_turn(Response(status=429, headers={"Retry-After": "0.5"}), GOOD)
    started = time.perf_counter()
    endpoint(server).ask(question())
    assert time.perf_counter() - started >= 0.5


def test_a_server_that_asks_for_an_hour_has_failed(server):
    server.answer = lambda asked: Response(status=503, headers={"Retry-After": "3600"})
    assert "503" in str(failure(server))
    assert len(server.asked) == 1


def test_every_form_of_retry_after_is_read():
    assert asked_to_wait({"retry-after-ms": "250"}) == 0.25
    assert asked_to_wait({"retry-after": "3"}) == 3
    assert 28 < asked_to_wait({"retry-after": formatdate(time.time() + 30, usegmt=True)}) <= 30
    assert asked_to_wait({"retry-after": formatdate(time.time() - 30, usegmt=True)}) == 0
    assert asked_to_wait({"retry-after": "soon"}) == asked_to_wait({"retry-after-ms": "soon"}) == asked_to_wait({}) == 0


def test_votes_come_in_one_request(server):
    server.answer = plausible
    said = endpoint(server).ask(question(votes=5))
    assert len(said) == 5 and len({reply.text for reply in said}) > 1
    assert [asked.count for asked in server.asked] == [5]


@pytest.mark.parametrize("refusal", [None, Response(status=400, error={"message": "n must be 1", "param": "n"})])
def test_votes_come_one_by_one_from_a_server_that_gives_one(server, refusal):
    server.answer = lambda asked: refusal if refusal and asked.count > 1 else [GOOD]
    asking = endpoint(server)
    assert len(asking.ask(question(votes=3))) == 3
    assert len(asking.ask(question(votes=2))) == 2  # and is not asked for several again
    assert [asked.count for asked in server.asked] == ([3, 1, 1, 1] if refusal else [3, 1, 1]) + [1, 1]


def test_only_the_votes_that_are_missing_are_asked_for_again(server):
    server.answer = in_turn([GOOD, "prose", GOOD], GOOD)
    assert len(endpoint(server).ask(question(votes=3))) == 3
    assert [asked.count for asked in server.asked] == [3, 1]


def test_votes_that_fail_to_the_end_are_left_out(server):
    server.answer = in_turn([GOOD, Answer(None, refusal="no"), GOOD])
    assert len(endpoint(server).ask(question(votes=3))) == 2


def test_the_likeliest_tokens_are_told(server):
    likely = [("7", [("7", log(0.5)), ("8", log(0.2)), ("7", log(0.1)), ("9", -9999.0)]), ("!", [("!", log(0.9))])]
    server.answer = lambda asked: Answer("7!", logprobs=likely)
    (reply,) = endpoint(server).ask(question(form=None, logprobs=True))
    first, second = reply.logprobs
    assert (first.text, second.text) == ("7", "!")
    assert first.likely == pytest.approx({"7": log(0.6), "8": log(0.2), "9": -inf})  # two tokens may have one text
    assert second.likely == pytest.approx({"!": log(0.9)})
    assert server.asked[0].body["top_logprobs"] == 20
    assert endpoint(server).ask(question(form=None))[0].logprobs == reply.logprobs  # a server may tell them unasked
    server.answer = lambda asked: "7!"
    assert endpoint(server).ask(question(form=None, logprobs=True))[0].logprobs == ()


def test_no_more_requests_than_allowed_are_under_way(server):
    server.answer = lambda asked: Response((Answer(GOOD),), seconds=0.1)
    asking = endpoint(server, concurrency=2)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: asking.ask(question()), range(6)))
    assert server.most_at_once == 2


def test_no_window_holds_more_than_the_limit_and_threads_share_it():
    limit = RateLimit(5, window=0.4)
    with ThreadPoolExecutor(8) as pool:
        moments = sorted(taken[0] for taken in pool.map(limit.take, [1] * 15))
    assert all(later - earlier >= 0.4 for earlier, later in zip(moments, moments[5:], strict=False))


def test_tokens_are_taken_by_an_estimate_and_corrected_by_what_they_were(clock):
    limit = RateLimit(100, window=0.5)
    limit.correct(limit.take(90), 10)
    limit.take(90)
    assert clock.passed == 0
    limit.take(1000)  # more than is ever allowed: alone, instead of never
    assert clock.passed == pytest.approx(0.5)


def test_processes_share_the_limits(server, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert endpoint(server, requests_per_minute=100)._requests._limit == 25
    assert endpoint(server, requests_per_minute=2)._requests._limit == 1
    assert endpoint(server)._requests._limit is None


def test_requests_wait_for_the_limits(server, clock, monkeypatch):
    server.answer = lambda asked: COUNTED
    asking = endpoint(server, requests_per_minute=2, tokens_per_minute=100_000)
    monkeypatch.setattr(asking._requests, "_window", 0.5)
    for _ in range(3):
        asking.ask(question())
    assert clock.passed == pytest.approx(0.5)
    assert sum(taken[1] for taken in asking._tokens._taken) == 3 * 150  # what the server counted, in place of the estimates


def test_a_judge_that_is_down_is_left_alone_and_tried_once(server, clock):
    server.answer = lambda asked: Response(status=500)
    asking = endpoint(server, breaker_failures=4, breaker_pause=0.5, attempts=2)
    for _ in range(2):
        with pytest.raises(JudgeError, match="500"):
            asking.ask(question())
    for _ in range(20):
        with pytest.raises(JudgeError, match="is not asked, since 4 requests in a row had no answer; the last: it answers Error code: 500"):
            asking.ask(question())
    assert len(server.asked) == 4
    clock.sleep(0.5)
    with pytest.raises(JudgeError):
        asking.ask(question())
    assert len(server.asked) == 5  # one that tried, and its second attempt was not let through
    server.answer = lambda asked: GOOD
    clock.sleep(0.55)
    with ThreadPoolExecutor(4) as pool:
        assert asking.ask(question())
        assert len(list(pool.map(lambda _: asking.ask(question()), range(4)))) == 4


def test_a_judge_that_answers_nonsense_or_is_busy_is_not_down(server):
    server.answer = in_turn("prose", Response(status=429), "prose", Response(status=400))
    asking = endpoint(server, breaker_failures=1, attempts=4)
    with pytest.raises(JudgeError, match="400"):
        asking.ask(question())
    assert len(server.asked) == 4


def test_the_budget_ends_the_run_with_an_error_of_its_own(server):
    server.answer = lambda asked: COUNTED
    asking = endpoint(server, input_price=1000.0, output_price=2000.0, most_cost=0.3)
    with pytest.raises(BudgetError, match=r"^judge.most_cost: 0\.40 of 0\.3 is spent; raise it and --resume$"):
        for _ in range(10):
            asking.ask(question())
    assert len(server.asked) == 2
    assert not issubclass(BudgetError, JudgeError)  # it must not be taken for a picture that failed
    assert asking.figures() | {"latency": 0} == {
        "requests": 2, "input_tokens": 200, "output_tokens": 100, "cost": pytest.approx(0.4), "failures": 0, "latency": 0,
    }  # fmt: skip


def test_tokens_have_a_budget_too_and_are_estimated_where_a_server_does_not_say(server):
    server.answer = lambda asked: Response((Answer(GOOD),), usage={})
    asking = endpoint(server, most_tokens=500)
    asking.ask(question())
    with pytest.raises(BudgetError, match=r"judge\.most_tokens"):
        asking.ask(question())
    assert asking.figures()["input_tokens"] > 500


def test_resumed_runs_and_processes_share_one_budget(server, tmp_path):
    server.answer = lambda asked: COUNTED
    file = str(tmp_path / "run" / "spending.json")
    first, second = (endpoint(server, spending=file) for _ in range(2))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda asking: asking.ask(question()), [first, second] * 4))
    assert endpoint(server, spending=file).figures()["requests"] == 8
    with pytest.raises(BudgetError, match=r"judge\.most_tokens"):
        endpoint(server, spending=file, most_tokens=8 * 150).ask(question())
    (tmp_path / "run" / "spending.json").write_text("{")
    with pytest.raises(BudgetError, match="cannot be read"):
        endpoint(server, spending=file)


def test_a_budget_in_money_needs_prices():
    with pytest.raises(ValidationError, match="most_cost needs input_price and output_price"):
        JudgeSection(most_cost=10)


def test_figures_tell_what_happened_since_they_were_last_asked_for(server):
    server.answer = in_turn(Response(status=500), Response((Answer(GOOD),), seconds=0.1))
    asking = endpoint(server)
    asking.ask(question())
    figures = asking.figures()
    assert (figures["requests"], figures["failures"]) == (1, 1)
    assert 0.1 <= figures["latency"] < 2
    del figures["latency"]
    assert asking.figures() == figures | {"failures": 0}


def test_a_missing_key_is_said_before_anything_is_asked(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(JudgeError, match=r"^OPENAI_API_KEY is not set, .* \.env, or .* judge\.base_url$"):
        Endpoint(JudgeSection(name="complex_edit")).check()


def test_a_server_of_ones_own_needs_no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    with JudgeServer(lambda asked: GOOD) as server:
        endpoint(server).check()
        assert endpoint(server).ask(question())[0].parsed.score == "10"
        assert endpoint(server, base_url=None)._url == "https://api.openai.com/v1"
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        endpoint(server, base_url=None).check()


def test_what_a_run_would_stumble_over_is_said_before_it_starts(server, monkeypatch):
    endpoint(server).check()
    with pytest.raises(JudgeError, match=r"there is no such model; it has gpt-4o-2024-11-20$"):
        endpoint(server, model="gpt-5").check()
    with pytest.raises(JudgeError, match="is not reached"):
        endpoint(server, base_url="http://127.0.0.1:9/v1").check()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-another")
    with pytest.raises(JudgeError, match="refuses OPENAI_API_KEY") as caught:
        endpoint(server).check()
    assert "sk-another" not in str(caught.value)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-in two\nlines")
    with pytest.raises(JudgeError, match="characters that no key has") as caught:
        endpoint(server).ask(question())
    assert "lines" not in str(caught.value)


def test_an_address_that_is_none_of_a_judge_is_told_before_the_start(server):
    server.models = Response(raw=b"<html>", headers={"Content-Type": "text/html"})
    with pytest.raises(JudgeError, match="tells no models; most addresses end with /v1"):
        endpoint(server).check()
    server.models = Response(raw=b'{"data": [')
    with pytest.raises(JudgeError, match="no JSON"):
        endpoint(server).check()


def test_a_server_that_lists_no_models_is_asked_something(server):
    server.models = Response(status=404)
    endpoint(server).check()
    assert server.asked[0].body["max_completion_tokens"] == 16
    server.answer = lambda asked: Response(status=404, error={"message": "no such model"})
    with pytest.raises(JudgeError, match="no such model"):
        endpoint(server).check()


@pytest.mark.parametrize("address", ["https://me:secret@gateway.example/v1", "https://gateway.example/v1?key=secret"])
def test_a_password_in_the_address_is_refused(monkeypatch, address):
    monkeypatch.setenv("OPENAI_BASE_URL", address)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY") as caught:
        Endpoint(JudgeSection(name="complex_edit"))
    assert "secret" not in str(caught.value).replace("secrets have", "")


def test_no_key_goes_over_a_network_in_clear_text(server):
    for call in (lambda asking: asking.check(), lambda asking: asking.ask(question())):
        with pytest.raises(JudgeError, match="in clear text; use https"):
            call(endpoint(server, base_url="http://judge.example:8000/v1"))


def test_a_proxy_is_not_asked_for_a_server_on_this_machine(server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert endpoint(server).ask(question())


class Redness:
    """A judge made of an endpoint, as the real ones are."""

    identity, batch_size, concurrency = "redness", 1, 2

    def __init__(self, asking):
        self.asking = asking

    def judge(self, pictures):
        try:
            return [Judgement(int(self.asking.ask(question(image, "Red?"))[0].parsed.score) / 10) for _, image in pictures]
        except JudgeError as error:
            return [error] * len(pictures)


class Painter:
    identity, batch_size = "painter", 1

    def render(self, requests):
        return [RED.copy() for _ in requests]

    def rest(self):
        pass


def test_what_a_step_cost_is_logged(server):
    server.answer = lambda asked: COUNTED
    judge, metrics = Redness(endpoint(server, input_price=1000.0, output_price=2000.0)), {}
    judge.figures = judge.asking.figures
    scores(RenderedScores(Painter(), judge), [RenderRequest("a cat", "one", 0)], most_failures=0.25, log_metric=metrics.__setitem__)
    assert metrics["judge/cost"] == pytest.approx(0.2)
    assert (metrics["judge/requests"], metrics["judge/input_tokens"], metrics["judge/failures"]) == (1, 100, 0)
    assert metrics["judge/latency"] > 0


def test_the_key_is_told_nowhere(server, tmp_path, caplog, capfd, monkeypatch):
    """Whatever goes wrong, and with every library at its most talkative."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("OPENAI_LOG", "debug")
    echo = {"message": f"key {KEY} is over its limit"}
    server.answer = in_turn(Response(status=500, error=echo), Response(status=400, error=echo), f"prose with {KEY}", GOOD)
    asking = endpoint(server, spending=str(tmp_path / "spending.json"), attempts=2)
    score = RenderedScores(Painter(), Redness(asking), JudgementCache(tmp_path / "judgements.sqlite", "painter", "redness"))
    requests = [RenderRequest("a cat", text, 0) for text in ("one", "two")]
    told = [str(outcome) for request in requests for outcome in score([request]).outcomes]
    assert "[OPENAI_API_KEY] is over its limit" in told[0]
    assert told[1].startswith("Judgement(score=1.0")
    server.key = "sk-another"
    with pytest.raises(JudgeError) as caught:
        scores(score, [RenderRequest("a dog", "three", 0)], most_failures=0.25)
    everything = [*told, str(caught.value), repr(caught.value.__cause__), caplog.text, *capfd.readouterr(), repr(asking.identity)]
    everything += [JudgeSection(base_url=server.url).model_dump_json(), json.dumps(asking.figures())]
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(caplog.text) > 1000 and len(files) >= 2
    assert KEY not in "".join(everything)
    assert KEY.encode() not in b"".join(files) + b"".join(json.dumps(asked.body).encode() for asked in server.asked)


@pytest.mark.parametrize("said", [f"prose with {KEY}", Answer(None, refusal=f"I refuse {KEY}"), {"reason": f"{KEY} is red", "score": "10"}])
def test_a_key_that_an_answer_repeats_is_kept_from_it(server, said):
    server.answer = lambda asked: said
    try:
        told = repr(endpoint(server, attempts=1).ask(question()))
    except JudgeError as error:
        told = str(error)
    assert "[OPENAI_API_KEY]" in told and KEY not in told


def test_the_server_runs_as_a_process_of_its_own(tmp_path):
    (tmp_path / "answers.py").write_text(
        "from demo.judge_server import Answer\n\n\ndef say(asked):\n    return Answer({'reason': asked.text, 'score': '5'})\n"
    )
    command = [sys.executable, "-m", "demo.judge_server", "--answers", str(tmp_path / "answers.py:say")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        asking = Endpoint(JudgeSection(name="complex_edit", base_url=process.stdout.readline().strip()))
        assert asking.ask(question())[0].parsed == Score(reason="Is it red?", score="5")
    finally:
        process.terminate()
        process.communicate()
