"""Covers `grpo plan` as a person runs it: a local checkpoint's config.json alone, no weights, no GPU."""

import json
import shutil

import pytest
from transformers import AutoModelForImageTextToText


def test_a_plan_needs_nothing_of_the_model_but_its_config(workshop):
    shutil.copytree(workshop.folder / "tiny-qwen3-vl", workshop.folder / "described", ignore=lambda *_: ["model.safetensors"])
    config = workshop.config("planned", model_name="described", use_vllm=True, lora={"enabled": True})
    done = workshop.grpo("plan", "--config", config, "--json")
    assert done.returncode == 0, done.stderr
    planned = json.loads(done.stdout)
    model = AutoModelForImageTextToText.from_pretrained(workshop.folder / "tiny-qwen3-vl")
    assert sum(planned["weights"].values()) == sum(weight.numel() for weight in model.parameters())
    assert planned["shapes_from"] == "config.json of described"
    assert [card["card"] for card in planned["cards"]] == ["MI300X 192 GB", "H200 141 GB", "H100 80 GB", "24 GB"]
    assert all(card["fits"] for card in planned["cards"])
    assert not workshop.run_dir("planned").exists()


def test_a_card_that_is_too_small_ends_with_1_and_the_knob_to_turn(workshop):
    config = workshop.config("seven", model_name="Qwen/Qwen2.5-VL-7B-Instruct", use_vllm=True, lora={"enabled": True})
    done = workshop.grpo("plan", "--config", config, "--card", "40", "--set", "vllm_gpu_memory_utilization=0.9")
    assert (done.returncode, done.stderr) == (1, "")
    assert "does not fit" in done.stdout
    turned = [word for line in done.stdout.splitlines() if "turn first:" in line for word in line.split("turn first:")[1].split()]
    again = workshop.grpo("plan", config, "--card", "40", "--set", "vllm_gpu_memory_utilization=0.9", *turned)
    assert again.returncode == 0, again.stdout


def test_a_plan_for_an_unknown_model_is_refused_in_one_line(workshop, refused):
    line = refused(workshop.grpo("plan", "--config", workshop.config("nobody", model_name="someone/else")))
    assert "its config.json is neither in a local folder nor in the HF cache" in line


@pytest.mark.parametrize("words", [("plan",), ("train", "--dry_run")])
def test_a_policy_whose_states_the_renderer_cannot_read_is_refused_with_the_one_that_fits(workshop, refused, words):
    drawn = {"task": {"name": "text_to_image"}, "renderer": {"name": "qwen_image", "model": "Qwen/Qwen-Image"}, "judge": {"name": "mmmg"}}
    config = workshop.config("drawn", model_name="Qwen/Qwen2.5-VL-3B-Instruct", rewards=[], **drawn)
    line = refused(workshop.grpo(*words, "--config", config))
    assert line.endswith("and the DiT of renderer.model Qwen/Qwen-Image reads qwen2_5_vl's of 3584; take Qwen/Qwen2.5-VL-7B-Instruct")
