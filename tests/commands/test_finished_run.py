"""Covers what a finished run leaves behind: its card, its metrics, its log, its config and a checkpoint that verifies."""

import hashlib
import json
import math

import yaml


def test_the_card_says_that_the_run_is_finished_and_of_what(workshop, finished):
    card = workshop.card(finished)
    assert (card["run_id"], card["state"], card["error"], card["demo"]) == (finished, "finished", None, False)
    assert card["dataset"]["rows"] == 12
    assert card["created"] <= card["finished"]
    assert card["versions"]["trl"]
    assert card["hardware"]["kind"] == "cpu"
    assert card["licences"].keys() == {"base", "data"}


def test_the_card_has_scores_before_after_and_blind(workshop, finished):
    metrics = workshop.card(finished)["metrics"]
    scores = {(when, kind): metrics[when][kind] for when in ("before", "after") for kind in ("greedy", "sampled")}
    scores["blind", "greedy"] = metrics["blind"]
    for (_, kind), values in scores.items():
        assert values["n"] == (12 if kind == "greedy" else 24)
        assert 0 <= values["correct"] <= values["format"] <= 1
        assert set(values["rewards"]) == {
            "xmlcount_reward_func", "soft_format_reward_func", "strict_format_reward_func", "correctness_reward_func",
        }  # fmt: skip


def test_metrics_have_a_line_for_every_step(workshop, finished):
    steps = [line for line in workshop.metrics(finished) if "reward" in line]
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert all(math.isfinite(line[key]) for line in steps for key in ("loss", "reward", "rewards/xmlcount_reward_func/mean"))


def test_the_log_tells_the_story_of_the_run(workshop, finished):
    told = (workshop.run_dir(finished) / "training.log").read_text()
    for part in ("8 completions a step = 2 prompts x 4", "warm-up: 2 supervised steps", "weights learn", "before: ", "after: ", "blind"):
        assert part in told


def test_the_run_ends_with_the_plan_beside_what_it_measured(workshop, finished):
    plan = workshop.card(finished)["plan"]
    assert set(plan) == {"host memory, GiB", "checkpoint, GiB", "seconds a step"}
    for said in (plan["host memory, GiB"], plan["checkpoint, GiB"]):
        assert said["ratio"] == said["measured"] / said["predicted"]
    assert 0.9 < plan["checkpoint, GiB"]["ratio"] < 1.1
    assert 0.5 < plan["host memory, GiB"]["ratio"] < 2
    assert plan["seconds a step"]["predicted"] is None and plan["seconds a step"]["measured"] > 0  # no rate is known of a CPU
    shown = workshop.grpo("runs", "show", finished).stdout
    table = shown[shown.index("the plan and the run") :].splitlines()
    assert [line.split()[-1] for line in table[1:3]] == [f"{plan[name]['ratio']:.2f}" for name in ("host memory, GiB", "checkpoint, GiB")]
    assert "the plan and the run" in (workshop.run_dir(finished) / "training.log").read_text()


def test_the_config_of_the_run_is_the_one_that_was_given(workshop, finished):
    kept = yaml.safe_load((workshop.run_dir(finished) / "config.yaml").read_text())
    assert (kept["run_id"], kept["max_steps"], kept["warmup"]["steps"], kept["seed"]) == (finished, 3, 2, 0)
    assert kept == workshop.card(finished)["config"]


def test_the_kept_config_can_be_run_again_under_another_id(workshop, finished):
    done = workshop.grpo("train", "--config", f"runs/{finished}/config.yaml", "--set", "run_id=again", "--dry_run")
    assert done.returncode == 0, done.stderr


def test_the_checkpoint_is_what_the_card_says(workshop, finished):
    card = workshop.card(finished)
    folder = workshop.run_dir(finished)
    assert card["checkpoint"] == "checkpoint-3"
    needed = ("model.safetensors", "config.json", "tokenizer.json")
    assert {f"checkpoint-3/{name}" for name in needed} <= set(card["checkpoint_files"])
    for name, expected in card["checkpoint_files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == expected


def test_the_run_is_listed_and_shown(workshop, finished):
    listed = workshop.grpo("runs")
    assert any(line.split()[:2] == [finished, "finished"] for line in listed.stdout.splitlines()), listed.stdout
    shown = workshop.grpo("runs", "show", finished, "--json")
    assert json.loads(shown.stdout) == workshop.card(finished)
    assert finished in [card["run_id"] for card in json.loads(workshop.grpo("runs", "--json").stdout)]


def test_a_run_that_exists_is_refused_and_nothing_changes(workshop, finished, refused):
    def everything():
        files = [path for place in ("runs", "home") for path in (workshop.folder / place).rglob("*")]
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None) for path in files}

    before = everything()
    assert f"run_id {finished}: exists already" in refused(workshop.train(finished))
    assert f"run_id {finished}: exists already" in refused(workshop.train(finished, registry={"demo": True}))
    assert f"run_id {finished}: exists already" in refused(workshop.train(finished, output_dir="elsewhere"))
    assert everything() == before
