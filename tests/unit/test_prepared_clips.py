"""Covers preparing rows with clips: which frames they get, their tokens, unreadable ones, frames as pictures, and what is read again."""

import json
from pathlib import Path

import numpy
import pytest

from demo import clips
from qwen_vl_grpo import assembly, dataset, policy, row_clips, splits, tasks, validation
from qwen_vl_grpo.errors import ConfigError, DataError, PolicyError

FAMILIES = ["qwen2_5_vl", "qwen3_vl"]
META = {"min_frames": 4, "max_frames": 8}
ASKED = "Which of these?\n(1) reach\n(2) grasp"


@pytest.fixture
def folder(tmp_path):
    for name, frames in (("long", 40), ("short", 3)):
        clips.write(tmp_path / f"clips/{name}.mp4", clips.counting(frames), fps=8.0)
    (tmp_path / "clips/broken.mp4").write_bytes(b"no video")
    return tmp_path


@pytest.fixture
def prepare(checkpoint, config_of, folder):
    """Write records, prepare them for a tiny policy, and return its rows, report, config and processor."""

    def run(*records, family="qwen2_5_vl", **changes):
        (folder / "train.json").write_text(json.dumps(records), encoding="utf-8")
        changes = {"video": {"min_pixels": 28 * 28, "max_pixels": 56 * 56}, "task": {"name": "video_actions"}} | changes
        config = config_of(model_name=checkpoint(family), max_completion_length=16, dataset_name=str(folder / "train.json"), **changes)
        processor = policy.load_processor(config)
        rows, report = dataset.prepare(config, tasks.build(config.task), processor, config.dataset_name, "train")
        return rows, report, config, processor

    return run


def record(*names, answer="(1)", asked=ASKED, **more):
    turns = [{"from": "human", "value": "<video>\n" * len(names) + asked}, {"from": "gpt", "value": f"<answer>{answer}</answer>"}]
    return {"id": "-".join(names), "video": [f"clips/{name}.mp4" for name in names], "meta": META, "conversations": turns, **more}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tokens_of_a_prepared_prompt_are_those_that_the_policy_reads(prepare, family):
    rows, report, _, processor = prepare(record("long"), record("short", "long"), record("short"), record(), family=family)
    assert report.faults == []
    for row, sample in zip(rows, dataset.to_samples(rows), strict=True):
        assert row["prompt_tokens"] == len(policy.encode(processor, [sample])["input_ids"][0])
        assert len(sample.videos) == len(row["picture_ids"]) == len(row["videos"] or [])


def test_clips_for_a_server_are_refused_before_it_starts(prepare):
    *_, config, _ = prepare(record("short"), use_vllm=True, vllm_max_model_length=512, dataset_split="train", vllm_mode="server")
    with pytest.raises(ConfigError, match=r"hands the engine pictures alone, and .* has clips; set it to .*, or take video.mode: frames"):
        assembly.prepare(config)


def test_a_clip_has_the_frames_that_its_record_asks_for_and_they_come_back_as_they_were_seen(prepare):
    rows, *_ = prepare(record("long", "short"))
    long, short = dataset.to_samples(rows)[0].videos
    assert (len(long.indices), short.indices) == (8, (0, 1, 2))
    assert [clips.number(frame) for frame in long.frames] == list(long.indices)
    assert rows[0]["picture_ids"] == [long.sha256, short.sha256]


def test_what_a_row_holds_is_read_without_its_clips(prepare):
    rows, *_ = prepare(record("long"))
    assert {"conversations", "video", "meta"}.isdisjoint(rows.column_names)
    assert (rows["answer"], rows["choices"]) == (["(1)"], [["reach", "grasp"]])


@pytest.mark.parametrize(("name", "said"), [("broken", "is no video that can be read"), ("gone", "cannot be read")])
def test_an_unreadable_clip_is_named_and_left_out_up_to_its_share(prepare, name, said):
    records = [record("long"), record("short"), record(name)]
    _, report, config, processor = prepare(*records)
    assert [(number, why) for number, why, _ in report.faults] == [(2, dataset.UNREADABLE)]
    with pytest.raises(DataError, match=rf"row 2: video .*{name}.mp4: .*{said}"):
        dataset.load(config, tasks.build(config.task), processor, config.dataset_name, "train")
    few = config.model_copy(update={"video": config.video.model_copy(update={"most_unreadable": 0.34})})
    assert len(dataset.load(few, tasks.build(config.task), processor, config.dataset_name, "train")) == 2


def test_counts_that_disagree_with_the_clip_are_an_error_of_the_row(prepare):
    _, report, *_ = prepare(record("long", meta={"frame_cnts": [30, 11]}))
    (fault,) = report.faults
    assert fault[1] == dataset.UNUSABLE
    assert "frame_cnts [30, 11] are 41 frames and the clip has 40" in fault[2]


