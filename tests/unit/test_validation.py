"""Covers `grpo validate`: every fault of the data is found and named, and sound data has none."""

import json

import pytest
from PIL import Image

from qwen_vl_grpo import policy, rewards, solve_rates, splits, tasks, validation
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.interfaces import Sample, Verdict
from qwen_vl_grpo.sections import TaskSection
from qwen_vl_grpo.tasks import visual_reasoning

GOOD = {"image": "red.png", "question": "Which colour?", "answer": "red"}
HUE = GOOD | {"question": "Which hue?"}


@pytest.fixture
def validate(tmp_path, checkpoint, config_of):
    """Write rows and validate a config that trains on them."""
    Image.new("RGB", (56, 84), "red").save(tmp_path / "red.png")

    def run(*rows, held_out=(), **changes):
        for split, written in (("train", rows), ("test", held_out)):
            (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written), encoding="utf-8")
        given = {
            "model_name": checkpoint("qwen2_5_vl"),
            "dataset_name": str(tmp_path),
            "dataset_split": "train",
            "max_completion_length": 16,
        }
        return validation.validate(config_of(**given | changes))

    return run


def sample(answer, **columns):
    return Sample("7", [], [], answer, columns)


def test_sound_data_has_no_fault_and_its_prompt_is_shown(validate, own_home):
    found = validate(GOOD, GOOD | {"answer": "blue"}, held_out=[HUE], evaluation={"dataset_split": "test"})
    assert found.faults == []
    assert "train: 1 rows ask what another asks and have other answers" in found.doubts[0]
    assert "1 held-out rows show a picture that is trained on with other questions" in found.doubts[1]
    said = "\n".join(found.said)
    assert "split train: 2 rows kept, 0 dropped" in said
    assert "2 gold answers and 6 near misses tried" in said
    assert "2 rows to train on, 1 held out" in said
    assert "16 for the completion; the context: 4096 tokens" in said
    text = (own_home / "validated/unit/prompt.txt").read_text(encoding="utf-8")
    assert "Which colour?" in text and "<|image_pad|>" in text
    assert Image.open(own_home / "validated/unit/picture-0.png").size == (56, 84)


def test_every_fault_is_named_and_not_only_the_first(validate):
    rows = [GOOD, GOOD | {"image": "gone.png"}, GOOD | {"answer": ""}, GOOD | {"question": "why " * 5000}]
    faults = "\n".join(validate(*rows).faults)
    for number, said in ((1, "picture that cannot be opened"), (2, "column 'answer' holds ''"), (3, "the context holds 4096")):
        assert f"split train, row {number}: " in faults
        assert said in faults


def test_a_held_out_row_that_is_trained_on_is_a_fault(validate):
    found = validate(GOOD, HUE, held_out=[GOOD], evaluation={"dataset_split": "test"})
    assert "1 held-out rows are trained on, so that their scores reward memory" in found.faults[0]


def test_a_fault_of_an_answer_hides_none_of_what_is_held_out(validate):
    unanswerable = GOOD | {"answer": "<answer>"}
    faults = "\n".join(validate(unanswerable, GOOD, held_out=[GOOD], evaluation={"dataset_split": "test"}).faults)
    assert "its own answer '<answer>' is judged wrong" in faults
    assert "1 held-out rows are trained on" in faults


def test_a_held_out_picture_that_is_a_scaled_copy_is_doubted_and_shown(validate, tmp_path, own_home):
    noise = Image.effect_noise((20, 15), 99).resize((320, 240), Image.Resampling.BICUBIC)
    noise.save(tmp_path / "one.png")
    noise.resize((240, 180)).save(tmp_path / "other.jpg")
    rows = [HUE | {"image": "one.png"}], [GOOD | {"image": "other.jpg"}]
    for _ in range(2):  # looked at, and from the cache
        found = validate(GOOD, *rows[0], held_out=rows[1], evaluation={"dataset_split": "test"})
        assert found.faults == []
        assert "1 pictures or clips that are held out look like ones that are trained on" in found.doubts[-1]
    both = Image.open(own_home / "validated/unit/alike-0.png")
    assert both.size == (308 + 252, 252)


def test_the_share_of_groups_without_spread_is_that_of_the_probe_or_unknown(validate, config_of, checkpoint, tmp_path):
    data = {"dataset_name": str(tmp_path), "dataset_split": "train"}
    changes = {"model_name": checkpoint("qwen2_5_vl"), "max_completion_length": 16, "num_generations": 4}
    config = config_of(**changes)
    unknown = validate(GOOD, HUE, **changes)
    assert f"groups without spread: unknown; `grpo probe {config.model_name} --config CONFIG` measures them" in unknown.said
    missing = validate(GOOD, HUE, **changes, data={"filter": [0.1, 0.9]})
    assert "data.filter: 2 of 2 rows have no solve rate" in missing.faults[0]
    task = tasks.build(config.task)
    rows = splits.load(config_of(**changes | data), task, policy.load_processor(config)).train
    records = [
        {"row": key, "solve_rate": rate, "correct": [rate > n / 4 for n in range(4)], "reward": [rate > n / 4 for n in range(4)]}
        for key, rate in zip(solve_rates.keys(rows), (0.5, 1.0), strict=True)
    ]
    path = solve_rates.place(config)
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    said = validate(GOOD, HUE, **changes, data={"filter": [0.1, 0.9]}).said
    assert "expected of 2 of 2 rows: 0.50 of the groups of 4 all right or all wrong, 0.50 paid alike" in said
    assert "of the 1 rows kept: 0.00 of the groups of 4 all right or all wrong, 0.00 paid alike" in said


