"""Covers prompts from text and CSV files: what is read, and which line is broken."""

import pytest

from qwen_vl_grpo import sources
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.sections import DataSection


@pytest.fixture
def read(tmp_path):
    def rows(name, content):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return sources.find(str(tmp_path / name), "train", DataSection()).rows()

    return rows


def test_a_text_file_is_a_prompt_a_line(read):
    content = "\ufeffa cat\n\n  a dog, caf\u00e9 \r\nlast"
    assert read("prompts.txt", content) == [{"prompt": text} for text in ("a cat", "a dog, caf\u00e9", "last")]


def test_a_csv_file_has_a_header(read):
    content = 'id,kind,prompt\n1,colour,"a red, round\nlemon"\n2,,a "blue" banana\n'
    assert read("prompts.csv", content) == [
        {"id": "1", "kind": "colour", "prompt": "a red, round\nlemon"},
        {"id": "2", "kind": "", "prompt": 'a "blue" banana'},
    ]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"a cat\n\na d\xffog\n", "line 3 is not UTF-8 text"),
        ("a.txt", "a cat\na\x00 dog\n", "line 2 holds control characters"),
        ("a.csv", "prompt\na cat\na, dog\n", "line 3 has more fields than the header"),
        ("a.csv", "prompt,kind\na cat,x\na dog\n", "line 3 has fewer fields than the header"),
        ("a.csv", 'prompt\n"a cat\n', "line 2 is not CSV"),
        ("a.jsonl", '{"prompt": "a cat"}\n{"prompt": \n', "line 2 is not JSON"),
    ],
)
def test_a_broken_line_is_named(read, name, content, said):
    with pytest.raises(DataError, match=rf"{name}: {said}"):
        read(name, content)


def test_a_folder_has_a_file_a_split(tmp_path):
    (tmp_path / "train.csv").write_text("prompt\na cat\n")
    (tmp_path / "test.txt").write_text("a dog\n")
    found = [sources.find(str(tmp_path), split, DataSection()).rows() for split in ("train", "test")]
    assert found == [[{"prompt": "a cat"}], [{"prompt": "a dog"}]]
    with pytest.raises(DataError, match=r"no split 'dev' \(looked for dev.jsonl, .*dev.txt\); splits there: test, train"):
        sources.find(str(tmp_path), "dev", DataSection())
