"""One of the processes that test_clips_in_the_engine.py starts: `clips_rank.py CONFIG`, whose engine lies on both.

The first asks about one clip, the second about two and a picture; each prints how far the engine is from its policy.
"""

import sys
from pathlib import Path

import plain_weights  # noqa: F401 - before anything builds an engine
from test_clips_in_the_engine import asking, clip

from qwen_vl_grpo import assembly, dataset, parity, ranks
from qwen_vl_grpo import config as configs
from qwen_vl_grpo.ledger import Ledger

if __name__ == "__main__":
    ranks.meet()
    config, folder = configs.load(sys.argv[1]), Path(f"rank-{ranks.place()}")
    folder.mkdir()
    prepared = assembly.prepare(config)
    trainer = assembly.build_trainer(config, prepared, assembly.load_policy(config, prepared, folder), folder, Ledger(folder, 1))
    first, second, third = [dataset.to_sample(row) for row in prepared.rows][:3]
    clips = [clip("qwen2_5_vl", frames, frames) for frames in (6, 3, 4)]
    mine = [asking(first, clips[:1])] if ranks.place() == 0 else [asking(second, clips[1:2]), asking(third, clips[2:]), first]
    trainer.vllm_generation.sync_weights()
    print(f"apart {parity.measure(trainer, mine).mean}", flush=True)
