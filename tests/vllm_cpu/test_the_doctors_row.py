"""Covers the row `doctor` of `make bench-gpu` from end to end, on made-up cards: the minutes on a real one are not for typing errors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def row(tmp_path_factory):
    """What the row wrote: the two verdicts under the names of their environments."""
    folder = tmp_path_factory.mktemp("row")
    (folder / "configs").symlink_to(PROJECT / "configs")
    path = os.pathsep.join(map(str, (HERE / "made_up_card", PROJECT / "src", PROJECT, HERE)))
    environment = os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
    command = [sys.executable, "-m", "benchmarks.gpu_rows", "doctor", "--vocabulary", ""]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "outputs/gpu/rows/doctor.json").read_text(encoding="utf-8"))


def verdicts(told):
    return {finding["name"]: finding["verdict"] for finding in told["findings"]}


def test_the_row_holds_both_verdicts_whole(row):
    assert (row["row"], row["card"]) == ("doctor", "NVIDIA H200")
    assert row["versions"]["trl"]
    names = ["bf16 matmul", "memory copy", "attention", "all-reduce", "checkpoint disk", "video decoder", "sleep mode", "log-probabilities"]
    for environment in ("as it is", "expandable segments"):
        told = row[environment]
        assert (told["exit code"], told["ready"]) == (1, False)  # torch has no CUDA here
        assert [finding["name"] for finding in told["findings"]][-len(names) :] == names
        assert told["machine"]["devices"] == 2


def test_a_card_that_cannot_compute_is_a_fault_of_each_measurement(row):
    for finding in row["as it is"]["findings"]:
        if finding["name"] in ("bf16 matmul", "memory copy", "all-reduce"):
            assert (finding["verdict"], finding["found"][:7]) == ("fail", "broke: "), finding


def test_an_engine_that_keeps_its_memory_is_told_and_answers_as_transformers_would(row):
    told = verdicts(row["as it is"])
    assert (told["engine"], told["sleep mode"], told["log-probabilities"]) == ("ok", "warn", "ok")


def test_expandable_segments_are_a_fault_whatever_the_engine_makes_of_them(row):
    assert verdicts(row["expandable segments"])["engine"] == "fail"
    (engine,) = (finding for finding in row["expandable segments"]["findings"] if finding["name"] == "engine")
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True turns expandable segments on" in engine["found"]
    assert "unset PYTORCH_CUDA_ALLOC_CONF, or set vllm_enable_sleep_mode: false" in engine["found"]
