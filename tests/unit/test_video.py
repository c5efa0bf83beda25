"""Covers clips out of real video files: what is found in them, the frames and times that come back, faults, and the frames kept on disk."""

import logging
import shutil
import sys
from pathlib import Path

import numpy
import pytest

from demo import clips
from qwen_vl_grpo import decoding, footage, video
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.video_sections import VideoSection

SMALL = VideoSection(min_pixels=1, max_pixels=48 * 64)
PATCH = 4
NOISE = numpy.random.default_rng(0)


def noisy(frames):
    """Frames whose packets are a few thousand bytes each, so that a part of a file holds a part of them."""
    bright = [picture.astype(int) + NOISE.integers(-24, 25, picture.shape) for picture in clips.counting(frames, 96, 128)]
    return [numpy.clip(picture, 0, 255).astype(numpy.uint8) for picture in bright]


def numbers(clip):
    return [clips.number(picture) for picture in clip.frames]


@pytest.fixture
def by_pyav(monkeypatch):
    """PyAV reads, whether torchcodec is installed or not."""
    monkeypatch.setattr(decoding, "torchcodec", lambda: None)


@pytest.fixture
def counted(monkeypatch, by_pyav):
    """A list of every frame that is decoded."""
    seen = []

    def count(*given):
        for item in footage.decoded(*given):
            seen.append(item)
            yield item

    monkeypatch.setattr(decoding, "decoded", count)
    return seen


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.mp4", "libx264"), ("a.mov", "mpeg4"), ("a.mkv", "libx264"), ("a.webm", "libvpx-vp9"), ("a.avi", "mpeg4"), ("a.ts", "libx264"),
        ("a.flv", "libx264"), ("a.mpg", "mpeg2video"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("fps", [30000 / 1001, 25])
def test_the_frames_that_are_asked_for_come_back_from_every_container(tmp_path, name, codec, fps):
    found = video.probe(clips.write(tmp_path / name, clips.counting(60), fps, codec=codec))
    assert (found.frames, found.width, found.height, found.remarks) == (60, 64, 48, ())
    assert found.fps == pytest.approx(fps, rel=1e-4)
    assert found.seconds == pytest.approx(60 / fps, rel=1e-4)
    for indices in [(0,), (59,), (0, 1, 2, 11, 12, 13, 40, 59), tuple(range(60))]:
        clip = video.read(found, indices, SMALL, PATCH)
        assert numbers(clip) == list(clip.indices) == list(indices)
        assert (clip.fps, clip.total, clip.sha256) == (found.fps, 60, found.sha256)


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_a_turned_clip_comes_back_upright(tmp_path, rotation):
    found = video.probe(clips.write(tmp_path / "turned.mp4", clips.counting(9, 48, 80), rotation=rotation))
    assert (found.width, found.height) == (80, 48)
    clip = video.read(found, (0, 5, 8), SMALL.model_copy(update={"max_pixels": 48 * 80}), PATCH)
    assert clip.frames.shape == (3, 48, 80, 3)
    assert numbers(clip) == [0, 5, 8]


def test_frames_of_a_variable_rate_are_chosen_by_time(tmp_path):
    """Three frames in the first 0.3 s, one that stays for 2 s, two more: even spacing in time sees the long one most often."""
    times = [0.0, 0.1, 0.2, 0.3, 2.3, 2.4]
    found = video.probe(clips.write(tmp_path / "uneven.mp4", clips.counting(6), 10, times=times))
    assert found.frames == 6
    assert found.seconds == pytest.approx(2.5, abs=0.01)
    clip = video.read(found, video.choose(found, SMALL), SMALL, PATCH)
    seen = [max(place for place, begin in enumerate(times) if begin <= (index + 0.5) / found.fps) for index in clip.indices]
    assert numbers(clip) == seen
    assert seen.count(3) >= 3


@pytest.mark.parametrize(("height", "width"), [(45, 61), (33, 200)])
def test_an_odd_size_becomes_whole_patches(tmp_path, height, width):
    found = video.probe(clips.write(tmp_path / "odd.mp4", clips.counting(4, height, width)))
    section = VideoSection(min_pixels=28 * 28, max_pixels=64 * 28 * 28)
    clip = video.read(found, (0, 3), section, 28)
    assert clip.frames.shape[1] % 28 == clip.frames.shape[2] % 28 == 0
    assert numbers(clip) == [0, 3]


def test_one_frame_is_a_clip(tmp_path):
    found = video.probe(clips.write(tmp_path / "one.mp4", clips.counting(1), 4))
    assert (found.frames, found.seconds) == (1, 0.25)
    assert numbers(video.read(found, video.choose(found, SMALL), SMALL, PATCH)) == [0]


def test_what_is_no_video_is_an_error_that_names_the_file(tmp_path):
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "folder.mp4").mkdir()
    (tmp_path / "text.mp4").write_text("no film " * 1000)
    headless = clips.write(tmp_path / "headless.mp4", clips.counting(9))
    headless.write_bytes(headless.read_bytes()[:40])
    wanted = {
        "missing.mp4": "No such file",
        "empty.mp4": "0 bytes",
        "text.mp4": "no video that can be read",
        "folder.mp4": "Is a directory",
        "headless.mp4": "no stream and no moving pictures",
        clips.write_sound(tmp_path / "sound.mp4").name: "audio and no moving pictures",
    }
    for name, said in wanted.items():
        with pytest.raises(DataError, match=f"{name}: .*{said}"):
            video.probe(tmp_path / name)


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_of_a_download_that_broke_off_the_whole_frames_are_used(tmp_path, suffix):
    found = video.probe(clips.cut(clips.write(tmp_path / f"cut{suffix}", noisy(60), 10), 0.5))
    assert 15 < found.frames < 45
    assert found.seconds == pytest.approx(found.frames / 10)
    clip = video.read(found, range(found.frames), SMALL, PATCH)
    assert numbers(clip) == list(clip.indices)
    assert len(clip.indices) >= found.frames - 3  # the last ones may wait for one that is missing
    assert found.remarks == (f"video {found.path}: breaks off after {found.frames} frames ({found.seconds:.1f} s)",)


