"""Covers the clips of motions that make demo-video learns from: only their time tells the answer, and a warm-up on clips imitates."""

import json
import random
from collections import Counter
from typing import Any

import numpy
import torch

from demo import clips, motions, tiny_qwen
from qwen_vl_grpo import actions, video, warmup
from qwen_vl_grpo.tasks import video_actions
from qwen_vl_grpo.video_sections import VideoSection

PAIRS = [motions.pair(random.Random(seed)) for seed in range(400)]


def test_a_clip_played_backwards_has_another_answer():
    for (forwards, frames), (backwards, reversed_frames) in PAIRS:
        assert forwards[0] != backwards[0] and numpy.array_equal(frames[::-1], reversed_frames)


def test_each_motion_is_first_equally_often_with_its_frames_in_no_order():
    """The drawn places are the same on the way there and back, whatever the motion: no set of frames belongs to one answer alone."""
    for there, back in (("right", "left"), ("down", "up")):
        ways = [{_places(motions.moving(motion, random.Random(seed))) for seed in range(400)} for motion in (there, back)]
        assert ways[0] == ways[1] and len(ways[0]) > 200
    firsts = Counter(played[0][0] for pair in PAIRS for played in pair)
    assert set(firsts) == set(motions.MOTIONS) and min(firsts.values()) > 150


def test_a_square_never_leaves_the_frame():
    assert {int(frame.any(2).sum()) for pair in PAIRS for frame in pair[0][1]} == {motions.SHAPE**2}


def test_the_answers_are_those_that_the_task_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(motions, "ROWS", {"train": 4, "test": 2})
    assert motions.write(tmp_path) == {"train": 4, "test": 2, "warmup": 8}
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    choices = actions.offered(motions.QUESTION)
    assert choices == list(motions.MOTIONS)
    for row in rows:
        assert (tmp_path / row["video"]).is_file()
        first = motions.target(row["motions"].split()[0])
        assert video_actions.score(first, row["answer"], choices) == 1.0


def test_a_warm_up_on_clips_sees_them_and_imitates_the_targets_alone(tmp_path):
    processor: Any = tiny_qwen.processor("qwen2_5_vl", motions.PHRASES, 420)
    processor.tokenizer.padding_side = "left"
    targets = [motions.target(first) + "!" * place for place, ((first, *_), _) in enumerate(PAIRS[0])]
    rows = []
    for place, (target, (_, frames)) in enumerate(zip(targets, PAIRS[0], strict=True)):
        path = clips.write(tmp_path / f"{place}.mp4", frames, motions.FPS)
        seen = video.read(video.probe(path), range(len(frames)), VideoSection(min_pixels=1), 28)
        shown = {"images": [], "videos": [video.kept(seen, str(path)) | {"cache_gib": 0.0}]}
        asked = {"role": "user", "content": "Which? " * place + motions.QUESTION}
        rows.append(shown | {"prompt": [asked], "completion": [{"role": "assistant", "content": target}]})
    batch = warmup.with_clips(processor, rows)
    imitated = [processor.tokenizer.decode(labels[labels != -100]) for labels in batch["labels"]]
    assert imitated == [f"{target}<|im_end|>" for target in targets]
    assert batch["video_grid_thw"].tolist() == [[4, 4, 4]] * 2
    assert {batch[name].shape for name in ("labels", "attention_mask", "mm_token_type_ids")} == {batch["input_ids"].shape}
    assert not torch.equal(*batch["pixel_values_videos"].chunk(2))


def _places(frames):
    """Where the square is in each frame, in no order."""
    return frozenset(tuple(int(place.min()) for place in frame.any(2).nonzero()) for frame in frames)
