"""One of the processes that test_a_split_policy.py starts: `fsdp2_rank.py CONFIG`, a run under FSDP2 as on cards.

accelerate splits nothing on a CPU; told that these are cards, it does.
"""

import sys

import plain_weights  # noqa: F401 - before anything builds an engine
from accelerate import PartialState
from accelerate.utils import DistributedType

from qwen_vl_grpo import config as configs
from qwen_vl_grpo import ranks, strategies, training

if __name__ == "__main__":
    PartialState._prepare_backend = lambda *_: ("gloo", DistributedType.MULTI_GPU)  # pyright: ignore
    PartialState(backend="gloo")
    ranks.meet()
    assert strategies.named() == "fsdp2"
    training.train(configs.load(sys.argv[1]))