def test_frames_that_were_overwritten_are_left_out_and_never_made_up(tmp_path, by_pyav):
    path = clips.write(tmp_path / "holed.mp4", noisy(60), 10)
    content = bytearray(path.read_bytes())
    for share in range(50, 100):
        place = len(content) * share // 100
        content[place : place + 64] = bytes(64)
    path.write_bytes(content)
    found = video.probe(path)
    clip = video.read(found, range(60), SMALL, PATCH)
    assert 20 <= len(clip.indices) < 60
    assert numbers(clip) == list(clip.indices)
    with pytest.raises(DataError, match="not one of the chosen frames can be decoded"):
        video.read(found, (58, 59), SMALL, PATCH)


def test_of_four_hours_only_the_groups_that_are_looked_into_are_decoded(tmp_path, counted):
    found = video.probe(clips.write(tmp_path / "long.mp4", clips.counting(3600), 0.25, group=50))
    assert found.seconds == 4 * 3600
    indices = video.choose(found, SMALL)
    assert len(indices) == 8
    clip = video.read(found, indices, SMALL, PATCH)
    assert numbers(clip) == list(indices)
    assert len(counted) <= 8 * 54  # a group of pictures and the few that a decoder holds back


def test_neighbours_are_decoded_in_one_pass(tmp_path, counted):
    found = video.probe(clips.write(tmp_path / "short.mp4", clips.counting(40), group=40))
    video.read(found, range(0, 40, 2), SMALL, PATCH)
    assert len(counted) <= 40


