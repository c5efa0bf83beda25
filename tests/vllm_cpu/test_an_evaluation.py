"""Covers `grpo evaluate` and `grpo probe` on the real engine: greedy answers as under transformers, draws that differ."""

import json

import pytest
import yaml

from qwen_vl_grpo import cli, scoring
from tests.made_runs import make_run


@pytest.fixture
def made(config_of, checkpoint, tmp_path, monkeypatch):
    """A run with an adapter that changes what is said, over the lane's eight questions with pictures."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    own = config_of().model_dump(mode="json", exclude_unset=True)
    kept = {key: own[key] for key in ("dataset_name", "dataset_split", "data", "engine", "vllm_max_model_length", "max_completion_length")}

    def make(run_id, **lora):
        make_run(tmp_path, run_id, checkpoint("qwen2_5_vl"), 0, lora={"enabled": True, "r": 4} | lora, **kept)
        return run_id

    return make


@pytest.fixture
def run(made):
    return made("tuned")


@pytest.fixture
def asked(config_of, tmp_path):
    """The config of a probe."""
    path = tmp_path / "probe.yaml"
    path.write_text(yaml.safe_dump(config_of().model_dump(mode="json", exclude_unset=True)), encoding="utf-8")
    return str(path)


@pytest.fixture
def told_by(capfd):
    """What a command prints as JSON; run in this process, on real files, since the engine asks its output for a descriptor."""

    def ask(*arguments):
        capfd.readouterr()
        cli.app([*arguments, "--json"], standalone_mode=False)
        printed = capfd.readouterr().out
        return json.loads(printed[printed.index("\n{\n") if not printed.startswith("{") else 0 :])

    return ask


def answers(tmp_path, told):
    """What a policy said to each item, out of the file beside its result."""
    paths = tmp_path.rglob(f"{told['digest'][:12]}/items.jsonl")
    lines = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    return {record["item"]: record["completion"] for record in lines if record["sha"] == told["subject"]["sha256"]}


def test_a_run_and_its_base_answer_in_the_engine_as_under_transformers(run, told_by, tmp_path):
    told = told_by("evaluate", run, "--against", "base", "--backend", "vllm", "--samples", "2")
    assert told["tuned"]["protocol"]["generation"]["backend"] == "vllm"
    assert told["changes"]["greedy"]["format"]["n"] == 8 and told["tuned"]["scores"]["sampled"]["n"] == 16
    said = {who: answers(tmp_path, told[who]) for who in ("base", "tuned")}
    assert any(said["tuned"][name] != text for name, text in said["base"].items() if name.startswith("greedy/"))
    assert any(said["tuned"][f"sampled/{place}/0"] != said["tuned"][f"sampled/{place}/1"] for place in range(8))
    plain = told_by("evaluate", run, "--backend", "transformers", "--samples", "0")
    assert plain["digest"] != told["tuned"]["digest"]
    greedy = {name: text for name, text in said["tuned"].items() if name.startswith("greedy/")}
    assert answers(tmp_path, plain) == greedy


def test_an_evaluation_in_the_engine_is_not_asked_twice(run, told_by, monkeypatch):
    first = told_by("evaluate", run, "--backend", "vllm", "--samples", "1")
    monkeypatch.setattr(scoring, "VllmBackend", None)
    assert told_by("evaluate", run, "--backend", "vllm", "--samples", "1")["scores"] == first["scores"]


def test_a_probe_of_a_run_asks_its_adapter_in_the_engine(run, told_by, asked):
    rows = told_by("probe", run, "--config", asked, "--k", "2", "--backend", "vllm")["rows"]
    assert len(rows) == 8 and all(len(row["correct"]) == len(row["tokens"]) == 2 for row in rows)


def test_a_tower_that_the_engine_leaves_out_is_asked_from_a_merged_copy(made, told_by, asked, tmp_path, without_tower_lora):
    tower = made("tower", r=12, vision=True)
    engine, plain = (told_by("evaluate", tower, "--backend", name, "--samples", "0") for name in ("vllm", "transformers"))
    assert answers(tmp_path, engine) == answers(tmp_path, plain)
    assert len(told_by("probe", tower, "--config", asked, "--k", "2", "--backend", "vllm")["rows"]) == 8
