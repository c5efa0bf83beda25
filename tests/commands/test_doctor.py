"""Covers `grpo doctor` as a user runs it: table, line, JSON and exit code, and the faults of a machine at which `grpo train` stops, too."""

import json
import re
import subprocess
import sys
import time

import pytest

QUICK_SECONDS = 3


def asked(workshop, *arguments, **variables):
    command = [sys.executable, "-m", "qwen_vl_grpo", *arguments]
    environment = workshop.environment | variables
    return subprocess.run(command, cwd=workshop.folder, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_machine_that_can_run_the_config_is_ready_in_one_line(workshop):
    done = asked(workshop, "doctor", "--line", "--config", workshop.config("fit"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ready: no GPU, ")
    assert done.stdout.count("\n") == 1


def test_a_config_that_wants_vllm_is_not_ready_without_a_gpu_and_the_exit_code_says_so(workshop):
    done = asked(workshop, "doctor", "--line", "--config", workshop.config("unfit", use_vllm=True))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("not ready: ")
    assert done.stdout.count("\n") == 1


def test_the_table_and_the_json_hold_the_same_checks(workshop):
    config = workshop.config("both")
    record = json.loads(asked(workshop, "doctor", "--quick", "--json", "--config", config).stdout)
    table = asked(workshop, "doctor", "--quick", "--config", config, COLUMNS="200").stdout
    assert record["ready"] is True
    assert [finding["name"] for finding in record["findings"]] == ["accelerator", "visible cards", "outputs", "versions"]
    for finding in record["findings"]:
        found = re.sub(r"\d+(\\\.\d+)?", r"[\\d.]+", re.escape(finding["found"][:40]))  # another process may have filled the disk by a bit
        assert re.search(rf"^{finding['verdict']} +{finding['name']} +{found}", table, re.MULTILINE)
    assert record["line"] in table


def test_all_of_it_measures_and_prints_nothing_but_json(workshop):
    done = asked(workshop, "doctor", "--json", "--config", workshop.config("whole"))
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    verdicts = {finding["name"]: finding["verdict"] for finding in record["findings"]}
    assert {"Hub", "W&B", "bf16 matmul", "memory copy", "attention", "checkpoint disk", "video decoder"} < set(verdicts)
    assert "fail" not in verdicts.values()
    assert record["machine"]["kind"] == "cpu"


def test_the_quick_part_takes_no_time_to_speak_of(workshop):
    config = workshop.config("quick")
    asked(workshop, "doctor", "--line", "--config", config)
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        asked(workshop, "doctor", "--line", "--config", config)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < QUICK_SECONDS


FAULTS = {
    "two variables that disagree": ({"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}, {}, "name different cards"),
    "one below another": ({"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0"}, {}, "unset ROCR_"),
    "a folder that is none": ({}, {"output_dir": "/proc/outputs"}, "output_dir /proc/outputs: /proc cannot be written by user"),
}


@pytest.mark.parametrize("case", FAULTS)
@pytest.mark.parametrize("command", ["doctor --line", "train"])
def test_a_fault_of_the_machine_is_one_sentence_before_anything_is_loaded(workshop, case, command):
    variables, changes, said = FAULTS[case]
    done = asked(workshop, *command.split(), "--config", workshop.config("bad", **changes), **variables)
    shown = done.stdout if command.startswith("doctor") else done.stderr
    assert done.returncode == 1
    assert said in shown
    assert shown.count("\n") == 1


def test_a_file_of_variables_is_read_and_the_environment_goes_before_it(workshop):
    config = workshop.config("variables")
    file = workshop.folder / ".env"
    file.write_text("ROCR_VISIBLE_DEVICES=4\n")
    try:
        fighting = asked(workshop, "doctor", "--line", "--config", config, HIP_VISIBLE_DEVICES="0")
        mended = asked(workshop, "doctor", "--line", "--config", config, HIP_VISIBLE_DEVICES="0", ROCR_VISIBLE_DEVICES="")
    finally:
        file.unlink()
    assert "unset ROCR_VISIBLE_DEVICES, keep HIP_VISIBLE_DEVICES" in fighting.stdout
    assert mended.stdout.startswith("ready: ")


def test_an_answer_is_refused_on_a_machine_whose_variables_fight(workshop, finished, refused):
    done = asked(workshop, "infer", "--run_id", finished, "--prompt", "Which digit?", CUDA_VISIBLE_DEVICES="0", HIP_VISIBLE_DEVICES="1")
    assert "unset CUDA_VISIBLE_DEVICES on an AMD card" in refused(done)
