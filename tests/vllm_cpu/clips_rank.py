"""One of the processes that test_clips_in_the_engine.py starts: `clips_rank.py CONFIG`, whose engine lies on both.

The first asks about one clip, the second about two and a picture; each prints how far the engine is from its policy.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy
import plain_weights  # noqa: F401 - before anything builds an engine

from qwen_vl_grpo import assembly, dataset, parity, ranks
from qwen_vl_grpo import config as configs
from qwen_vl_grpo.interfaces import Clip
from qwen_vl_grpo.ledger import Ledger


def clip(frames, seed):
    noise = numpy.random.default_rng(seed).integers(0, 255, (frames, 56, 112, 3), dtype=numpy.uint8)
    return Clip(noise, tuple(range(0, 3 * frames, 3)), 8.0, 3 * frames, str(seed))


if __name__ == "__main__":
    ranks.meet()
    config, folder = configs.load(sys.argv[1]), Path(f"rank-{ranks.place()}")
    folder.mkdir()
    prepared = assembly.prepare(config)
    trainer = assembly.build_trainer(config, prepared, assembly.load_policy(config, prepared, folder), folder, Ledger(folder, 1))
    first, *others = [dataset.to_sample(row) for row in prepared.rows][:3]
    asked = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "Question?"}]}]
    mine = [replace(first, prompt=asked, images=[], videos=[clip(6, 0)])] if ranks.place() == 0 else [
        *(replace(sample, prompt=asked, images=[], videos=[clip(frames, frames)]) for frames, sample in enumerate(others, 3)), first,
    ]  # fmt: skip
    trainer.vllm_generation.sync_weights()
    print(f"apart {parity.measure(trainer, mine).mean}", flush=True)
