"""Covers records with clips: the documented form and TRL's, tags and the files they stand for, and what is refused."""

import json
import re
from pathlib import Path

import pytest

from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.sections import DataSection
from qwen_vl_grpo.video_records import VideoFile, read_record

META = {"frame_cnts": [15, 11], "min_frames": 4, "max_frames": 8, "dynamic_sample": True}


def turns(*said):
    return [{"from": ("human", "gpt")[place % 2], "value": text} for place, text in enumerate(said)]


def read(columns=None, **row):
    return read_record(row, DataSection(columns=columns or {}), "Answer.")


def told(sample):
    """Who says what, a part that is shown by its kind in brackets."""
    return [(turn["role"], "".join(part["text"] or f"[{part['type']}]" for part in turn["content"])) for turn in sample.prompt]


def test_the_documented_record_is_a_question_about_a_clip():
    sample = read(id=0, video="a.mp4", meta=META, conversations=turns("<video>\nWhat happens?", "<answer>(1) reach</answer>"))
    assert told(sample) == [("system", "Answer."), ("user", "[video]What happens?")]
    assert (sample.id, sample.answer, sample.images) == ("0", "<answer>(1) reach</answer>", [])
    assert sample.videos == [VideoFile("a.mp4", (15, 11), 4, 8, True)]


def test_the_page_about_clips_shows_records_that_can_be_read():
    page = (Path(__file__).parents[2] / "docs/video.md").read_text(encoding="utf-8")
    documented, several, chat = (read(**json.loads(shown)) for shown in re.findall(r"```json\n(.*?)```", page, re.DOTALL))
    assert documented.videos == [VideoFile("0.mp4", (15, 11), 4, 8, True)]
    assert told(several)[1] == ("user", "The goal is [image]. Which clip reaches it, (1) [video] or (2) [video]?")
    assert several.videos == [VideoFile("1.mp4", max_frames=6), VideoFile("2.mp4")]
    assert (told(chat)[1], chat.answer) == (("user", "[video]Which of these happen? (1) reach (2) grasp"), "(1)")


def test_several_clips_and_pictures_stand_where_their_tags_do():
    said = turns("First <video>\nthen <image> and\n<video>", "so", "Which <image>?", "(2)")
    sample = read(video=["a.mp4", "b.mp4"], image=["a.png", "b.png"], conversations=said)
    assert told(sample)[1:] == [
        ("user", "First [video]then [image] and[video]"), ("assistant", "so"), ("user", "Which [image]?"),
    ]  # fmt: skip
    assert [video.path for video in sample.videos] == ["a.mp4", "b.mp4"]
    assert (sample.images, sample.answer) == (["a.png", "b.png"], "(2)")


def test_a_record_may_bring_its_own_system_turn_and_no_clip():
    said = [{"from": "system", "value": "Be short."}, *turns("6 times 7?", "42")]
    assert told(read(conversations=said)) == [("system", "Be short."), ("user", "6 times 7?")]


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [
        ("Which?", "[video][image]Which?"),
        ([{"role": "user", "content": "Which?"}], "[video][image]Which?"),
        ([{"role": "user", "content": "Which, <image> or <video>?"}], "Which, [image] or [video]?"),
        (
            [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Which?"}, {"type": "video", "text": None}]}],
            "[image]Which?[video]",
        ),
    ],
)
@pytest.mark.parametrize("column", ["video", "videos"])
def test_a_row_in_the_style_of_trl_shows_its_files_where_its_chat_says_and_else_first(prompt, shown, column):
    sample = read(prompt=prompt, images=["a.png"], solution="(1)", **{column: ["a.mp4"]})
    assert told(sample)[1:] == [("user", shown)]
    assert (sample.answer, len(sample.videos)) == ("(1)", 1)


def test_its_columns_may_have_other_names():
    sample = read({"question": "asked", "answer": "gold", "id": "name"}, asked="What?", gold=3, name="x", video="a.mp4")
    assert (sample.id, sample.answer, told(sample)[1]) == ("x", "3", ("user", "[video]What?"))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"conversations": turns("<video> <video>", "x"), "video": "a.mp4"}, "has 2 <video> tags and names 1 files for them"),
        ({"conversations": turns("What?", "x"), "video": "a.mp4"}, "has 0 <video> tags and names 1 files"),
        ({"conversations": turns("<image>", "x")}, "has 1 <image> tags and names 0 files"),
        ({"conversations": turns("What?")}, r"does not end in a question \(human\) and its answer \(gpt\)"),
        ({"conversations": []}, "does not end in a question"),
        ({"conversations": "What?"}, "is no list of turns with from and value|no list of turns"),
        ({"conversations": [{"from": "robot", "value": ""}]}, "holds a turn from 'robot'"),
        ({"prompt": "What?"}, "has neither conversations nor a prompt and an answer"),
        ({"prompt": [{"role": "system", "content": "x"}], "answer": "x"}, "without a turn of the user"),
        ({"prompt": "What?", "answer": "x", "video": 7}, "names 7 as its video; a clip is a path"),
        ({"prompt": "What?", "answer": "x", "videos": ["a", "b"], "meta": [{}]}, "holds 1 meta for 2 clips"),
        ({"prompt": "What?", "answer": "x", "video": "a", "meta": "x"}, "holds 'x' as meta"),
        ({"prompt": "What?", "answer": "x", "video": "a", "meta": {"frame_cnts": [0]}}, r"holds meta.frame_cnts \[0\]; it counts frames"),
        ({"prompt": "What?", "answer": "x", "video": "a", "meta": {"frame_cnts": []}}, "holds meta.frame_cnts"),
        ({"prompt": "What?", "answer": "x", "video": "a", "meta": {"min_frames": "4"}}, "holds meta.min_frames '4'"),
        ({"prompt": "What?", "answer": "x", "video": "a", "meta": {"min_frames": 9, "max_frames": 8}}, "holds meta.min_frames 9 above max"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_what_to_do(row, said):
    with pytest.raises(DataError, match=said):
        read(**row)
