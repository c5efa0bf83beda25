"""Covers what can be asked in a file: JSONL, CSV, a folder and OpenAI's batch format, and rows at fault among good ones."""

import json

import pytest

from qwen_vl_grpo import items
from qwen_vl_grpo.errors import DataError


@pytest.fixture
def read(tmp_path):
    """Write an input of this name and read it."""

    def make(text, name="in.jsonl", prompt=None):
        (tmp_path / name).write_text(text, encoding="utf-8", newline="")
        return items.read(str(tmp_path / name), prompt)

    return make


def rows(*given):
    return "".join(json.dumps(row) + "\n" for row in given)


def test_a_line_asks_a_question_with_its_pictures(read, tmp_path):
    given = (
        {"id": 7, "prompt": "Why?", "images": ["a.png", "https://example.com/b.png"]},
        {"question": "And?", "image": "c.png"},
        {"prompt": "x", "video": "d.mp4"},
        {"prompt": "x", "videos": ["https://example.com/e.mp4", "f.mp4"]},
    )
    first, second, third, fourth = read(rows(*given)).items
    assert (first.id, first.prompt, first.images, first.folder) == ("7", "Why?", ["a.png", "https://example.com/b.png"], tmp_path)
    assert (second.id, second.prompt, second.images, second.error) == ("2", "And?", ["c.png"], None)
    assert (third.id, third.images, third.videos) == ("3", [], ["d.mp4"])
    assert fourth.videos == ["https://example.com/e.mp4", "f.mp4"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": "6", broken', "line 7 is no JSON object"),
        ("[1, 2]", "it is no object"),
        ("[" * 100_000, "line 7 is no JSON object"),
        ('{"id": "x", "image": "a.png"}', "asks nothing"),
        ('{"id": "x", "prompt": 7}', "asks nothing"),
        ('{"id": "x", "prompt": "Why?", "images": [7]}', "no paths or URLs"),
        ('{"id": "x", "prompt": "Why?", "video": {"path": "a.mp4"}}', "its clips are no paths"),
        ('{"id": "2", "prompt": "Why?"}', "its id '2' is taken"),
    ],
)
def test_a_row_at_fault_is_told_and_the_others_stay(read, line, said):
    good = [json.dumps({"id": str(number), "prompt": "Why?"}) for number in range(10)]
    found = read("\n".join([*good[:6], line, *good[6:]])).items
    assert [item.id for item in found if not item.error] == [str(number) for number in range(10)]
    assert said in next(item.error for item in found if item.error)
    assert len({item.id for item in found}) == 11


def test_a_broken_line_7_is_called_line_7(read):
    assert read("\n".join(['{"prompt": "a"}'] * 6 + ["{"] + ['{"prompt": "a"}'])).items[6].id == "line 7"


def test_the_prompt_of_the_command_asks_where_a_row_asks_nothing(read):
    assert [item.prompt for item in read(rows({"image": "a.png"}, {"prompt": "Own?"}), prompt="All?").items] == ["All?", "Own?"]


def test_csv_has_the_same_columns(read):
    text = '\ufeffid,prompt,images\r\n1,"Which, and\nwhy?",a.png; b.png\r\n2,Text,\r\n,,a.png\r\n'
    first, second, third = read(text, "in.CSV").items
    assert (first.id, first.prompt, first.images) == ("1", "Which, and\nwhy?", ["a.png", "b.png"])
    assert (second.id, second.images) == ("2", [])
    assert "asks nothing" in third.error


def test_csv_with_an_open_quote_is_told_and_what_came_before_stays(read):
    found = read('id,prompt\n1,Why?\n2,"open\n', "in.csv").items
    assert [item.error is None for item in found] == [True, False]


def test_a_folder_is_every_picture_in_it(tmp_path):
    (tmp_path / "below").mkdir()
    for name in ("b.png", "a.JPG", "notes.txt", "below/c.webp"):
        (tmp_path / name).touch()
    found = items.read(str(tmp_path), "What is this?").items
    assert [(item.id, item.images, item.folder) for item in found] == [
        (name, [name], tmp_path) for name in ("a.JPG", "b.png", "below/c.webp")
    ]


def openai(content="Why?", **body):
    return {
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": [{"role": "user", "content": content}]} | body,
    }


def test_openais_batch_format_is_read_with_its_pictures_and_clips_in_their_places(read):
    url = "data:image/png;base64,AA=="
    parts = [{"type": "text", "text": "First"}, {"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "then"}]
    parts.append({"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}})
    line = {"custom_id": "r1"} | openai(parts, max_tokens=9, temperature=0.5)
    batch = read(rows(line))
    item = batch.items[0]
    assert batch.openai
    assert (item.id, item.images, item.max_new_tokens, item.temperature, item.prompt) == ("r1", [url], 9, 0.5, "First then")
    assert item.messages == [{"role": "user", "content": [parts[0], {"type": "image"}, parts[2], {"type": "video"}]}]
    assert item.videos == ["https://example.com/a.mp4"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (openai(n=2), "asks for n = 2"),
        (openai(tools=[]), "asks for tools"),
        (openai(stream=True), "asks for stream"),
        (openai(max_tokens=0), "max_tokens is 0"),
        (openai(temperature="hot"), "temperature is 'hot'"),
        (openai([{"type": "image_url", "image_url": {"url": "/etc/passwd"}}]), "no http, https or data: URL"),
        (openai([{"type": "video_url", "video_url": {"url": "file:///etc/passwd"}}]), "its video_url parts is no http"),
        (openai([{"type": "input_audio"}]), "neither text nor"),
        (openai(messages=[]), "no messages"),
        (openai(messages=[{"role": "tool", "content": "x"}]), "roles are"),
        ({"body": None}, "no messages"),
    ],
)
def test_a_request_that_cannot_be_done_is_told(read, line, said):
    found = read(rows({"custom_id": "r1"} | line, {"custom_id": "r2"} | openai())).items
    assert said in found[0].error
    assert found[1].error is None


@pytest.mark.parametrize(("text", "said"), [("", "holds no question"), ("\n\n", "holds no question"), (None, "no such file")])
def test_an_input_without_a_question_is_refused(read, tmp_path, text, said):
    with pytest.raises(DataError, match=said):
        read(text) if text is not None else items.read(str(tmp_path / "gone.jsonl"), None)


def test_an_input_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "in.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read as UTF-8"):
        items.read(str(tmp_path / "in.jsonl"), None)
