"""Covers the bounds of the parity gate, to which each process is held by its own text; tests/vllm_cpu has the gate on a real engine."""

import pytest
import torch

from qwen_vl_grpo import parity
from qwen_vl_grpo.errors import RolloutError
from qwen_vl_grpo.parity import Agreement


def measured(mean):
    return Agreement(mean, mean, 512)


def test_pictures_may_cost_twice_what_this_process_has_on_text():
    parity.hold(measured(0.045), measured(0.085), torch.bfloat16, "now")
    with pytest.raises(RolloutError, match=r"parity now, process 1: .* differ by 0.085 on pictures \(bound 0.08\)"):
        parity.hold(measured(0.04), measured(0.085), torch.bfloat16, "now, process 1")


def test_text_has_a_bound_of_its_own():
    with pytest.raises(RolloutError, match="its weights are not the policy's"):
        parity.hold(measured(2e-4), measured(1e-6), torch.float32, "now")
