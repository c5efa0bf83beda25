"""Covers clips in the engine: the prompt that it reads, and log-probabilities that are the trainer's, for one clip and two."""

import re
from dataclasses import replace

import numpy
import pytest
import two_ranks
import vllm
from packaging.version import Version
from three_steps import BOUND
from vllm.model_executor.models import qwen2_5_vl

from qwen_vl_grpo import clip_times, engine_prompts, parity, policy, positions
from qwen_vl_grpo.errors import RolloutError
from qwen_vl_grpo.interfaces import Clip

LIMITS = {"enforce_eager": True, "limit_mm_per_prompt": {"image": 1, "video": 2}}
SIDE = {"qwen2_5_vl": 56, "qwen3_vl": 64}


def clip(family, frames, seed, fps=8.0):
    """Frames of noise, three apart in a video of its own length."""
    side = SIDE[family]
    noise = numpy.random.default_rng(seed).integers(0, 255, (frames, side, 2 * side, 3), dtype=numpy.uint8)
    return Clip(noise, tuple(range(0, 3 * frames, 3)), fps, 3 * frames, str(seed))


def asking(sample, clips, picture=False):
    """The sample with so many clips before its words, and its picture last if that is asked for."""
    parts = [{"type": "video"} for _ in clips] + [{"type": "image"}] * picture + [{"type": "text", "text": "Question?"}]
    return replace(sample, prompt=[{"role": "user", "content": parts}], images=sample.images if picture else [], videos=clips)


@pytest.mark.parametrize("family", SIDE)
def test_one_clip_and_two_are_scored_as_they_were_sampled(trainer_of, family):
    trainer, samples = trainer_of(family, engine=LIMITS)
    shown = [
        asking(samples[0], [clip(family, 6, 0)]), asking(samples[1], [clip(family, 5, 1)]), asking(samples[2], [clip(family, 1, 2)]),
        asking(samples[3], [clip(family, 4, 3), clip(family, 3, 4, fps=30.0)]), asking(samples[4], [clip(family, 4, 5)], picture=True),
        samples[5],
    ]  # fmt: skip
    engine = trainer.vllm_generation
    engine.sync_weights()
    assert parity.measure(trainer, shown).mean < BOUND
    assert parity.check(trainer, shown, "of clips")["parity/pictures"] < BOUND


@pytest.mark.parametrize("family", SIDE)
def test_the_same_frames_at_another_speed_are_another_clip_though_the_engine_keeps_what_it_saw(trainer_of, family):
    trainer, samples = trainer_of(family, engine=LIMITS)
    slow, fast = clip(family, 6, 0, fps=6.0), clip(family, 6, 0, fps=30.0)
    shown = [asking(sample, clips) for sample, clips in zip(samples, [[slow], [fast], [slow, fast], [fast, slow]], strict=False)]
    trainer.vllm_generation.sync_weights()
    assert parity.measure(trainer, shown).mean < BOUND
    assert parity.measure(trainer, shown[::-1]).mean < BOUND


def test_an_engine_on_two_processes_shows_each_its_own_clips(config_of, tmp_path):
    config = config_of(engine=LIMITS, batch_size=4, trl={"vllm_tensor_parallel_size": 2})
    told = two_ranks.started("clips_rank.py", config, tmp_path)
    apart = [float(gap) for gap in re.findall(r"apart (\S+)", told)]
    assert len(apart) == 2 and apart[0] != apart[1] and max(apart) < BOUND


def test_a_vllm_that_tells_the_times_of_clips_is_left_as_it_is():
    clip_times.told()
    own = qwen2_5_vl.Qwen2_5_VLProcessingInfo.get_data_parser.__module__ == qwen2_5_vl.__name__
    assert own == (Version(vllm.__version__) >= Version(clip_times.MENDED))


def test_the_published_positions_after_a_clip_are_another_policys(trainer_of, monkeypatch):
    trainer, samples = trainer_of("qwen2_5_vl", engine=LIMITS)
    shown = [asking(sample, [clip("qwen2_5_vl", 8, place, fps=30.0)]) for place, sample in enumerate(samples)]
    trainer.vllm_generation.sync_weights()
    assert parity.measure(trainer, shown).mean < BOUND
    for kind, published in positions.PUBLISHED.items():
        monkeypatch.setattr(kind, "get_rope_index", published)
    assert parity.measure(trainer, shown).mean > 100 * BOUND


def test_a_clip_of_another_size_than_the_trainer_scores_is_noticed(trainer_of):
    trainer, samples = trainer_of("qwen2_5_vl", engine=LIMITS)
    scored = policy.unpadded(policy.encode(trainer.processing_class, [asking(samples[0], [clip("qwen2_5_vl", 6, 0)])]))
    with pytest.raises(RolloutError, match="a clip is not in the prompt that the trainer scores"):
        trainer.vllm_generation.generate(scored, [[clip("qwen2_5_vl", 8, 0)]], 1)


def test_a_clip_collapses_to_its_placeholder():
    assert engine_prompts.collapse([1, 9, 9, 2, 8, 8, 3], [8, 9], [(7, [9, 9, 2])]) == [1, 7, 8, 3]
