"""Covers `grpo studio` with tiny trained runs in a real browser: base beside tuned, pictures, a file, what is wrong, no network."""

import contextlib
import json
import os
import socket
import threading
import time

import pytest
import uvicorn
from PIL import Image
from typer.testing import CliRunner

from benchmarks import chromium
from demo import clips, tiny_pictures
from qwen_vl_grpo import cli, side_by_side, studio, training
from qwen_vl_grpo.answering import How
from qwen_vl_grpo.errors import ConfigError
from qwen_vl_grpo.items import Item
from tests.made_runs import make_run

in_a_browser = pytest.mark.skipif(
    chromium.installed() is None and os.environ.get("CI") != "true", reason="no Chromium on this machine (Debian: apt-get install chromium)"
)
EVIL = "a cat <img src=x onerror=\"document.title='owned'\">"


@pytest.fixture
def runs(config_of, checkpoint, tmp_path):
    """Two runs of one base, an adapter each: one that rewrites prompts, with tiny pictures."""
    tiny_pictures.sd3(tmp_path / "sd3")
    tiny_pictures.clip(tmp_path / "clip")
    (tmp_path / "train.txt").write_text("a purple cat\na square wheel\n")
    found = []
    for seed, run_id in enumerate(("one", "two")):
        config = config_of(
            run_id=run_id, output_dir=str(tmp_path / "runs"), seed=seed, model_name=checkpoint("qwen2_vl"),
            dataset_name=str(tmp_path / "train.txt"), max_steps=1, batch_size=4, num_generations=4, gradient_accumulation_steps=1,
            max_completion_length=8, learning_rate=1.0, tracking={"report_to": "none"}, task={"name": "prompt_enhancement"},
            renderer={"model": str(tmp_path / "sd3"), "t5": False, "width": 32, "height": 32, "steps": 1},
            judge={"model": str(tmp_path / "clip"), "low": -1.0, "high": 1.0, "replay": "off"},
        )  # fmt: skip
        found.append((training.train(config), config.run_dir))
    return side_by_side.SideBySide(found)


@pytest.fixture
def address(runs):
    with served(runs) as found:
        yield found


