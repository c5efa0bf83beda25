"""Covers the variables that a card wants: set where the user set none, never over the user's own, and the ones that fight each other."""

import pytest

from qwen_vl_grpo import environment
from qwen_vl_grpo.hardware import ALLOCATOR_VARIABLES, Hardware

CPU = Hardware("cpu", 0, "x86_64", 2)
H200 = Hardware("cuda", 1, "NVIDIA H200", 16)
MI300X = Hardware("rocm", 1, "AMD Instinct MI300X", 96)
EIGHT = Hardware("rocm", 8, "AMD Instinct MI300X", 96)


def test_an_amd_card_gets_its_settings_each_with_a_reason():
    environ = {}
    found = environment.settle(MI300X, environ=environ)
    assert environ == {"HSA_NO_SCRATCH_RECLAIM": "1", "HIP_FORCE_DEV_KERNARG": "1", "VLLM_ROCM_USE_AITER": "0"}
    assert [finding.name for finding in found] == list(environ)
    assert all(finding.verdict == "ok" and len(finding.found) > 20 for finding in found)


def test_several_amd_cards_get_what_rccl_wants_too():
    environ = {}
    environment.settle(EIGHT, environ=environ)
    assert environ["NCCL_MIN_NCHANNELS"] == "112"


def test_what_the_user_set_stays_and_is_told():
    environ = {"VLLM_ROCM_USE_AITER": "1", "HSA_NO_SCRATCH_RECLAIM": "1"}
    found = {finding.name: finding for finding in environment.settle(MI300X, environ=environ)}
    assert environ["VLLM_ROCM_USE_AITER"] == "1"
    assert found["VLLM_ROCM_USE_AITER"].verdict == "warn"
    assert "VLLM_ROCM_USE_AITER=1 is yours and stays; 0 would be set here, since AITER" in str(found["VLLM_ROCM_USE_AITER"])
    assert found["HSA_NO_SCRATCH_RECLAIM"].verdict == "ok"


def test_the_old_name_of_the_cards_is_carried_over_to_amds_own():
    environ = {"CUDA_VISIBLE_DEVICES": "2,3"}
    environment.settle(MI300X, environ=environ)
    assert environ["HIP_VISIBLE_DEVICES"] == environ["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert environment.visibility(MI300X, environ).verdict == "ok"


def test_segments_grow_only_where_no_engine_will_sleep(config_of):
    for machine, use_vllm, told in ((H200, False, True), (H200, True, False), (MI300X, False, False), (CPU, False, False)):
        environ = {}
        environment.settle(machine, config_of(use_vllm=use_vllm), environ)
        assert ("PYTORCH_ALLOC_CONF" in environ) == told


@pytest.mark.parametrize("variable", ALLOCATOR_VARIABLES)
def test_an_allocator_that_the_user_configured_under_any_name_is_left_alone(config_of, variable):
    environ = {variable: "max_split_size_mb:512"}
    assert environment.settle(H200, config_of(use_vllm=False), environ) == []
    assert environ == {variable: "max_split_size_mb:512"}


@pytest.mark.parametrize("machine", [CPU, H200])
def test_other_machines_need_nothing(machine):
    environ = {}
    assert environment.settle(machine, environ=environ) == []
    assert environ == {}


HIP, CUDA, ROCR = "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("machine", "environ", "verdict", "said"),
    [
        (MI300X, {}, "ok", "all"),
        (MI300X, {HIP: "0"}, "ok", f"{HIP}=0"),
        (MI300X, {HIP: "0", CUDA: "0"}, "ok", f"{HIP}=0"),
        (MI300X, {HIP: "0", CUDA: "1"}, "fail", f"{HIP}=0 and {CUDA}=1 name different cards"),
        (CPU, {HIP: "0", CUDA: "1"}, "fail", f"unset {CUDA} on an AMD card"),
        (MI300X, {HIP: "0", CUDA: "1", ROCR: "4"}, "fail", f"vLLM refuses that; unset {CUDA} and {ROCR} on an AMD card"),
        (MI300X, {HIP: "0", CUDA: "0", ROCR: "4"}, "fail", f"unset {ROCR}, keep {HIP}"),
        (MI300X, {ROCR: "0"}, "ok", f"{ROCR}=0"),
        (MI300X, {ROCR: "4", HIP: "4"}, "fail", f"unset {ROCR}, keep {HIP}"),
        (MI300X, {ROCR: "4", CUDA: "0"}, "fail", f"unset {ROCR}, keep {CUDA}"),
        (H200, {CUDA: "1"}, "ok", f"{CUDA}=1"),
        (H200, {CUDA: "1", HIP: "0", ROCR: "0"}, "warn", f"unset {HIP} and {ROCR}, use {CUDA}"),
    ],
)
def test_one_variable_alone_may_choose_the_cards(machine, environ, verdict, said):
    found = environment.visibility(machine, environ)
    assert found.verdict == verdict
    assert said in str(found)
