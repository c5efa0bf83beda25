"""Covers every refusal that comes before training: one sentence, exit code 1, and no run folder."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

ROW = {"image": "digits/pictures/0000.png", "question": "Which digit is this?", "answer": "0"}


@pytest.fixture
def data(workshop):
    """Write a data set of one good row and another one, in a folder of its own in the workshop."""

    def write(**second) -> str:
        folder = workshop.folder / f"data{len(list(workshop.folder.glob('data*')))}"
        folder.mkdir()
        (folder / "broken.png").write_bytes((workshop.folder / ROW["image"]).read_bytes()[:40])
        good = ROW | {"image": f"../{ROW['image']}"}
        rows = [good, {key: value for key, value in (good | second).items() if value != "absent"}]
        (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return folder.name

    return write


ROWS = {
    "broken picture": ({"image": "broken.png"}, r"row 1: .*picture .*broken\.png"),
    "missing column": ({"question": "absent"}, r"row 1: has no column .* for the question"),
    "answer of the wrong type": ({"answer": {"digit": 0}}, r"row 1: column 'answer' holds"),
    "prompt longer than the context": ({"question": "why " * 3000}, r"row 1: .* need \d+ tokens and the context holds 4096"),
}


@pytest.mark.parametrize("fault", ROWS)
def test_a_row_that_cannot_be_used_is_refused(workshop, refused, data, fault):
    second, said = ROWS[fault]
    run_id = fault.replace(" ", "-")
    assert re.search(said, refused(workshop.train(run_id, dataset_name=data(**second))))
    assert not workshop.run_dir(run_id).exists()


def test_an_empty_data_set_is_refused(workshop, refused):
    (workshop.folder / "empty").mkdir()
    (workshop.folder / "empty/train.jsonl").touch()
    assert "the data set is empty" in refused(workshop.train("refused", dataset_name="empty"))
    assert not workshop.run_dir("refused").exists()


CHANGES = {
    "groups that do not divide": ({"num_generations": 7}, "num_generations: groups of 7 do not divide"),
    "an unknown key": ({"learning_rat": 1}, "did you mean 'learning_rate'"),
    "a truncated sampler": ({"trl": {"top_p": 0.9}}, "allow_biased_sampling"),
    "an unknown reward": ({"rewards": [{"function": "corectness"}]}, "no reward is called 'corectness'"),
    "an unknown task": ({"task": {"name": "visual"}}, "no task is called 'visual'"),
    "vLLM on a CPU": ({"use_vllm": True}, "use_vllm needs an NVIDIA or AMD GPU and this machine has none"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_config_that_cannot_be_run_is_refused(workshop, refused, change):
    changes, said = CHANGES[change]
    run_id = change.replace(" ", "-")
    assert said in refused(workshop.train(run_id, **changes))
    assert not workshop.run_dir(run_id).exists()


@pytest.mark.parametrize("run_id", ["../x", "..", "%2e", "all"])
def test_a_run_id_that_is_a_path_or_a_word_for_all_is_refused(workshop, refused, run_id):
    assert "run_id: " in refused(workshop.train(run_id))
    assert not (workshop.folder / "x").exists()


def test_a_refusal_shows_its_traceback_on_request(workshop):
    done = workshop.train("refused", "--debug", num_generations=7)
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert "ConfigError: num_generations: groups of 7 do not divide" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root may open everything, and setpriv is not here")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("train", "home/aliases: user "),
        ("runs", "home/index: user "),
        ("infer --run_id any --prompt why", "home/aliases: user "),
        ("doctor --line", "closed cannot be written by user "),
    ],
)
def test_a_folder_of_somebody_else_is_named(workshop, tmp_path, command, said):
    """Nobody may look into it: what a container that ran as root leaves to the next user."""
    for name in ("home", "closed"):
        (tmp_path / name).mkdir(mode=0)
    like_a_user = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    words = command.split()
    if words[0] in ("train", "doctor"):
        words += ["--config", workshop.config("shut", output_dir=str(tmp_path / "closed/runs"))]
    done = subprocess.run(
        [*like_a_user, sys.executable, "-m", "qwen_vl_grpo", *words],
        cwd=workshop.folder, env=workshop.environment | {"GRPO_HOME": str(tmp_path / "home")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    shown = done.stdout + done.stderr
    assert (done.returncode, shown.count("\n")) == (1, 1), shown
    assert said in shown
