"""Covers judges/cache.py: what is remembered by what, eight processes at once, broken files, and disks that cannot be written."""

import json
import logging
import multiprocessing
import os
import sqlite3

import pytest

from qwen_vl_grpo.errors import JudgeError
from qwen_vl_grpo.interfaces import Judgement, RenderRequest
from qwen_vl_grpo.judges.cache import JudgementCache

CAT = RenderRequest("a cat", "a cat in the sun", 7)
SAID = Judgement(0.5, {"cosine": 0.25}, "it is a cat")


@pytest.fixture
def cache(tmp_path):
    def make(renderer="sd3", judge="clip", required=False):
        return JudgementCache(tmp_path / "deep" / "judgements.sqlite", renderer, judge, required)

    return make


@pytest.mark.parametrize(
    "other",
    [
        RenderRequest("a dog", "a cat in the sun", 7),
        RenderRequest("a cat", "a cat in the rain", 7),
        RenderRequest("a cat", "a cat in the sun", 8),
        RenderRequest("a cat", "a cat in the sun", 7, (64, 32)),
    ],
    ids=["prompt", "completion", "seed", "size"],
)
def test_a_judgement_is_remembered_for_its_request_alone(cache, other):
    cache().keep([(CAT, "p1", SAID)])
    assert cache().find([CAT, other]) == {CAT: SAID}


def test_another_renderer_or_judge_knows_nothing_of_it(cache):
    cache().keep([(CAT, "p1", SAID)])
    assert cache(renderer="sd3 at another revision").find([CAT]) == cache(judge="clip with another prompt").find([CAT]) == {}


def test_the_same_picture_is_judged_once_whatever_it_was_drawn_from(cache):
    cache().keep([(CAT, "p1", SAID)])
    again = RenderRequest("a cat", "a cat in the sun, and much more that the renderer does not read", 7)
    assert cache(renderer="another").same_picture(again, "p1") == SAID
    assert cache().same_picture(again, "p2") is None
    assert cache().same_picture(RenderRequest("a dog", "a cat in the sun", 7), "p1") is None
    assert cache(judge="another").same_picture(again, "p1") is None


def test_the_first_judgement_stays(cache):
    cache().keep([(CAT, "p1", SAID)])
    cache().keep([(CAT, "p1", Judgement(0.9))])
    assert cache().find([CAT]) == {CAT: SAID}


def write_many(path, process, start):
    cache = JudgementCache(path, "sd3", "clip")
    start.wait(120)
    for number in range(50):
        cache.keep([(RenderRequest(f"p{process}", f"c{number}", 0), f"{process}/{number}", Judgement(number / 50))])


@pytest.mark.parametrize("broken", [False, True])
def test_eight_processes_lose_nothing(tmp_path, broken):
    path = tmp_path / "judgements.sqlite"
    if broken:
        path.write_bytes(b"not a database, by far" * 50)
    spawned = multiprocessing.get_context("spawn")
    start = spawned.Barrier(8)
    processes = [spawned.Process(target=write_many, args=(path, process, start)) for process in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 8
    wanted = {RenderRequest(f"p{process}", f"c{number}", 0): Judgement(number / 50) for process in range(8) for number in range(50)}
    assert JudgementCache(path, "sd3", "clip").find(list(wanted)) == wanted
    assert len(list(tmp_path.glob("judgements.sqlite.broken-*"))) == broken


@pytest.mark.parametrize("how", ["no database", "overwritten in the middle"])
def test_a_broken_file_is_set_aside_and_a_new_one_begun(cache, caplog, how):
    first = cache()
    first.keep([(RenderRequest("a cat", f"{number} cats" * 20, 0), f"p{number}", SAID) for number in range(200)])
    content = first.path.read_bytes()
    broken = b"not a database, by far" * 50 if how == "no database" else content[:4096] + b"\xff" * (len(content) - 4096)
    first.path.write_bytes(broken)
    second = cache()
    with caplog.at_level(logging.WARNING, "qwen_vl_grpo"):
        assert second.find([CAT]) == {}
        second.keep([(CAT, "p1", SAID)])
    assert second.find([CAT]) == cache().find([CAT]) == {CAT: SAID}
    aside = list(first.path.parent.glob("judgements.sqlite.broken-*"))
    assert [path.read_bytes() for path in aside] == [broken]
    assert "is broken" in caplog.text and aside[0].name in caplog.text


def test_a_full_disk_is_one_warning_and_what_is_there_can_still_be_read(cache, caplog):
    there = cache()
    there.keep([(CAT, "p1", SAID)])
    there._connection.execute("PRAGMA max_page_count = 1")  # SQLite then answers as on a full disk
    many = [(RenderRequest("a cat", "long " * 400, number), f"p{number}", SAID) for number in range(50)]
    with caplog.at_level(logging.WARNING, "qwen_vl_grpo"):
        there.keep(many)
        there.keep(many)
    assert caplog.text.count("cannot be written (database or disk is full)") == 1
    assert there.find([CAT, many[0][0]]) == {CAT: SAID}


def test_a_read_only_file_is_a_warning(cache, caplog):
    cache().keep([(CAT, "p1", SAID)])
    reader = cache()
    reader._connection = sqlite3.connect(f"file:{reader.path}?mode=ro", uri=True, check_same_thread=False)
    reader._process = os.getpid()
    with caplog.at_level(logging.WARNING, "qwen_vl_grpo"):
        reader.keep([(RenderRequest("a cat", "another", 7), "p2", SAID)])
    assert "cannot be written (attempt to write a readonly database)" in caplog.text
    assert reader.find([CAT]) == {CAT: SAID}


def test_a_folder_that_cannot_be_made_is_a_warning_and_in_a_replay_an_error(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    path = tmp_path / "file" / "judgements.sqlite"
    with caplog.at_level(logging.WARNING, "qwen_vl_grpo"):
        JudgementCache(path, "sd3", "clip").keep([(CAT, "p1", SAID)])
    assert "cannot be written" in caplog.text
    with pytest.raises(JudgeError, match=r"cannot be read .* and a replay has nothing else"):
        JudgementCache(path, "sd3", "clip", required=True).find([CAT])


def test_a_judgement_is_stored_with_all_that_a_person_would_ask(cache):
    made = cache("sd3 at abc", "clip at def")
    made.keep([(CAT, "p1", SAID)])
    with sqlite3.connect(made.path) as connection:
        row = connection.execute(
            "SELECT renderer, judge, picture, original, completion, seed, score, details, reason FROM judgements"
        ).fetchone()
    assert row[:7] == ("sd3 at abc", "clip at def", "p1", "a cat", "a cat in the sun", 7, 0.5)
    assert (json.loads(row[7]), row[8]) == ({"cosine": 0.25}, "it is a cat")
