"""Covers a whole run whose judge is asked over HTTP: its budget ends it, a larger one goes on where it stood, and the key is nowhere."""

import json
from itertools import count

import pytest

from demo.judge_server import Answer, JudgeServer, Response

KEY = "sk-test-0123456789abcdef0123456789abcdef"
PARTS = '''\
"""A renderer that paints the letters of a completion, and a judge that asks an endpoint how bright the picture is."""

import hashlib
import json
import threading

from PIL import Image
from pydantic import BaseModel

from qwen_vl_grpo.errors import JudgeError
from qwen_vl_grpo.interfaces import Judgement
from qwen_vl_grpo.judges.endpoint import Endpoint, Question


class Grade(BaseModel):
    brightness: int


class Painter:
    identity, batch_size = "painter", 4

    def __init__(self, section):
        pass

    def render(self, requests):
        return [Image.frombytes("RGB", (8, 1), hashlib.sha512(request.completion.encode()).digest()[:24]) for request in requests]

    def rest(self):
        pass


class Asking:
    batch_size = 1

    def __init__(self, section):
        self.endpoint, self.concurrency = Endpoint(section), section.concurrency
        self.identity = json.dumps(self.endpoint.identity, sort_keys=True)
        self.endpoint.check()

    def judge(self, pictures):
        try:
            question = lambda image: Question("You are a judge.", (image, "How bright is it?"), Grade)
            return [Judgement(self.endpoint.ask(question(image))[0].parsed.brightness / 10) for _, image in pictures]
        except JudgeError as error:
            return [error]
'''
CHANGES = {
    "task": {"name": "prompt_enhancement"}, "rewards": [], "dataset_name": "prompts", "save_steps": 1, "max_steps": 3,
    "renderer": {"name": "parts.py:Painter"},
}  # fmt: skip


@pytest.fixture
def server(workshop, monkeypatch):
    (workshop.folder / "parts.py").write_text(PARTS, encoding="utf-8")
    (workshop.folder / "prompts").mkdir(exist_ok=True)
    (workshop.folder / "prompts/train.txt").write_text("a purple cat\na square wheel\na glass butterfly\n", encoding="utf-8")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    usage = {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}
    grades = count()

    def answer(asked):
        assert asked.headers["authorization"] == f"Bearer {KEY}"
        return Response((Answer({"brightness": next(grades) % 11}),), usage=usage)

    with JudgeServer(answer, key=KEY) as server:
        yield server


def judge(server, **changes):
    return CHANGES | {
        "judge": {
            "name": "parts.py:Asking", "model": "gpt-4o-2024-11-20", "base_url": server.url, "concurrency": 2, "cache": "judged.sqlite",
        } | changes
    }  # fmt: skip


def spent(workshop):
    return json.loads((workshop.run_dir("judged") / "spending.json").read_text(encoding="utf-8"))


def test_a_budget_ends_a_run_which_goes_on_with_a_larger_one_and_the_key_is_nowhere(workshop, server):
    stopped = workshop.train("judged", **judge(server, most_tokens=1200))
    assert stopped.returncode == 1
    assert "of 1200 are used; raise it and --resume; step 1 of 3 is kept" in stopped.stderr.splitlines()[-1]
    assert "Traceback" not in stopped.stderr
    assert workshop.card("judged")["state"] == "failed"
    assert 12 <= spent(workshop)["requests"] == len(server.asked) <= 14  # what was under way is paid for

    done = workshop.train("judged", "--resume", **judge(server, most_tokens=100_000))
    assert done.returncode == 0, done.stderr
    steps = [line for line in workshop.metrics("judged") if "reward" in line]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert any(step["rendered/remembered"] > 0 for step in steps[1:])  # what was judged before the end is not paid for twice
    assert spent(workshop)["requests"] == len(server.asked)

    told = stopped.stdout + stopped.stderr + done.stdout + done.stderr
    files = [path.read_bytes() for path in workshop.folder.rglob("*") if path.is_file()]
    assert KEY not in told and not any(KEY.encode() in content for content in files)
