"""Covers the difficulty probe on a tiny real model: rates by row, going on after a kill, and the run that trains by them."""

import json

import pytest
from PIL import Image

from qwen_vl_grpo import assembly, dataset, policy, probe, solve_rates, splits, tasks
from qwen_vl_grpo.errors import DataError
from tests.made_runs import lines, make_run

LUCK = """\
from qwen_vl_grpo.interfaces import Task, Verdict
from qwen_vl_grpo.tasks import visual_reasoning

def judge(completion, sample):
    return Verdict(True, len(completion) % 4 < int(sample.answer))

def luck():
    return Task("luck", "Answer.", (("tags_reward", 1.0),), visual_reasoning.read_row, judge)

def drawn():
    return Task("drawn", "Draw.", (("tags_reward", 1.0),), visual_reasoning.read_row, lambda completion, sample: Verdict(True, None))
"""


@pytest.fixture
def config(tmp_path, checkpoint, config_of):
    """A config of six rows: the first is never solved and the last always, whatever the policy says."""
    (tmp_path / "luck.py").write_text(LUCK, encoding="utf-8")
    Image.new("RGB", (56, 56), "red").save(tmp_path / "red.png")
    asked = [{"image": "red.png", "question": f"What is {n}?", "id": f"row {n}"} for n in range(6)]
    rows = [row | {"answer": answer} for row, answer in zip(asked, "012234", strict=True)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def make(**changes):
        given = {
            "model_name": checkpoint("qwen2_5_vl"), "dataset_name": str(tmp_path), "dataset_split": "train", "max_completion_length": 6,
            "num_generations": 4, "task": {"name": f"{tmp_path / 'luck.py'}:luck"},
        }  # fmt: skip
        return config_of(**given | changes)

    return make


def test_rows_are_probed_and_a_run_trains_on_those_in_between(config):
    records = probe.probe(config(), 8)
    rates = [record["solve_rate"] for record in records]
    assert (rates[0], rates[5]) == (0.0, 1.0)
    assert any(0 < rate < 1 for rate in rates)
    assert all(record["solve_rate"] == sum(record["correct"]) / 8 and len(record["tokens"]) == 8 for record in records)
    assert len({tuple(record["tokens"]) for record in records}) > 1  # k draws, and not one k times
    whole, part = (
        splits.load(made, tasks.build(made.task), policy.load_processor(made)).train
        for made in (config(), config(data={"filter": [0.01, 0.99], "curriculum": "easy_first"}))
    )
    between = [(rate, f"row {n}") for n, rate in enumerate(rates) if 0 < rate < 1]
    assert part["id"] == [name for _, name in sorted(between, key=lambda pair: -pair[0])]
    assert dataset.fingerprint(part) != dataset.fingerprint(whole)


def test_a_killed_probe_goes_on_and_asks_nothing_again(config):
    first = probe.probe(config(), 4)
    path = solve_rates.place(config())
    kept = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(kept[:4]) + kept[4][:20], encoding="utf-8")
    again = probe.probe(config(), 4)
    assert [record["row"] for record in again] == [record["row"] for record in first]
    assert len(lines(path)) == 6
    assert "".join(kept[:4]) == "".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:4])
    probe.probe(config(), 2)  # four are enough for that
    assert len(lines(path)) == 6


def test_a_run_is_probed_with_its_own_weights(config, checkpoint, tmp_path):
    make_run(tmp_path / "runs", "probed", checkpoint("qwen2_5_vl"), lora={"enabled": True, "r": 2, "alpha": 4})
    made = config(data={"probe": "probed"})
    assert solve_rates.policy_of(made) == "probed"
    assert len(probe.probe(made, 2)) == 6
    assert solve_rates.place(made) != solve_rates.place(config())


def test_completions_that_are_drawn_first_have_no_solve_rate(config, tmp_path):
    with pytest.raises(DataError, match="so no row is solved by words"):
        probe.probe(config(task={"name": f"{tmp_path / 'luck.py'}:drawn"}), 2)


def test_a_curriculum_is_not_shuffled(config):
    for order, shuffled in (("none", True), ("easy_first", False)):
        made = config(data={"curriculum": order})
        assert assembly.grpo_config(made, policy.load_processor(made), [1.0], made.run_dir).shuffle_dataset is shuffled