def test_a_file_is_looked_at_once_until_it_changes(tmp_path, monkeypatch):
    path = clips.write(tmp_path / "clip.mp4", clips.counting(9))
    looked, look = [], footage.looked
    monkeypatch.setattr(footage, "looked", lambda path: looked.append(path) or look(path))
    first = video.probe(path)
    assert video.probe(path) == first
    assert video.probe(str(path)) == first
    assert len(looked) == 1
    clips.write(path, clips.counting(12))
    assert video.probe(path).frames == 12
    assert len(looked) == 2


def test_a_second_epoch_decodes_nothing(tmp_path, counted):
    section = SMALL.model_copy(update={"cache_gib": 0.01})
    found = [video.probe(clips.write(tmp_path / f"{name}.mp4", clips.counting(9 + name))) for name in range(3)]
    cache = video.frames_cache(section)
    first = [video.read(clip, video.choose(clip, section), section, PATCH, cache) for clip in found]
    decoded = len(counted)
    assert decoded
    second = [video.read(clip, video.choose(clip, section), section, PATCH, video.frames_cache(section)) for clip in found]
    again = [video.reread(video.kept(clip, source.path), cache) for clip, source in zip(first, found, strict=True)]
    assert len(counted) == decoded
    assert first == second == again
    for one, others in zip(first, zip(second, again, strict=True), strict=True):
        assert all((one.frames == other.frames).all() for other in others)


def test_a_clip_is_made_again_from_its_row_where_nothing_is_kept(tmp_path):
    path = clips.write(tmp_path / "clip.mp4", noisy(20))
    clip = video.read(video.probe(path), (2, 9, 17), SMALL, PATCH)
    row = video.kept(clip, str(path))
    again = video.reread(row)
    assert again == clip
    assert (again.frames == clip.frames).all()
    shutil.copy(clips.write(tmp_path / "other.mp4", clips.counting(20)), path)
    with pytest.raises(DataError, match=r"clip\.mp4: is another file"):
        video.reread(row)


def test_no_cache_is_kept_where_it_may_take_nothing():
    assert video.frames_cache(VideoSection(cache_gib=0)) is None


def test_reading_works_where_nothing_can_be_kept(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "file"))  # no folder can be made in it
    cache = video.frames_cache(SMALL)
    found = video.probe(clips.write(tmp_path / "clip.mp4", clips.counting(9)))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert numbers(video.read(found, (1, 7), SMALL, PATCH, cache)) == [1, 7]
    assert [record.message for record in caplog.records if "decoded each time" in record.message] == [caplog.records[0].message]
    assert Path(tmp_path / "file").read_bytes() == b""


@pytest.mark.parametrize("error", ["ImportError", "OSError", "RuntimeError"])
def test_a_torchcodec_that_does_not_load_is_none(tmp_path, monkeypatch, error):
    """It raises any of these where it is not built for this torch, or finds no FFmpeg."""
    (tmp_path / "torchcodec").mkdir()
    (tmp_path / "torchcodec/__init__.py").write_text(f"raise {error}('no libavutil')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchcodec", raising=False)
    monkeypatch.delitem(sys.modules, "torchcodec.decoders", raising=False)
    assert decoding.torchcodec.__wrapped__() is None


@pytest.mark.skipif(not decoding.torchcodec(), reason="torchcodec is not installed here, or finds no FFmpeg; PyAV reads")
@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts"])
def test_torchcodec_and_pyav_see_the_same_frames(tmp_path, monkeypatch, name):
    found = video.probe(clips.write(tmp_path / name, noisy(60), 10))
    with monkeypatch.context() as alone:
        if name != "a.ts":  # in which torchcodec finds the wrong frames, and PyAV takes over
            alone.setattr(decoding, "_by_pyav", None)
        ours = video.read(found, (0, 7, 8, 33, 59), SMALL, PATCH)
    monkeypatch.setattr(decoding, "torchcodec", lambda: None)
    others = video.read(found, (0, 7, 8, 33, 59), SMALL, PATCH)
    assert ours == others
    assert numpy.abs(ours.frames.astype(int) - others.frames).mean() < 2
