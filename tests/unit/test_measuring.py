"""Covers the measurements of the doctor on a CPU: the same code that measures a card, and what its figures mean."""

import importlib.util

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


def test_processes_sum_together_and_the_sum_is_checked():
    found = measuring.all_reduce(2, "gloo", 4)
    assert found.verdict == "ok"
    assert found.figures["bus_gb_per_s"] > 0
    assert found.figures["processes"] == 2


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here, on which the engine starts")
def test_an_engine_that_does_not_start_is_told_and_ends_its_own_process_alone():
    found = sleep_check.sleep_mode(wanted=True)
    assert found.verdict == "fail"
    assert found.found.startswith("the engine broke: ")


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
