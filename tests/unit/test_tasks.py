"""Covers finding a task, and how visual reasoning reads the columns of a row."""

import pytest
from PIL import Image

from qwen_vl_grpo import tasks
from qwen_vl_grpo.errors import ConfigError, DataError
from qwen_vl_grpo.sections import DataSection, TaskSection
from qwen_vl_grpo.tasks import visual_reasoning

PICTURE = Image.new("RGB", (56, 56), "red")
OWN = """
from qwen_vl_grpo.interfaces import Task, Verdict

def build():
    return Task("counting", "Count.", (("correctness_reward_func", 1.0),), None, None)

def number():
    return 7
"""


def read(row, **columns):
    return visual_reasoning.read_row(row, DataSection(columns=columns), "Answer.")


def test_the_built_in_task_is_found_by_name():
    assert tasks.build(TaskSection()).name == "visual_reasoning"


def test_the_mode_chooses_the_rewards_and_strict_is_the_default():
    strict = ("tags_reward", "well_formed_reward", "solved_reward")
    documented = ("xmlcount_reward_func", "soft_format_reward_func", "strict_format_reward_func", "correctness_reward_func")
    assert tuple(name for name, _ in tasks.build(TaskSection()).rewards) == strict
    assert tuple(name for name, _ in tasks.build(TaskSection(mode="documented")).rewards) == documented


def test_a_misspelt_task_gets_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean 'visual_reasoning'"):
        tasks.build(TaskSection(name="visual_reasonin"))


def test_an_own_task_is_found_by_path(tmp_path):
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    assert tasks.build(TaskSection(name=f"{tmp_path / 'mine.py'}:build")).name == "counting"


def test_the_documented_mode_is_refused_for_an_own_task(tmp_path):
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"task\.mode: documented is for the built-in tasks"):
        tasks.build(TaskSection(name=f"{tmp_path / 'mine.py'}:build", mode="documented"))


def test_an_own_function_that_returns_no_task_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    with pytest.raises(ConfigError, match="returned int; it must return a Task"):
        tasks.build(TaskSection(name=f"{tmp_path / 'mine.py'}:number"))


def test_a_mathvista_row_is_read_as_it_comes():
    row = {
        "pid": "7", "question": "How many?", "image": "images/7.jpg", "decoded_image": PICTURE, "choices": None, "answer": "3",
        "query": "Hint: Please answer with an integer.\nQuestion: How many?",
    }  # fmt: skip
    sample = read(row)
    assert (sample.id, sample.answer, sample.columns["choices"]) == ("7", "3", [])
    assert [turn["content"] for turn in sample.prompt] == ["Answer.", row["query"]]
    assert [image.size for image in sample.images] == [(56, 56)]


def test_a_row_hands_on_what_the_rewards_need_and_nothing_that_it_lacks():
    row = {"question": "How long?", "image": PICTURE, "answer": "3", "precision": 2, "unit": None, "question_type": "free_form"}
    columns = read(row | {"answer_type": "float"}).columns
    assert columns == {"choices": [], "precision": 2.0, "question_type": "free_form", "answer_type": "float"}
    assert read({"question": "Which?", "image": PICTURE, "answer": "3", "choices": [3, "b"]}).columns == {"choices": ["3", "b"]}


@pytest.mark.parametrize(("name", "value"), [("choices", "A, B"), ("precision", "two"), ("precision", 1.5), ("precision", -1)])
def test_a_further_column_of_the_wrong_type_is_refused(name, value):
    with pytest.raises(DataError, match=f"column '{name}' holds {value!r}"):
        read({"question": "What?", "image": PICTURE, "answer": "4", name: value})


def test_data_columns_names_the_columns_that_an_answer_is_judged_by():
    row = {"question": "Which?", "image": PICTURE, "answer": "2", "options": ["1", "2"], "decimals": 1, "measure": "cm", "kind": "float"}
    columns = {"choices": "options", "precision": "decimals", "unit": "measure", "question_type": "kind", "answer_type": "kind"}
    kinds = {"question_type": "float", "answer_type": "float"}
    assert read(row, **columns).columns == {"choices": ["1", "2"], "precision": 1.0, "unit": "cm"} | kinds


def test_a_column_that_data_columns_names_and_no_row_has_is_refused():
    with pytest.raises(DataError, match=r"has no column 'option' for the choices; it has .*; correct data\.columns\.choices"):
        read({"question": "Which?", "image": PICTURE, "answer": "2", "options": ["1", "2"]}, choices="option")


def test_the_published_rule_is_scored_beside_ours_where_the_row_has_its_types():
    row = {"question": "Which?", "image": PICTURE, "answer": "dog", "choices": ["cat", "dog"]}
    types = {"question_type": "multi_choice", "answer_type": "text"}
    hedged = "<reasoning>\nwhy\n</reasoning>\n<answer>\n(B) or (A)\n</answer>\n<|im_end|>"
    verdict = visual_reasoning.judge(hedged, read(row | types))
    assert (verdict.format, verdict.correct, verdict.official) == (True, False, True)
    assert visual_reasoning.judge(hedged, read(row)).official is None


def test_data_columns_names_the_column_of_each_part():
    row = {"number": 9, "ask": "What?", "question": "no", "photo": PICTURE, "truth": 4, "answer": "no"}
    sample = read(row, id="number", question="ask", image="photo", answer="truth")
    assert (sample.id, sample.prompt[1]["content"], sample.answer, len(sample.images)) == ("9", "What?", "4", 1)


def test_data_columns_names_the_column_of_several_pictures():
    sample = read({"question": "Same?", "photos": [PICTURE, PICTURE], "answer": "yes"}, images="photos")
    assert len(sample.images) == 2


def test_an_empty_list_of_pictures_is_a_question_in_text():
    assert read({"question": "6 times 7?", "images": [], "answer": "42"}).images == []


@pytest.mark.parametrize("answer", [None, True, "", "  ", ["a"], {"a": 1}], ids=repr)
def test_an_answer_of_the_wrong_type_is_refused_with_the_way_out(answer):
    with pytest.raises(DataError, match=r"column 'answer' holds .*data\.columns\.answer"):
        read({"question": "What?", "image": PICTURE, "answer": answer})


@pytest.mark.parametrize("question", [None, "", "  ", 7, ["a"]], ids=repr)
def test_a_question_that_is_no_text_is_refused(question):
    with pytest.raises(DataError, match=r"column 'question' holds .*a question is text"):
        read({"question": question, "image": PICTURE, "answer": "4"})


@pytest.mark.parametrize("missing", ["image", "question", "answer"])
def test_a_missing_column_is_refused_with_what_is_there_and_the_way_out(missing):
    row = {"image": PICTURE, "question": "What?", "answer": "4"}
    del row[missing]
    with pytest.raises(DataError, match=rf"has no column .* for the {missing}; it has .*; map it with data\.columns\.{missing}"):
        read(row)


@pytest.mark.parametrize(
    ("completion", "well_formed", "right"),
    [
        ("<reasoning>\nwhy\n</reasoning>\n<answer>\n4\n</answer>\n", True, True),
        ("<reasoning>\nwhy\n</reasoning>\n<answer>\n5\n</answer>\n", True, False),
        ("<answer>\n4\n</answer>", False, False),
        ("4", False, False),
    ],
)
def test_only_a_right_answer_in_the_format_is_correct(completion, well_formed, right):
    sample = read({"question": "What?", "image": PICTURE, "answer": "4"})
    verdict = visual_reasoning.judge(completion, sample)
    assert (verdict.format, verdict.correct) == (well_formed, right)
