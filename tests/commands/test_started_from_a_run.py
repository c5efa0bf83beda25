"""Covers `init_from`: a new run starts from what an old one has learned, and its card says from which."""

import pytest
from safetensors.torch import load_file


@pytest.mark.parametrize("lora", [True, False])
def test_a_run_starts_from_the_weights_of_another_and_names_it(workshop, lora):
    kind = {"lora": {"enabled": lora}}
    done = workshop.train(f"parent-{lora}", **kind)
    assert done.returncode == 0, done.stderr
    done = workshop.train(f"child-{lora}", init_from=f"parent-{lora}", learning_rate=1e-12, max_steps=1, **kind)
    assert done.returncode == 0, done.stderr
    parent, child = (workshop.card(f"{name}-{lora}") for name in ("parent", "child"))
    assert child["parent"] == {"run_id": f"parent-{lora}", "checkpoint": "checkpoint-3", "checkpoint_files": parent["checkpoint_files"]}
    file = "adapter_model.safetensors" if lora else "model.safetensors"
    learned, kept = (load_file(workshop.run_dir(card["run_id"]) / card["checkpoint"] / file) for card in (parent, child))
    assert learned.keys() == kept.keys()
    assert all((learned[name] - kept[name]).abs().max() < 1e-6 for name in learned)
    assert not lora or any(weight.abs().max() > 1e-5 for name, weight in kept.items() if "lora_B" in name)
    assert workshop.infer("--run_id", f"child-{lora}", "--prompt", "Why?").returncode == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"init_from": "nobody"}, "run_id nobody: no such run"),
        ({"lora": {"enabled": True}}, "init_from first: that run has another lora"),
        ({"warmup": {"dataset_name": "digits"}}, "init_from: starts from what a run has learned"),
    ],
)
def test_what_does_not_fit_is_refused(workshop, finished, refused, changes, said):
    assert said in refused(workshop.train("odd", **{"init_from": finished} | changes))
    assert not workshop.run_dir("odd").exists()
