"""Covers the file of answers: continued after half a line, held by one process, and --output made from it."""

import json
import resource

import pytest

from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.journal import Journal, key, name_for, openai_line


def record(item, error=None, asked="q", **more):
    told = {} if error else {"completion": f"to {item}", "finish_reason": "stop", "prompt_tokens": 5, "completion_tokens": 2}
    made = {"run_id": "r", "sha": "s", "item": item, "asked": asked, "time": "2026-11-28T09:00:00+00:00", "error": error}
    return made | told | more


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "below/journal.jsonl"


def test_what_was_added_is_answered_in_the_next_process(path):
    with Journal(path) as first:
        first.add(record("1"))
        first.add(record("2", "gone"))
    with Journal(path) as second:
        assert second.answered(retry_errors=False) == {("r", "s", "1", "q"), ("r", "s", "2", "q")}
        assert second.answered(retry_errors=True) == {("r", "s", "1", "q")}


@pytest.mark.parametrize("cut", [1, 2, 20])
def test_half_a_line_at_the_end_is_cut_off_and_no_other(path, cut):
    with Journal(path) as first:
        first.add(record("1"))
        first.add(record("2"))
    path.write_bytes(path.read_bytes()[:-cut])
    with Journal(path) as second:
        assert [known["item"] for known in second.records] == ["1"]
        second.add(record("3"))
    assert [known["item"] for known in lines(path)] == ["1", "3"]


def test_a_line_broken_in_the_middle_is_refused_and_nothing_is_lost(path):
    path.parent.mkdir()
    path.write_text("{\n" + json.dumps(record("1")) + "\n")
    before = path.read_bytes()
    with pytest.raises(DataError, match="line 1 is broken"), Journal(path):
        pass
    assert path.read_bytes() == before


def test_a_full_disk_is_said_and_the_answers_before_are_kept(path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with (
            pytest.raises(DataError, match=r"journal\.jsonl: cannot be written \(.*\); the answers before are kept: make room"),
            Journal(path) as full,
        ):
            full.add(record("1"))
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 50, limits[1]))
            full.add(record("2"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with Journal(path) as after:
        assert [record["item"] for record in after.records] == ["1"]
        after.add(record("2"))
    assert [record["item"] for record in lines(path)] == ["1", "2"]


def test_a_second_process_is_refused(path):
    with Journal(path), pytest.raises(DataError, match="another process"), Journal(path):
        pass
    with Journal(path):
        pass


def test_the_output_holds_the_wanted_answers_once_wherever_the_last_process_was_killed(path, tmp_path):
    output = tmp_path / "out/answers.jsonl"
    with Journal(path, output) as first:
        first.begin_output(set())
        first.add(record("1"))
        first.add(record("2", "gone"))
    output.write_bytes(output.read_bytes()[:-30])
    with Journal(path, output) as second:
        wanted = second.answered(retry_errors=True)
        second.begin_output(wanted)
        assert [known["item"] for known in lines(output)] == ["1"]
        second.add(record("2"))
    assert lines(output) == [record("1"), record("2")]


@pytest.mark.parametrize("content", ["my notes", "my notes\n", json.dumps(record("9")) + "\n"])
def test_an_output_with_something_else_in_it_stays_as_it_is(path, tmp_path, content):
    output = tmp_path / "notes.txt"
    output.write_text(content)
    with Journal(path, output) as kept:
        kept.add(record("1"))
        with pytest.raises(DataError, match="holds something else"):
            kept.begin_output(set())
    assert output.read_text() == content


def test_openais_format_goes_out(path, tmp_path):
    output = tmp_path / "out.jsonl"
    with Journal(path, output, openai=True) as kept:
        kept.begin_output(set())
        kept.add(record("1"))
        kept.add(record("2", "gone"))
    good, bad = lines(output)
    assert (good["custom_id"], good["error"], good["response"]["status_code"]) == ("1", None, 200)
    body = good["response"]["body"]
    assert (body["model"], body["choices"][0]["message"], body["created"]) == ("r", {"role": "assistant", "content": "to 1"}, 1795856400)
    assert body["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    assert (bad["custom_id"], bad["response"], bad["error"]["message"]) == ("2", None, "gone")
    assert openai_line(record("1"))["id"] != openai_line(record("2"))["id"]
    assert key(record("1")) != key(record("1", asked="other"))


def test_a_journal_has_the_name_of_its_input_and_no_other_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert name_for("../a b/in.jsonl").startswith("in-")
    assert name_for("in.jsonl") == name_for(str(tmp_path / "in.jsonl")) != name_for("other/in.jsonl")