@contextlib.contextmanager
def served(runs):
    """The page of some runs, served as the command does, by a thread."""
    line = socket.socket()
    line.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(studio.local(runs), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [line]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{line.getsockname()[1]}/"
    server.should_exit = True
    thread.join(20)
    line.close()


def question(text):
    return Item("prompt", [{"role": "user", "content": text}])


def test_a_base_answers_without_the_adapter_that_stands_on_it_and_both_are_drawn(runs):
    ((item, (one, two)),) = runs.ask(["one", "two"], [question("a glass cat")], How())
    assert item.prompt == "a glass cat"
    assert one.base.record["completion"] == two.base.record["completion"] != one.tuned.record["completion"]
    assert len(runs._loaded) == 1  # one base in memory for all four
    for side in (one.base, one.tuned):
        assert side.picture.size == (32, 32) and side.verdict.startswith("score 0.")
    assert one.base.picture.tobytes() != one.tuned.picture.tobytes()
    ((_, (again,)),) = runs.ask(["one"], [question("a glass cat")], How())
    assert again.base.record["completion"] == one.base.record["completion"]
    assert again.tuned.record["completion"] == one.tuned.record["completion"]


def wait(browser, expression, seconds=60):
    for _ in range(seconds * 10):
        with contextlib.suppress(RuntimeError):  # the page is not there yet, or what the expression names is not
            if found := browser.value(expression):
                return found
        time.sleep(0.1)
    raise AssertionError(f"never came: {expression}; the page says {browser.value('document.body.innerText')!r}")


def click(browser, element):
    wait(browser, f"({element}).click() === undefined")


def fill(browser, selector, text):
    wait(browser, f"document.querySelector({selector!r}).focus() === document.querySelector({selector!r}).select()")
    browser.send("Input.insertText", text=text)


def upload(browser, selector, path):
    root = browser.send("DOM.getDocument")["root"]["nodeId"]
    field = browser.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
    browser.send("DOM.setFileInputFiles", nodeId=field, files=[str(path)])


@in_a_browser
def test_runs_of_clips_are_asked_about_a_clip(checkpoint, tmp_path, own_home):
    section = {"frames": 2, "min_pixels": 28 * 28, "max_pixels": 64 * 64}
    lora = {"enabled": True, "r": 4}
    card = make_run(tmp_path, "watcher", checkpoint("qwen2_5_vl"), lora=lora, task={"name": "video_actions"}, video=section)
    clips.write(tmp_path / "clip.mp4", clips.counting(12), fps=8.0)
    with served(side_by_side.SideBySide([(card, tmp_path / "watcher")])) as address, chromium.Chromium() as browser:
        browser.visit(address)
        wait(browser, "document.querySelector('#clip input[type=file]') !== null")
        upload(browser, "#clip input[type=file]", tmp_path / "clip.mp4")
        wait(browser, "document.querySelector('#clip video').readyState > 0")
        fill(browser, "#prompt textarea", "what happens")
        click(browser, "document.querySelector('#ask')")
        wait(browser, "document.querySelectorAll('#answers figure').length === 2")
        shown = browser.value("document.querySelector('#answers').innerText")
        assert "a clip of 1.5 s" in shown and "not asked" not in shown
    assert not (own_home / "footage").exists()


@in_a_browser
def test_a_person_asks_in_a_browser(address, tmp_path):
    with chromium.Chromium() as browser:
        browser.visit(address)
        fill(browser, "#prompt textarea", EVIL)
        click(browser, "document.querySelector('#ask')")
        assert wait(browser, "document.querySelectorAll('#answers figure img').length") == 2
        shown = browser.value("document.querySelector('#answers').innerText")
        assert EVIL in shown and shown.count("score 0.") == 2 and "base" in shown and "tuned" in shown

        Image.new("RGB", (60, 40), "red").save(tmp_path / "red.png")
        upload(browser, "input[type=file]", tmp_path / "red.png")
        wait(browser, "document.querySelector('#picture img').naturalWidth === 60")
        fill(browser, "#prompt textarea", "what is this")
        click(browser, "document.querySelector('#ask')")
        wait(browser, "document.querySelector('#answers h3').innerText.includes('what is this')")
        assert "not asked" not in browser.value("document.querySelector('#answers').innerText")

        (tmp_path / "asked.jsonl").write_text("".join(json.dumps({"id": str(n), "prompt": f"a cat {n}"}) + "\n" for n in range(3)))
        click(browser, "[...document.querySelectorAll('[role=tab]')].find(tab => tab.innerText.includes('file'))")
        click(browser, "document.querySelectorAll('#runs input')[1]")
        fill(browser, "#file textarea, #file input", str(tmp_path / "asked.jsonl"))
        click(browser, "document.querySelector('#ask-all')")
        wait(browser, "document.querySelectorAll('#answers figure').length === 3 * 2 * 2")

        fill(browser, "#file textarea, #file input", str(tmp_path / "nowhere.jsonl"))
        click(browser, "document.querySelector('#ask-all')")
        wait(browser, "document.body.innerText.includes('nowhere.jsonl')")

        complaints = [event["params"] for event in browser.events if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown")]
        assert complaints == []
        urls = [event["params"]["request"]["url"] for event in browser.events if event.get("method") == "Network.requestWillBeSent"]
        assert [url for url in urls if not url.startswith((address, "data:", "blob:"))] == []
        assert browser.value("document.title") == "grpo studio"


def test_another_name_for_this_machine_is_refused(address):
    import httpx

    assert httpx.get(address).status_code == 200
    assert httpx.get(address, headers={"host": "elsewhere.example"}).status_code == 400
    assert "default-src 'self'" in httpx.get(address).headers["content-security-policy"]


def test_what_is_missing_is_one_sentence(tmp_path, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=r"--port \d+: 127.0.0.1 does not give it \(Address already in use\); choose another"):
            studio.serve(side_by_side.SideBySide([]), taken.getsockname()[1])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    failed = CliRunner().invoke(cli.app, ["studio", "all"])
    assert str(failed.exception) == 'grpo studio: Gradio is not installed here; pip install "gradio>=6.31,<7"'
