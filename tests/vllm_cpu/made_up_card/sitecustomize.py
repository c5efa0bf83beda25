"""Two cards where there are none, in every process that has this folder on its path: what a doctor says of them is rehearsed.

They are seen and asked for their memory; whoever computes on them is told by torch that it knows no card. The engine is the CPU's, which
may not sleep, and keeps its memory when it is told to.
"""

import sys

from qwen_vl_grpo import hardware

hardware.detect = lambda *_: hardware.Hardware("cuda", 2, "NVIDIA H200", 2)

if "qwen_vl_grpo.sleep_check" in sys.orig_argv:
    import plain_weights  # noqa: F401 - before anything builds an engine
    import torch
    from vllm.platforms.interface import Platform

    torch.cuda.synchronize = lambda: None
    torch.cuda.mem_get_info = lambda: (100 * 2**30, 140 * 2**30)
    torch.nn.Module.cuda = lambda model: model
    Platform.is_sleep_mode_available = lambda _: True
