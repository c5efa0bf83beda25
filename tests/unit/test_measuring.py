"""Covers the measurements of the doctor on a CPU: the same code that measures a card, and what its figures mean."""

import importlib.util
import json
import os
import subprocess
import sys
from types import ModuleType

import pytest
import torch

from qwen_vl_grpo import measuring, sleep_check
from qwen_vl_grpo.hardware import Hardware


def test_a_cpu_is_measured_with_the_code_that_measures_a_card(tmp_path):
    found = {finding.name: finding for finding in measuring.everything(Hardware("cpu", 0, "x86_64", 2), tmp_path)}
    assert list(found) == ["bf16 matmul", "memory copy", "attention", "checkpoint disk", "video decoder"]
    assert found["bf16 matmul"].figures["rate"] > 0
    assert 0.1 < found["memory copy"].figures["rate"] < 1000
    assert {"flash", "math"} <= set(found["attention"].figures["milliseconds"])
    assert found["checkpoint disk"].figures["mb_per_s"] > 0
    assert list(tmp_path.iterdir()) == []


def first_rank_breaks(rank, *rest):
    """In place of the summing, in the processes: the first of them cannot make its tensor."""
    devices, backend, _, folder = rest
    measuring._summing(rank, devices, backend, 1 if rank else -1, folder)


def test_a_rank_that_breaks_is_a_fault_that_says_what_broke(monkeypatch):
    monkeypatch.setattr(measuring, "_summing", first_rank_breaks)
    found = measuring.guarded("all-reduce", lambda: measuring.all_reduce(2, "gloo", 1))
    assert found.verdict == "fail"
    assert found.found.startswith("broke: RuntimeError: ")
    assert "negative dimension" in found.found


CHATTER = """\
import atexit, sys
if "--multiprocessing-fork" in sys.orig_argv:
    atexit.register(lambda: print("NCCL INFO", flush=True))
"""
SUMMED = "import json; from qwen_vl_grpo import measuring; print(json.dumps(vars(measuring.all_reduce(2, 'gloo', 1))))"


def test_processes_sum_together_and_what_they_say_is_not_in_the_report(tmp_path):
    """A module that every process imports as it starts stands for NCCL, whose log goes to stdout."""
    (tmp_path / "sitecustomize.py").write_text(CHATTER)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", SUMMED], capture_output=True, text=True, check=True, env=environment)
    found = json.loads(done.stdout)
    assert (found["verdict"], found["figures"]["processes"]) == ("ok", 2)
    assert found["figures"]["bus_gb_per_s"] > 0
    assert done.stderr.count("NCCL INFO") == 2


@pytest.mark.parametrize(
    ("card", "rate", "verdict", "said"),
    [
        ("NVIDIA H100 80GB HBM3", 650.0, "ok", "650 of 989 TFLOP/s (66%)"),
        ("NVIDIA H100 80GB HBM3", 200.0, "warn", "200 of 989 TFLOP/s (20%), below 35%"),
        ("NVIDIA H100 PCIe", 300.0, "ok", "300 of 756"),
        ("AMD Instinct MI300X", 600.0, "ok", "600 of 1307"),
        ("NVIDIA L4", 50.0, "ok", "no peak is known for NVIDIA L4"),
    ],
)
def test_a_rate_is_held_against_the_class_of_the_card(card, rate, verdict, said):
    found = measuring.against("bf16 matmul", rate, "TFLOP/s", card, 0)
    assert found.verdict == verdict
    assert said in found.found


def test_a_measurement_that_breaks_is_a_fault_in_one_sentence():
    found = measuring.guarded("bf16 matmul", lambda: measuring.matmul("cpu", "a card", -1))
    assert found.verdict == "fail"
    assert "\n" not in str(found)


def test_no_flash_attention_is_a_warning(monkeypatch):
    monkeypatch.setattr(measuring, "ATTENTION", {"math": torch.nn.attention.SDPBackend.MATH})
    found = measuring.attention("cpu", 64)
    assert found.verdict == ("ok" if importlib.util.find_spec("flash_attn") else "warn")


def test_a_clip_is_written_and_read_again():
    measuring.pyav()


def test_a_decoder_that_is_half_there_is_a_warning(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", ModuleType("av"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torchcodec" else name)
    found = measuring.video_decoder()
    assert (found.verdict, found.remedy) == ("warn", "reinstall av")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here, on which the engine starts")
def test_an_engine_that_does_not_start_is_told_and_ends_its_own_process_alone():
    (found,) = sleep_check.look(starts=True, sleeps=True)
    assert found.verdict == "fail"
    assert found.found.startswith("the engine broke: ")


def test_the_error_is_told_and_not_what_torch_adds_when_it_leaves():
    said = (
        "INFO loading\nTraceback (most recent call last):\n  File x\n    raise AssertionError\n"
        "AssertionError: Expandable segments are not compatible with memory pool.\n"
        "[rank0]:[W1129] Warning: destroy_process_group() was not called before program exit\n"
    )
    assert sleep_check.broke(said, 1) == "AssertionError: Expandable segments are not compatible with memory pool."
    assert sleep_check.broke("Memory access fault by GPU node-2\n\n", -6) == "Memory access fault by GPU node-2"
    assert sleep_check.broke("", -9) == "exit code -9"


def slept(*, freed=(50.0, 52.0), equal=(True, True)):
    levels = {
        str(level): {"freed_gib": gib, "sleep_ms": 900.0, "wake_ms": 300.0, "equal": same}
        for level, gib, same in zip((1, 2), freed, equal, strict=True)
    }
    return {"taken_gib": 54.0, "levels": levels}


@pytest.mark.parametrize(
    ("figures", "verdict", "said"),
    [
        (slept(), "ok", "level 1 frees 50.0 of 54.0 GiB, 900 ms down and 300 up; level 2 frees 52.0"),
        (slept(freed=(50.0, 0.0)), "ok", "level 2 frees 0.0"),
        (slept(freed=(0.2, 2.0)), "warn", "frees nothing here"),
        (slept(equal=(True, False)), "fail", "the engine answers differently after level 2"),
    ],
)
def test_what_a_sleep_did_is_judged(figures, verdict, said):
    found = sleep_check.judge(figures, wanted=True)
    assert found.verdict == verdict
    assert said in found.found


@pytest.mark.parametrize(
    ("mean", "wanted", "verdict"), [(0.004, True, "ok"), (0.2, True, "fail"), (0.2, False, "warn"), (float("nan"), True, "fail")]
)
def test_an_engine_that_scores_otherwise_than_transformers_is_a_fault(mean, wanted, verdict):
    found = sleep_check.agree({"mean": mean, "max": 0.5, "tokens": 64, "bound": 0.1}, wanted)
    assert found.verdict == verdict
    assert f"differ by {mean:.2g} on average over 64 tokens (bound 0.1)" in found.found
