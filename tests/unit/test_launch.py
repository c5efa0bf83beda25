"""Covers what a launch starts: which cards, how many processes, which strategy, and what is refused before any of it."""

import itertools
import os
from pathlib import Path

import pytest
import yaml

from qwen_vl_grpo import config as configs
from qwen_vl_grpo import launch, strategies
from qwen_vl_grpo.errors import ConfigError, HardwareError
from qwen_vl_grpo.hardware import Hardware

PROJECT = Path(__file__).resolve().parents[2]
EIGHT = Hardware("cuda", 8, "NVIDIA H200", 16)
INSTINCT = Hardware("rocm", 8, "AMD Instinct MI300X", 16)
ALL = tuple("01234567")


def config(**changes):
    return configs.check({"run_id": "v1", "model_name": "nobody/knows"} | changes)


def planned(asked="auto", cards=ALL, cpus=0, nodes=None, memory=139.8, **changes):
    return launch.plan(config(**changes), EIGHT, asked, cards, cpus, nodes or launch.Nodes(), memory)


@pytest.mark.parametrize(
    ("asked", "environ", "cards"),
    [
        (None, {}, ALL),
        ("3", {}, ("0", "1", "2")),
        ("5,7", {}, ("5", "7")),
        ("5,", {}, ("5",)),
        (None, {"CUDA_VISIBLE_DEVICES": "2,3"}, ("2", "3")),
        ("1", {"CUDA_VISIBLE_DEVICES": "GPU-8f3a,GPU-11bc"}, ("GPU-8f3a",)),
    ],
)
def test_cards_are_the_first_so_many_or_those_that_are_named(asked, environ, cards):
    assert launch.cards(asked, EIGHT, environ) == cards


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ("9", HardwareError, "this process sees 8 cards (0, 1, 2, 3, 4, 5, 6, 7)"),
        ("1,1", HardwareError, "each once"),
        ("8,9", HardwareError, "ask for some of these"),
        ("0", HardwareError, "ask for some of these"),
        ("all of them", ConfigError, "give a number of cards, or their names"),
    ],
)
def test_cards_that_are_not_there_are_refused(asked, error, said):
    with pytest.raises(error, match="--gpus") as refused:
        launch.cards(asked, EIGHT, {})
    assert said in str(refused.value)


def test_a_machine_without_cards_says_how_to_start_on_its_cpu():
    with pytest.raises(HardwareError, match="--cpu N"):
        launch.cards(None, Hardware("cpu", 0, "x86", 2), {})


def test_amd_cards_are_chosen_by_their_own_variable_alone(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    cards = launch.cards("2", INSTINCT)
    chosen = launch.plan(config(), INSTINCT, "auto", cards, 0, launch.Nodes(), None)
    assert chosen.environment == {"CUDA_VISIBLE_DEVICES": None, "HIP_VISIBLE_DEVICES": "0,1"}
    with chosen.as_a_rank_sees_it():
        assert "CUDA_VISIBLE_DEVICES" not in os.environ
        assert (os.environ["HIP_VISIBLE_DEVICES"], os.environ["WORLD_SIZE"]) == ("0,1", "2")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert "WORLD_SIZE" not in os.environ


def test_one_card_is_one_process_and_sees_no_other():
    alone = planned("single")
    assert (alone.processes, alone.cards) == (1, ("0",))
    assert "--main_process_port" not in launch.command(alone, ["train"])


def test_renderer_and_judge_on_cards_of_their_own_leave_one_process_that_sees_all():
    placed = {"placement": {"renderer": "cuda:1", "judge": "cuda:2"}}
    three = planned(cards=("4", "5", "6"), **placed)
    assert (three.strategy, three.processes, three.environment["CUDA_VISIBLE_DEVICES"]) == ("single", 1, "4,5,6")
    with pytest.raises(ConfigError, match="placement gives renderer or judge a card of its own"):
        planned("ddp", **placed)


SEVEN = {"model_name": "Qwen/Qwen2.5-VL-7B-Instruct", "use_vllm": False, "gradient_checkpointing": True}


def test_a_trainer_is_split_only_where_a_card_is_too_small_for_it():
    assert planned(**SEVEN).strategy == "ddp"
    whole = SEVEN | {"lora": {"enabled": False}, "use_vllm": True, "vllm_gpu_memory_utilization": 0.3}
    assert planned(**whole, memory=79.2).strategy == "fsdp2"


def test_adapters_stay_whole_on_every_card_however_small_it_is(monkeypatch):
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: None)  # without DeepSpeed
    assert planned(**SEVEN, memory=10.0).strategy == "ddp"


@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3", "fsdp2"])
def test_the_launcher_refuses_as_a_rank_would(strategy):
    shown = launch.Launch(strategy, 2, ("0", "1"), "CUDA_VISIBLE_DEVICES", launch.Nodes())
    with shown.as_a_rank_sees_it():
        assert strategies.named() == strategy


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"asked": "ddp", "cards": ("0",)}, "is for several cards"),
        ({"asked": "single", "cpus": 2}, "is one process, and 2 were asked for"),
        ({"asked": "single", "nodes": launch.Nodes(2)}, "is one process, and 2 were asked for"),
    ],
)
def test_a_strategy_that_does_not_fit_the_number_of_cards_is_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        planned(**given)


def test_several_machines_meet_at_the_first_ones_address():
    two = planned(nodes=launch.nodes(2, 1, "node-a:29500"))
    asked = launch.command(two, ["train", "--config", "x.yaml"])
    told = dict(itertools.pairwise(asked))
    assert [told[name] for name in ("--num_processes", "--num_machines", "--machine_rank")] == ["16", "2", "1"]
    assert [told[name] for name in ("--main_process_ip", "--main_process_port")] == ["node-a", "29500"]
    assert asked[-5:] == ["-m", "qwen_vl_grpo.launched", "train", "--config", "x.yaml"]


@pytest.mark.parametrize(("given", "said"), [((2, 0, None), "HOST:PORT"), ((2, 0, "node-a"), "HOST:PORT"), ((2, 2, "a:1"), "the last 1")])
def test_machines_that_cannot_find_each_other_are_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        launch.nodes(*given)


@pytest.mark.parametrize("name", launch.CONFIGS.values())
def test_accelerate_reads_its_config_and_every_key_of_it(name):
    from accelerate.commands.config.config_args import load_config_from_file

    path = PROJECT / f"configs/launch/{name}.yaml"
    read = load_config_from_file(str(path))  # raises on a key that it does not know
    assert read.mixed_precision == "no"
    assert read.distributed_type.value == yaml.safe_load(path.read_text(encoding="utf-8"))["distributed_type"]
