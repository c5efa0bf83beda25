"""Covers `grpo validate` and what is refused before a run, on records with real clips that a registry names: what is counted and shown,
and each fault that a record can have."""

import json

import pytest
import yaml

from demo import clips

ASKED = "<video>\nWhich happens first?\n(1) right\n(2) down"
ANSWER = "<answer>(1)</answer>"


def record(ident, video="long", asked=ASKED, answer=ANSWER, **meta):
    said = [{"from": "human", "value": asked}, {"from": "gpt", "value": answer}]
    return {"id": ident, "video": f"{video}.mp4", "meta": {"max_frames": 6} | meta, "conversations": said}


SOUND = [record("all"), record("parts", frame_cnts=[10, 6], dynamic_sample=True), record("few", "short")]
GONE = [record("gone", "gone"), record("broken", "broken")]
FAULTY = [
    record("tags", asked=f"<video>{ASKED}"), record("counts", frame_cnts=[10, 7]), record("bounds", min_frames=7),
    record("key", answer="<answer>left</answer>"), record("long", asked=ASKED + " again" * 400),
]  # fmt: skip


@pytest.fixture(scope="module")
def registry(workshop):
    """A registry of records whose clips lie in a folder of their own."""
    for name, motions in (("long", ("right", "down", "left", "up")), ("short", ("right",))):
        clips.write(workshop.folder / f"clips/{name}.mp4", clips.moving(motions), fps=8.0)
    (workshop.folder / "clips/broken.mp4").write_bytes(b"no video")
    (workshop.folder / "records").mkdir()
    for name, records in (("sound", SOUND), ("gone", SOUND + GONE), ("faulty", SOUND + FAULTY)):
        (workshop.folder / f"records/{name}.json").write_text(json.dumps(records), encoding="utf-8")
    held = {name: {"annotations": f"records/{name}.json", "media_root": "clips"} for name in ("sound", "gone", "faulty")}
    (workshop.folder / "datasets.yml").write_text(yaml.safe_dump(held), encoding="utf-8")
    return "datasets.yml"


@pytest.fixture
def config(workshop, registry):
    def written(run_id, used, **changes):
        video = {"min_pixels": 784, "max_pixels": 3136} | changes.pop("video", {})
        changes = {"task": {"name": "video_actions"}, "rewards": [], "data": {"registry": registry}, "video": video} | changes
        return workshop.config(run_id, dataset_name=None, dataset_use=used, **changes)

    return written


def test_sound_clips_are_decoded_and_counted_and_one_prompt_is_shown(workshop, config):
    done = workshop.grpo("validate", config("clips-sound", "sound"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sound, split train: 3 rows kept, 0 dropped" in done.stdout
    assert "; 3 clips, decoded whole, of 4 to 6 frames" in done.stdout
    assert "3 gold answers and" in done.stdout
    assert done.stdout.rstrip().endswith("no faults")
    shown = workshop.folder / "home/validated/clips-sound"
    assert "<|video_pad|>" in (shown / "prompt.txt").read_text(encoding="utf-8")
    assert len(list(shown.glob("clip-0-*s.png"))) == 4  # 2 frames a second of 2 seconds


def test_every_fault_of_a_record_is_named(workshop, config):
    done = workshop.grpo("validate", config("clips-faulty", "faulty", use_vllm=True, vllm_max_model_length=400))
    assert (done.returncode, done.stdout.rstrip().splitlines()[-1]) == (1, "5 faults"), done.stdout + done.stderr
    faults = [line for line in done.stdout.splitlines() if line.startswith("fault: ")]
    said = [
        "has 2 <video> tags and names 1 files for them", "frame_cnts [10, 7] are 17 frames and the clip has 16",
        "holds meta.min_frames 7 above max_frames 6", "its answer 'left' is no list of (1) to (2)", "and the context holds 400",
    ]  # fmt: skip
    for row, (fault, what) in enumerate(zip(faults, said, strict=True), len(SOUND)):
        assert fault.startswith(f"fault: faulty, split train, row {row}: ")
        assert what in fault


def test_clips_that_cannot_be_read_are_named_and_left_out_up_to_their_share(workshop, config):
    strict = workshop.grpo("validate", config("clips-gone", "sound,gone", video={"most_unreadable": 0.2}))
    assert (strict.returncode, strict.stdout.rstrip().splitlines()[-1]) == (1, "2 faults"), strict.stdout + strict.stderr
    assert "fault: sound,gone, split train, row 6 (gone): video clips/gone.mp4: cannot be read" in strict.stdout
    assert "fault: sound,gone, split train, row 7 (gone): video clips/broken.mp4: is no video that can be read" in strict.stdout
    lenient = workshop.grpo("validate", config("clips-fewer", "gone", video={"most_unreadable": 0.4}))
    assert lenient.returncode == 0, lenient.stdout + lenient.stderr
    assert "gone, split train: 3 rows kept, 2 with an unreadable clip (row 3: video clips/gone.mp4" in lenient.stdout


@pytest.mark.parametrize("command", ["validate", "prepare", "plan --config", "train --config", "train --dry_run --config"])
def test_a_data_set_that_the_registry_does_not_hold_is_refused_by_every_command(workshop, config, refused, command):
    said = refused(workshop.grpo(*command.split(), config("clips-unknown", "sound%50,fault")))
    assert "datasets.yml holds no 'fault'; did you mean 'faulty'? it holds faulty, gone, sound" in said
