"""Covers a LoRA run on Qwen3-VL with a reward of one's own: it trains from a warm start and answers by its run_id."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def adapter(workshop) -> str:
    done = workshop.train(
        "adapter", model_name="tiny-qwen3-vl", max_steps=2, lora={"r": 4, "vision": True},
        rewards=[{"function": "brevity.py:brevity", "weight": 2.0}, {"function": "strict_format_reward_func"}],
        warmup={"dataset_name": "digits", "steps": 1, "batch_size": 4}, learning_rate=0.05,
        evaluation={"dataset_split": "test", "samples": 2, "every": 1, "blind": False, "without_adapter": True},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return "adapter"


def test_an_own_reward_is_measured_under_its_own_name_with_its_weight(workshop, adapter):
    steps = [line for line in workshop.metrics(adapter) if "reward" in line]
    assert len(steps) == 2
    for line in steps:
        assert line["rewards/brevity/mean"] < 0
        assert line["reward"] == pytest.approx(2 * line["rewards/brevity/mean"] + line["rewards/strict_format_reward_func/mean"], abs=1e-5)


def test_the_checkpoint_holds_the_adapter_and_not_the_model(workshop, adapter):
    card = workshop.card(adapter)
    files = {name.split("/")[-1] for name in card["checkpoint_files"] if name.startswith(card["checkpoint"])}
    assert {"adapter_model.safetensors", "adapter_config.json"} <= files
    assert "model.safetensors" not in files


def test_the_log_says_how_much_of_each_part_learns(workshop, adapter):
    told = (workshop.run_dir(adapter) / "training.log").read_text()
    for part in ("vision", "language"):
        line = next(line for line in told.splitlines() if line.startswith(part))
        learning, total = (int(number.replace(",", "")) for number in line.split()[1:3])
        assert 0 < learning < total


def test_without_the_adapter_the_run_scores_as_before_it(workshop, adapter):
    metrics = workshop.card(adapter)["metrics"]
    assert metrics["without_adapter"] == metrics["before"] != metrics["after"]


def test_its_curves_are_drawn(workshop, adapter):
    done = workshop.run(str(PROJECT / "benchmarks/curves.py"), str(workshop.run_dir(adapter)))
    assert done.returncode == 0, done.stderr
    drawn = ElementTree.parse(workshop.run_dir(adapter) / "curves.svg").getroot()
    lines = [line.get("points", "").split() for line in drawn.iter("{http://www.w3.org/2000/svg}polyline")]
    assert [len(points) for points in lines] == [2, 3, 0, 0]  # rewards of two steps; before, step 1 and after; no engine, no rollouts


def test_the_adapter_answers_by_its_run_id(workshop, adapter):
    done = workshop.infer("--run_id", adapter, "--prompt", "Which digit is this?", "--image_path", "digits/pictures/0000.png", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run_id"] == adapter


def test_its_files_are_proved_to_be_its_policy_after_it_was_pruned(workshop, adapter):
    pruned = workshop.grpo("runs", "prune", adapter, "--yes")
    assert pruned.returncode == 0, pruned.stderr
    assert not list(workshop.run_dir(adapter).glob("checkpoint-*/optimizer.pt"))
    done = workshop.grpo("runs", "verify", adapter)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"run_id {adapter}: its files answer all 4 items as the policy did when it was trained\n"
    assert workshop.card(adapter)["proof"]["verdict"]["state"] == "proved"


def test_it_is_exported_as_one_checkpoint_and_not_over_anything(workshop, adapter, refused):
    done = workshop.grpo("export", adapter, "--merged", "full")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{adapter} is in full (float32): writing moved ")
    there = {path.name for path in (workshop.folder / "full").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "grpo_export.json"} <= there
    assert "--merged full: is there already" in refused(workshop.grpo("export", adapter, "--merged", "full"))
