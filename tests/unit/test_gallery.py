"""Covers the answers that a run keeps for people: small pictures, one line a question, before and after."""

import json
import random

from PIL import Image

from qwen_vl_grpo import gallery, tasks
from qwen_vl_grpo.config import TaskSection
from qwen_vl_grpo.interfaces import Sample


def test_a_large_picture_is_kept_small(tmp_path):
    noise = Image.frombytes("RGB", (900, 600), random.Random(0).randbytes(900 * 600 * 3))
    sample = Sample("7", [{"role": "user", "content": "?"}], [noise], "4")
    gallery.keep(tmp_path, "before", tasks.build(TaskSection()), [sample], [["4"]])
    name = gallery.read(tmp_path)[0][0]["pictures"][0]
    with Image.open(tmp_path / name) as kept:
        assert (kept.size, name[-5:]) == ((512, 341), ".jpeg")


def test_nothing_but_pixels_is_kept_of_a_picture(tmp_path):
    noise = Image.frombytes("RGB", (320, 320), random.Random(0).randbytes(320 * 320 * 3))
    for picture in (noise, Image.new("RGB", (40, 40), "red")):
        picture.info |= dict.fromkeys(("comment", "icc_profile", "exif", "xmp"), b"whose it is")
        assert b"whose it is" not in (tmp_path / gallery.keep_picture(tmp_path, picture)).read_bytes()
        assert picture.info  # the picture itself is another's


def test_answers_before_and_after_are_kept_in_one_line(tmp_path):
    sample = Sample("7", [{"role": "user", "content": "?"}], [], "4")
    for when, text in (("before", "5"), ("after", "<reasoning>\n\n</reasoning>\n<answer>\n4\n</answer>")):
        gallery.keep(tmp_path, when, tasks.build(TaskSection()), [sample], [[text]])
    (item,), broken = gallery.read(tmp_path)
    assert (item["before"]["correct"], item["after"]["correct"], broken) == (False, True, 0)


def test_no_more_than_the_first_questions_are_kept_and_broken_lines_are_counted(tmp_path):
    samples = [Sample(str(place), [{"role": "user", "content": "?"}], [], "4") for place in range(gallery.KEPT + 5)]
    gallery.keep(tmp_path, "after", tasks.build(TaskSection()), samples, [["4"]] * len(samples))
    with (tmp_path / "answers.jsonl").open("a") as file:
        file.write('{"place": 3, "ques\n' + json.dumps({"place": "x", "question": "?"}) + "\n")
    items, broken = gallery.read(tmp_path)
    assert ([item["id"] for item in items], broken) == ([str(place) for place in range(gallery.KEPT)], 2)


def test_a_folder_without_answers_has_none(tmp_path):
    assert gallery.read(tmp_path) == ([], 0)
