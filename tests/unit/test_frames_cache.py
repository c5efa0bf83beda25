"""Covers decoded frames on disk: their limit, who leaves first, what is broken, and processes that write at once."""

import contextlib
import multiprocessing
import os

import numpy

from qwen_vl_grpo import frames_cache
from qwen_vl_grpo.frames_cache import FramesCache

CLIP = 100 * 100 * 3
"""Bytes of a clip of one frame."""


def frames(value):
    return numpy.full((1, 100, 100, 3), value, numpy.uint8)


def used(folder):
    """Bytes of the files in a folder, but those that another process takes away meanwhile."""
    sizes = []
    for path in folder.rglob("*.npz"):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return sum(sizes)


def test_frames_come_back_by_their_key_and_no_other(tmp_path):
    cache = FramesCache(tmp_path / "frames", 10**6)
    cache.put(["a", (1, 2), 28], frames(7))
    assert (cache.get(["a", [1, 2], 28]) == frames(7)).all()
    assert cache.get(["a", [1, 3], 28]) is None


def test_what_was_used_least_recently_leaves_first(tmp_path):
    cache = FramesCache(tmp_path, 10 * CLIP)
    for name in range(8):
        cache.put(name, frames(name))
        os.utime(cache._path(name), ns=(name, name))
    assert cache.get(0) is not None  # used now, so that 1 is the oldest
    cache.put(8, frames(8))
    cache.put(9, frames(9))
    assert [name for name in range(10) if cache.get(name) is None] == [1, 2]
    assert used(tmp_path) <= 10 * CLIP


def test_a_clip_that_is_larger_than_the_cache_is_not_kept(tmp_path):
    cache = FramesCache(tmp_path, 2 * CLIP)
    cache.put("small", frames(1))
    cache.put("large", numpy.zeros((2, 100, 100, 3), numpy.uint8))
    assert cache.get("large") is None
    assert cache.get("small") is not None


def test_a_broken_file_is_removed_and_written_again(tmp_path):
    cache = FramesCache(tmp_path, 10**6)
    for harm in (
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: content[:20_000] + b"?" + content[20_001:],
    ):
        cache.put("clip", frames(3))
        path = cache._path("clip")
        path.write_bytes(harm(path.read_bytes()))
        assert cache.get("clip") is None
        assert not path.exists()
    cache.put("clip", frames(3))
    assert (cache.get("clip") == frames(3)).all()


def test_what_a_dead_process_left_is_cleared_away_and_a_living_ones_file_is_not(tmp_path):
    cache = FramesCache(tmp_path, 5 * CLIP)
    cache.put("clip", frames(1))
    dead, living = (cache._path("clip").parent / name for name in (".dead", ".living"))
    for path in (dead, living):
        path.write_bytes(b"half")
    os.utime(dead, (0, 0))
    FramesCache(tmp_path, 5 * CLIP).put("other", frames(2))
    assert [dead.exists(), living.exists()] == [False, True]


def write_many(folder, start, wrong, most):
    cache = FramesCache(folder, 20 * CLIP)
    for name in range(start, start + 60):
        cache.put(name % 40, frames(name % 40))
        most.value = max(most.value, used(folder))
        for other in (name % 40, (name * 7) % 40):
            found = cache.get(other)
            if found is not None and not (found == frames(other)).all():
                wrong.value += 1


def test_processes_that_write_at_once_keep_the_limit_and_see_whole_frames(tmp_path):
    context = multiprocessing.get_context("spawn")
    wrong, most = context.Value("i", 0), context.Value("q", 0)
    writers = [context.Process(target=write_many, args=(tmp_path, start, wrong, most)) for start in (0, 13, 29)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert wrong.value == 0
    assert 10 * CLIP < most.value <= 20 * CLIP


def test_small_files_are_written_without_a_look_at_the_folder_each_time(tmp_path, monkeypatch):
    looks, look = [], FramesCache._make_room
    monkeypatch.setattr(FramesCache, "_make_room", lambda cache, needed: looks.append(needed) or look(cache, needed))
    cache = FramesCache(tmp_path, 100 * frames_cache.WRITERS * CLIP)
    for name in range(40):
        cache.put(name, frames(name))
    assert len(looks) <= 8
