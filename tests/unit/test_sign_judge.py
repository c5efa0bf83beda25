"""Covers the judge of the sign demonstration on the real recogniser: what it reads, what it refuses to score, what it remembers."""

import numpy
import pytest
from PIL import Image

from demo import sign_reader, sign_words
from demo.sign_painter import SIZE, SignPainter, paint, words_of
from demo.sign_reader import SignReader
from qwen_vl_grpo.errors import JudgeError, RenderError
from qwen_vl_grpo.interfaces import Judgement, RenderRequest

SIGNS = sorted({answer for _, _, answer in sign_words.facts()})


@pytest.fixture(scope="module")
def reader():
    return SignReader()


def request(asked: str, words: str) -> RenderRequest:
    return RenderRequest("the sign that was asked for", words, seed=0, rubric=asked)


def test_every_sign_that_can_be_asked_for_is_read_as_it_was_painted(reader):
    signs = [request(sign, sign) for sign in SIGNS]
    judged = reader.judge(list(zip(signs, SignPainter().render(signs), strict=True)))
    assert {judgement.reason: judgement.score for judgement in judged} == {f"it says {sign!r}": 1.0 for sign in SIGNS}


@pytest.mark.parametrize(
    "words", ["open", "clsed", "closed closed", "not closed", "the opposite of open", "the opposite of closed", "x" * 80]
)
def test_other_words_earn_nothing(reader, words):
    (judgement,) = reader.judge([(request("closed", words), paint(words))])
    assert isinstance(judgement, Judgement) and judgement.score == 0.0


def test_what_is_no_text_is_read_as_other_words(reader):
    noise = Image.fromarray(numpy.random.default_rng(0).integers(0, 256, (32, 160), numpy.uint8))
    for picture in (noise, Image.new("L", SIZE, "white"), Image.new("L", SIZE, "black")):
        (judgement,) = reader.judge([(request("closed", "?"), picture)])
        assert judgement.score == 0.0


def test_a_picture_that_the_recogniser_breaks_on_has_no_score(reader):
    broken, whole = reader.judge([(request("closed", "?"), Image.new("L", (160, 0))), (request("closed", "closed"), paint("closed"))])
    assert isinstance(broken, JudgeError) and "could not be read" in str(broken)
    assert whole.score == 1.0


def test_an_answer_that_is_no_number_is_no_score(monkeypatch):
    reader = SignReader()
    monkeypatch.setattr(sign_reader, "as_input", lambda image: numpy.full((1, 3, 48, 320), numpy.nan, numpy.float32))
    (judgement,) = reader.judge([(request("closed", "closed"), paint("closed"))])
    assert isinstance(judgement, JudgeError) and "not a number" in str(judgement)


def test_a_missing_recogniser_is_said_with_what_to_do(monkeypatch):
    monkeypatch.setattr(sign_reader.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(JudgeError, match="make demo-sign does that"):
        SignReader().judge([(request("closed", "closed"), paint("closed"))])


def test_a_picture_is_read_once(monkeypatch):
    reader, asked = SignReader(), []
    monkeypatch.setattr(sign_reader, "as_input", lambda image, before=sign_reader.as_input: asked.append(image) or before(image))
    judged = reader.judge([(request(gold, "closed"), paint("closed")) for gold in ("closed", "open", "closed")])
    assert ([judgement.score for judgement in judged], len(asked)) == ([1.0, 0.0, 1.0], 1)


def test_the_painter_paints_the_same_words_alike_and_says_what_it_cannot_paint():
    one, same, other, nothing, unprintable = SignPainter().render([request("", text) for text in ("up", " up\n", "down", " \n", "\x00")])
    assert one.size == SIZE and one.tobytes() == same.tobytes() != other.tobytes()
    assert isinstance(nothing, RenderError) and isinstance(unprintable, RenderError)
    assert words_of("left \n right") == "left right"