def test_what_the_config_drops_is_no_fault(validate):
    found = validate(GOOD, GOOD | {"answer": ""}, data={"unusable": "drop"})
    assert found.faults == []
    assert "1 rows kept, 1 unusable" in found.said[0]


@pytest.mark.parametrize(
    ("answer", "columns", "said"),
    [
        ("dog", {"choices": ["cat", "cow"]}, "is none of the choices"),
        ("C", {"choices": ["cat", "cow"]}, "is none of the choices"),
        ("many", {"answer_type": "integer"}, "is no integer"),
        ("12.5", {"answer_type": "integer"}, "is no integer"),
        ("many", {"answer_type": "float"}, "is no float"),
        ("[1, 2", {"answer_type": "list"}, "is no list"),
    ],
)
def test_an_answer_that_no_completion_can_give_is_a_fault(answer, columns, said):
    with pytest.raises(DataError, match=said):
        visual_reasoning.examples(sample(answer, **columns))


NEAR = [
    (sample("red"), "not red"),
    (sample("12", answer_type="integer"), "13"),
    (sample("1,200", answer_type="integer"), "1201"),
    (sample("1.2", answer_type="float", precision=1.0), "1.3"),
    (sample("[1, 2]", answer_type="list"), "[1, 2, 0]"),
    (sample("dog", choices=["cat", "dog"]), "(A)"),
    (sample("B", choices=["cat", "dog"]), "cat"),
]


@pytest.mark.parametrize(("given", "wrong"), NEAR, ids=[wrong for _, wrong in NEAR])
def test_a_near_miss_is_of_the_answers_kind_and_judged_wrong(given, wrong):
    gold, near = visual_reasoning.examples(given)
    assert f"\n{wrong}\n" in "".join(near)
    assert visual_reasoning.judge(gold, given).correct
    assert not any(visual_reasoning.judge(text, given).correct for text in near)


def test_no_letter_is_a_near_miss_where_a_choice_is_called_like_one():
    near = visual_reasoning.examples(sample("(a)", choices=["(b)", "(a)"]))[1]
    assert [text.split("<answer>\n")[-1].split("\n")[0] for text in near] == ["(b)", "", "(a)"]


@pytest.mark.parametrize("mode", ["strict", "documented"])
def test_the_rewards_of_both_modes_pay_gold_answers_in_full_and_near_misses_less(mode):
    task = tasks.build(TaskSection(mode=mode))
    weighted = [(rewards.find(name), weight) for name, weight in task.rewards]
    assert validation.answers([given for given, _ in NEAR if given.answer != "B"], task, weighted)[1] == []


def lenient(completion, given):
    return Verdict(True, True)


def severe(completion, given):
    return Verdict(True, False)


@pytest.mark.parametrize(
    ("judge", "said"), [(lenient, "is judged right and the answer is 'red'"), (severe, "its own answer 'red' is judged wrong")]
)
def test_a_judge_that_cannot_tell_is_a_fault(judge, said):
    task = tasks.Task("own", "", (), visual_reasoning.read_row, judge, visual_reasoning.examples)
    assert said in "\n".join(validation.answers([sample("red")], task, [])[1])


def test_rewards_that_pay_a_near_miss_as_much_are_a_fault():
    weighted = [(rewards.find("well_formed_reward"), 1.0)]
    assert "earns 1 and the answer 'red' 1" in "\n".join(validation.answers([sample("red")], tasks.build(TaskSection()), weighted)[1])


def test_a_reward_that_does_not_pay_a_gold_answer_in_full_is_a_fault():
    """The documented correctness asks for the very characters, so a gold answer with a space at its end is never paid."""
    weighted = [(rewards.find("correctness_reward_func"), 1.0)]
    faults = validation.answers([sample("red ")], tasks.build(TaskSection()), weighted)[1]
    assert "correctness_reward_func pays 0.0 for its own answer 'red '" in "\n".join(faults)


def test_a_reward_of_ones_own_that_breaks_its_contract_is_a_fault(tmp_path):
    (tmp_path / "mine.py").write_text("def half(completions, **_):\n    return [0.5]\n", encoding="utf-8")
    weighted = [(rewards.find(f"{tmp_path / 'mine.py'}:half"), 1.0)]
    faults = validation.answers([sample("red"), sample("blue")], tasks.build(TaskSection()), weighted)[1]
    assert "reward half: returned 1 scores for 2 completions" in "\n".join(faults)
