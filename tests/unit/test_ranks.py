"""Covers a run on two real processes (two_processes.py): the gradient of one device, and what the processes tell each other."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from demo import tiny_qwen
from qwen_vl_grpo import attempts, footprint, registry, shapes, spreading
from qwen_vl_grpo.config import check
from qwen_vl_grpo.errors import ConfigError
from tests.unit import two_processes

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(checkpoint, tmp_path_factory):
    """What one process saw, and what two did that ran beside each other."""
    folder = tmp_path_factory.mktemp("ranks")
    own = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": f"{PROJECT / 'src'}:{PROJECT}"}
    environment = os.environ | own | {"GRPO_HOME": str(folder / "home")}
    given = str(folder), checkpoint("qwen2_5_vl")
    tiny_qwen.build(folder / "untied", "qwen2_5_vl", tied=False)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", str(PROJECT / "tests/unit/two_processes.py"), *given]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    two_processes.main(folder, given[1])
    return folder


@pytest.fixture(scope="module")
def seen(folder):
    return {place: torch.load(folder / place / "seen.pt", weights_only=False) for place in ("1-0", "2-0", "2-1")}


def both(seen, name):
    return seen["2-0"][name], seen["2-1"][name]


@pytest.mark.parametrize("case", two_processes.CASES)
def test_two_devices_have_the_gradient_of_one_with_twice_the_accumulation(seen, case):
    (one, told), (two, told_by_two) = (seen[place][case] for place in ("1-0", "2-0"))
    two = {name.removeprefix("module."): gradient for name, gradient in two.items()}
    assert one.keys() == two.keys()
    assert max(gradient.abs().max() for gradient in one.values()) > 1e-3
    assert max((gradient - two[name]).abs().max() for name, gradient in one.items()) <= 1e-6
    for name in told:
        if name.startswith(("reward", "groups/", "rollouts/logp", "rollouts/raw", "rollouts/eff", "entropy", "loss", "completions/")):
            assert told_by_two[name] == pytest.approx(told[name], rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize(("whole", "split"), [("dapo", "fsdp2"), ("untied", "untied")], ids=["tied", "untied"])
def test_a_policy_that_accelerate_has_split_has_the_gradient_of_one_device(seen, whole, split):
    one, two = seen["1-0"][whole][0], seen["2-0"][split][0]
    assert one.keys() == two.keys()
    assert any("lm_head" in name for name in one) == (split == "untied")
    assert max((gradient - two[name]).abs().max() for name, gradient in one.items()) <= 1e-6


def test_trls_fused_head_calls_the_head_of_a_split_policy_for_no_words(seen):
    """torch 2.11, which vLLM 0.25.1 brings, would neither part the weights again nor gather them for the next step."""
    for called in both(seen, "called"):
        assert called and all(words == 0 for _, words, _ in called)


def test_an_engine_gets_every_weight_of_a_sharded_policy_whole_and_leaves_it_parted(seen):
    for told in both(seen, "handed over"):
        assert told == {"names": True, "away": 0.0, "parted": True}


def test_a_process_holds_of_a_split_policy_what_the_plan_counts(seen, checkpoint):
    config = check({"run_id": "unit", "model_name": checkpoint("qwen2_5_vl"), "lora": {"enabled": False}, "gradient_accumulation_steps": 2})
    known = shapes.of(config)
    counted = spreading.split(footprint.measure(config, known), config, known, spreading.Spread("fsdp2", 2))
    for held in both(seen, "held"):
        assert held["weights"] == pytest.approx(counted.weights, rel=0.01)
        assert held["gradients"] == pytest.approx(counted.gradients, rel=0.01)
        assert held["optimizer"] == pytest.approx(counted.optimizer, rel=0.01)


def test_processes_share_work_in_order_and_the_main_one_acts_first(seen):
    main, other = both(seen, "exchanged")
    assert (main["part"], other["part"]) == ([0, 1], [2, 3, 4])
    assert main["joined"] == other["joined"] == [0, 1, 2, 3, 4]
    assert main["first"] == other["first"] == 0
    assert main["time"] < other["time"]


def test_a_process_of_another_run_is_named_in_all_with_what_is_another(seen):
    main, other = both(seen, "exchanged")
    assert re.fullmatch(
        r"process 1 on \S+ is not the run of process 0: another max_steps \(max_steps is 4 there, 3 here\); .*", main["another run"]
    )
    assert main["another run"] == other["another run"]


def test_a_process_that_does_not_come_is_named_with_what_it_is_waited_for(seen):
    main, _ = both(seen, "exchanged")
    assert re.match(r"the rewards of step 7: another process .*Ranks? 1 ", main["late"])


def test_a_sharded_policy_learns_where_one_process_sees_nothing(seen):
    for one in both(seen, "nothing"):
        assert one["away"] <= 1e-6 < 1e-3 < one["vision"]


def test_every_process_passes_through_a_sharded_policy_as_often_whatever_it_remembers(seen):
    main, other = both(seen, "states")
    assert (main["remembered"], other["remembered"]) == (1.0, 0.0)
    assert main["forwards"] == other["forwards"] > 4
    assert (len(main["scores"]), len(other["scores"])) == (3, 10)


def test_a_run_of_two_processes_is_not_resumed_by_one(seen, folder):
    card = registry.read(folder / "runs/two-ranks")
    with pytest.raises(ConfigError, match=r"was trained by 2 processes, and this launch has 1: .*; resume it with 2, or"):
        attempts.resumable(check(card.config | {"max_steps": 4}))


def test_a_run_of_two_processes_has_one_card_with_the_rows_of_both_and_repeats(seen, folder):
    (main, again), (other, other_again) = both(seen, "runs")
    assert main["said"] != other["said"]
    assert (main["said"], other["said"]) == (again["said"], other_again["said"])
    assert main["metrics"]["before"] == other["metrics"]["before"] == again["metrics"]["before"]
    assert main["metrics"]["before"]["greedy"]["n"] == 8
    card = json.loads((folder / "runs/two-ranks/run.json").read_text(encoding="utf-8"))
    assert (card["state"], card["hardware"]["processes"]) == ("finished", 2)
    lines = [json.loads(line) for line in (folder / "runs/two-ranks/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(line["attempt"], line["step"]) for line in lines] == [(1, 1), (1, 2), (1, 2), (2, 3), (2, 3)]
    answers = (folder / "runs/two-ranks/answers.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["place"] for line in answers] == list(range(8))
    said = [eval(line) for one in (main, other) for line in one["said"].splitlines()]
    assert sum(line["reward"] for line in lines[:2]) / 2 == pytest.approx(sum(len(set(text)) / 6 for text in said) / len(said))
