"""Covers judges/endpoint.py and what it is made of: the real client against a server that is slow, wrong and broken on purpose."""

import os
from typing import Literal

import pytest
from PIL import Image
from pydantic import BaseModel

from demo.judge_server import JudgeServer
from qwen_vl_grpo.judges.endpoint import Endpoint, Question
from qwen_vl_grpo.rendered_sections import JudgeSection

KEY = "sk-test-0123456789abcdef"


class Score(BaseModel):
    reason: str
    score: Literal["0", "5", "10"]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    for name in [name for name in os.environ if name.startswith("OPENAI_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def server():
    with JudgeServer(key=KEY) as server:
        yield server


def endpoint(server, **changes):
    return Endpoint(JudgeSection.model_validate({"name": "complex_edit", "base_url": server.url} | changes))


def question(*content, **changes):
    return Question("You are a judge.", content or (Image.new("RGB", (64, 32), "red"), "Is it red?"), Score, **changes)


def test_a_question_with_a_picture_is_answered_in_its_form(server):
    server.answer = lambda asked: {"reason": "red", "score": "10"}
    (reply,) = endpoint(server).ask(question())
    assert reply.parsed == Score(reason="red", score="10")
    (asked,) = server.asked
    assert asked.images[0].size == (64, 32)
    assert asked.text == "Is it red?"
    assert asked.schema["properties"]["score"]["enum"] == ["0", "5", "10"]
    assert asked.body["model"] == "gpt-4o-2024-11-20"