def test_a_clip_that_is_longer_than_the_context_is_too_long(prepare):
    _, report, *_ = prepare(record("long"), use_vllm=True, vllm_max_model_length=40)
    assert [(why, "video.max_tokens" in said) for _, why, said in report.faults] == [(dataset.TOO_LONG, True)]


@pytest.mark.parametrize("family", FAMILIES)
def test_frames_as_pictures_stand_behind_their_times_and_cost_more(prepare, family):
    whole, *_ = prepare(record("long"), family=family)
    limits = {"video": {"mode": "frames", "min_pixels": 784, "max_pixels": 56 * 56}, "data": {"min_pixels": 784}}
    rows, report, _, processor = prepare(record("long"), family=family, **limits)
    assert report.faults == []
    (sample,) = dataset.to_samples(rows)
    (clip,) = dataset.to_samples(whole)[0].videos
    assert (len(sample.images), len(sample.videos)) == (len(clip.indices), 0)
    assert all(numpy.array_equal(picture, frame) for picture, frame in zip(sample.images, clip.frames, strict=True))
    said = "".join(part["text"] for part in sample.prompt[1]["content"])
    assert said.startswith("".join(f"<{index / 8:.1f} s>" for index in clip.indices))
    assert rows[0]["prompt_tokens"] == len(policy.encode(processor, [sample])["input_ids"][0])
    assert rows[0]["prompt_tokens"] > rows[0][dataset.AS_CLIPS] == whole[0]["prompt_tokens"]


def test_training_alone_sees_jittered_frames_and_the_same_ones_whenever_it_is_prepared(prepare):
    jitter = {"jitter": True, "min_pixels": 784, "max_pixels": 56 * 56}
    plain, jittered, other = (prepare(record("long"), video=video, seed=seed)[0] for video, seed in (({}, 0), (jitter, 0), (jitter, 1)))
    again = prepare(record("long"), record("short"), video=jitter)[0]
    trained, shown = ([clip.indices for clip in row_clips.Clips(jittered[0]["videos"], training)] for training in (True, False))
    assert [tuple(clip["indices"]) for clip in plain[0]["videos"]] == shown != trained
    assert [tuple(again[0]["videos"][0]["trained_on"])] == trained != [tuple(other[0]["videos"][0]["trained_on"])]


def test_a_second_epoch_decodes_nothing(prepare, folder, monkeypatch):
    rows, *_ = prepare(record("long"))
    monkeypatch.setattr("qwen_vl_grpo.decoding.frames_of", None)
    (folder / "clips/long.mp4").unlink()
    assert len(dataset.to_samples(rows)[0].videos[0].frames) == 8


def test_a_clip_that_has_changed_is_prepared_again(prepare, folder):
    _, first, *_ = prepare(record("long"))
    _, second, *_ = prepare(record("long"))
    clips.write(folder / "clips/long.mp4", clips.counting(20), fps=8.0)
    _, third, *_ = prepare(record("long"))
    assert (first.cached, second.cached, third.cached) == (False, True, False)


def test_rows_of_one_clip_are_on_one_side_of_a_split(prepare):
    records = [record(name, asked=f"{place}. {ASKED}", id=str(place)) for place, name in enumerate(["long", "short"] * 4)]
    _, _, config, processor = prepare(*records, evaluation={"held_out": 0.5})
    parts = splits.load(config, tasks.build(config.task), processor)
    assert {*map(tuple, parts.train["picture_ids"])}.isdisjoint(map(tuple, parts.held_out["picture_ids"]))
    assert len(parts.train) == len(parts.held_out) == 4


def test_a_policy_that_reads_text_alone_refuses_a_clip(prepare):
    with pytest.raises(PolicyError, match="reads text alone, and row 0 of task video_actions has a clip; take a Qwen-VL checkpoint"):
        prepare(record("long"), family="qwen2")


def test_validation_counts_clips_and_frames_tries_the_answers_and_shows_one_prompt(prepare):
    *_, config, _ = prepare(record("long"), record("short", "long"), record("broken"))
    found = validation.validate(config)
    said = "\n".join(found.said)
    assert "3 clips, decoded whole, of 3 to 8 frames" in said
    assert "2 gold answers and " in said
    assert len(found.faults) == 1 and "row 2: video " in found.faults[0]
    (folder,) = (Path(line.rpartition(" ")[2]) for line in found.said if line.startswith("one prompt"))
    assert (folder / "prompt.txt").read_text().count("<|video_pad|>") == 1
    assert len(list(folder.glob("clip-0-*.png"))) == 8
