"""Covers rows that repeat each other: exact ones, pictures that are scaled or compressed copies, and clips."""

import io

import datasets
import numpy
import pytest
from PIL import Image, ImageDraw

from qwen_vl_grpo import looks, repeats


def chart(number, size=(320, 240)):
    chance = numpy.random.default_rng(number)
    picture = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(picture)
    for place in range(8):
        draw.rectangle([20 + place * 36, 230 - int(chance.integers(5, 220)), 44 + place * 36, 230], fill=tuple(chance.integers(0, 200, 3)))
    return picture


def compressed(picture, quality=60):
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality)
    return Image.open(file)


def scaled(picture):
    return picture.resize((picture.width * 3 // 4, picture.height * 3 // 4), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("change", [compressed, scaled, lambda picture: compressed(scaled(picture), 75)])
def test_a_changed_copy_is_found_and_another_picture_is_not(change):
    ours = {f"ours {n}": looks.of_picture(chart(n)) for n in range(20)}
    theirs = {f"theirs {n}": looks.of_picture(change(chart(n))) for n in range(15, 40)}
    assert sorted(looks.alike(ours, theirs)) == [(f"ours {n}", f"theirs {n}") for n in range(15, 20)]


def test_pieces_of_a_comparison_find_what_the_whole_finds(monkeypatch):
    ours, theirs = ({f"{side} {n}": looks.of_picture(chart(n % 7)) for n in range(10)} for side in "ab")
    whole = looks.alike(ours, theirs)
    assert len(whole) == 16
    monkeypatch.setattr(looks, "AT_ONCE", 1)
    assert looks.alike(ours, theirs) == whole


def test_plain_pictures_look_like_nothing():
    plain = {color: looks.of_picture(Image.new("RGB", (56, 56), color)) for color in ("red", "blue")}
    assert looks.alike(plain, {"other": looks.of_picture(Image.new("RGB", (80, 80), "green"))}) == []


def test_a_clip_looks_like_its_compressed_frames_and_not_like_others():
    clips = [[chart(start + n) for n in range(6)] for start in (0, 10)]
    found = looks.alike(
        {"first": looks.of_frames(clips[0])},
        {
            "again": looks.of_frames([compressed(frame) for frame in clips[0]]),
            "other": looks.of_frames(clips[1]),
            "still": looks.of_picture(chart(0)),
        },
    )
    assert found == [("first", "again")]


def table(*rows):
    keys = ("id", "question", "answer", "picture_ids")
    given = [dict(zip(keys, row, strict=True)) for row in rows]
    return datasets.Dataset.from_list([row | {"prompt": [{"role": "user", "content": row["question"]}]} for row in given])


ROWS = [("1", "How many?", "3", ["a"]), ("2", "How many?", "3", ["b"]), ("3", "How many?", "3", ["a"]), ("4", "How many?", "5", ["a"])]


def test_rows_that_ask_the_same_of_the_same_pictures_are_doubted():
    assert repeats.within(repeats.read(table(*ROWS))) == [
        "1 rows are there more than once (id 3 is id 1)",
        "1 rows ask what another asks and have other answers (id 4 asks as id 1)",
    ]
    assert repeats.within(repeats.read(table(*ROWS[:2]))) == []


def test_a_question_on_both_sides_is_a_fault_and_a_picture_a_doubt():
    held_out = table(("8", "How many?", "4", ["b"]), ("9", "Which?", "red", ["c", "a"]), ("10", "Which?", "red", ["d"]))
    faults, doubts = repeats.on_both_sides(repeats.read(table(*ROWS)), repeats.read(held_out))
    assert len(faults) == len(doubts) == 1
    assert "1 held-out rows are trained on" in faults[0] and "(id 8 is id 2)" in faults[0]
    assert "1 held-out rows show a picture that is trained on" in doubts[0] and "(id 9 shows what is in id 4)" in doubts[0]
