"""Covers the matrix puzzles: answers, sides of the split, pictures that show what they ask, noise as told, and what the page says."""

import json
import random

import numpy
import pytest

from demo import matrices, results
from qwen_vl_grpo import answers


def read(folder, name):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("matrices")
    matrices.write(folder)
    return folder


def numbers(row):
    return numpy.array(list(map(int, row["id"].rpartition("-")[2]))).reshape(2, 2)


def test_answers_are_those_of_linear_algebra_and_no_matrix_is_on_both_sides(written):
    worked_out = {"trace": numpy.trace, "determinant": numpy.linalg.det, "rows": lambda matrix: matrix.sum(1).prod()}
    train, test = read(written, "train"), read(written, "test")
    assert len(test) == 3 * matrices.TEST_MATRICES and len(train) + len(test) == 3 * 5**4
    for row in [*train, *test]:
        assert int(row["answer"]) == round(worked_out[row["kind"]](numbers(row))), row
    assert not {row["image"] for row in train} & {row["image"] for row in test}


def test_a_picture_shows_each_number_in_its_place():
    plain = numpy.array(matrices.picture((0, 0, 0, 0)))
    assert plain.shape == (56, 56, 3)
    for place in range(4):
        changed = [0, 0, 0, 0]
        changed[place] = 3
        other = numpy.array(matrices.picture(tuple(changed)))
        inside = (slice(28 * (place // 2) + 10, 28 * (place // 2) + 18), slice(28 * (place % 2) + 8, 28 * (place % 2) + 20))
        assert (other[inside] != plain[inside]).any(-1).mean() > 0.5


def test_targets_are_as_noisy_as_they_say(written):
    row = next(row for row in read(written, "train") if row["kind"] == "determinant")
    draw = random.Random(0)
    targets = [matrices.noisy_target(row, draw) for _ in range(2000)]
    assert sum(answers.strict_answer(target) is not None for target in targets) / 2000 == pytest.approx(1 - matrices.FORMAT_NOISE, abs=0.03)
    read_rightly = " ; ".join(" ".join(map(str, line)) for line in numbers(row))
    shown = [target for target in targets if "reasoning" in target]
    misread = matrices.READING_NOISE * 4 / 5  # one in five draws the number that is there
    assert sum(read_rightly in target for target in shown) / len(shown) == pytest.approx(1 - misread, abs=0.03)


@pytest.mark.parametrize(
    ("interval", "said"), [((-0.3, -0.1), "content was lost"), ((-0.1, 0.1), "may be chance"), ((0.1, 0.3), "content was learned, too")]
)
def test_the_page_calls_content_lost_or_learned_only_where_that_is_no_chance(interval, said):
    content = {"change": sum(interval) / 2, "interval": interval}
    changes = {"greedy": {"format": {"change": 1.0}, "correct": {"change": 0.5}, "official": content}, "sampled": {"official": content}}
    assert said in results.what_it_learned(changes)
