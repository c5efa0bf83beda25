"""Covers which frames of a clip are chosen: how many by rate, count, segments and budget, where they lie, and their size."""

import random

import pytest

from qwen_vl_grpo import frame_choice
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.footage import Footage
from qwen_vl_grpo.video_sections import VideoSection


def footage(frames=100, fps=10.0, width=560, height=280):
    return Footage("a.mp4", "0" * 64, frames, fps, frames / fps, width, height)


def chosen(frames=100, fps=10.0, section=None, **asked):
    return frame_choice.choose(footage(frames, fps), VideoSection(**section or {}), **asked)


@pytest.mark.parametrize(
    ("frames", "section", "count"),
    [
        (40, {}, 8),  # 4 s at 2 frames a second
        (39, {}, 6),  # 7 would cost a pair more
        (10, {}, 4),  # the fewest
        (1000, {}, 8),  # the most
        (1000, {"max_frames": 64}, 64),
        (1000, {"max_frames": 768}, 200),
        (3, {}, 3),  # all there are
        (1, {}, 1),
        (100, {"frames": 5}, 5),  # a count is what was asked for, odd or not
        (100, {"frames": 64}, 8),
        (100, {"frames": 1}, 4),
        (100, {"frames": 1, "min_frames": 1}, 1),
    ],
)
def test_so_many_frames_are_taken(frames, section, count):
    assert len(chosen(frames, section=section)) == count


def test_the_frames_are_the_middles_of_equal_stretches():
    assert chosen(80) == (5, 15, 25, 35, 45, 55, 65, 75)
    assert chosen(4) == (0, 1, 2, 3)
    assert chosen(1) == (0,)


def test_a_longer_clip_gives_more_frames_inside_the_bounds():
    counts = [len(chosen(frames, section={"max_frames": 32}, dynamic=True)) for frames in range(1, 400)]
    assert counts == sorted(counts)
    assert set(counts[3:]) == {4, *range(6, 33, 2)}


def test_dynamic_goes_by_the_rate_where_the_config_names_a_count():
    section = {"frames": 4, "max_frames": 32}
    assert len(chosen(section=section)) == 4
    assert len(chosen(section=section, dynamic=True)) == 20


def test_a_records_bounds_come_before_the_configs():
    assert len(chosen(1000, max_frames=12)) == 12
    assert len(chosen(1000, max_frames=2)) == 2  # below the config's min_frames
    assert len(chosen(10, min_frames=10)) == 10  # above its max_frames
    assert len(chosen(50, min_frames=6, max_frames=6)) == 6
    with pytest.raises(DataError, match=r"a\.mp4: min_frames 9 is above max_frames 8"):
        chosen(min_frames=9, max_frames=8)
    for bound in ("min_frames", "max_frames"):
        with pytest.raises(DataError, match="must be 1 or more"):
            chosen(**{bound: 0})


@pytest.mark.parametrize("frames", [7, 8, 31, 100, 433000])
@pytest.mark.parametrize("dynamic", [False, True])
def test_jitter_takes_one_frame_of_each_stretch_and_repeats_by_its_seed(frames, dynamic):
    still = chosen(frames, dynamic=dynamic)
    draws = [chosen(frames, dynamic=dynamic, jitter=random.Random(seed)) for seed in range(20)]
    assert draws == [chosen(frames, dynamic=dynamic, jitter=random.Random(seed)) for seed in range(20)]
    edges = [frames * place // len(still) for place in range(len(still) + 1)]
    for draw in (still, *draws):
        assert all(low <= place < high for place, low, high in zip(draw, edges[:-1], edges[1:], strict=True))
    assert len(set(draws)) > 1 or frames <= 8


def test_segments_share_the_frames_by_their_length_or_alike():
    """`frame_cnts: [15, 11]` of a clip of 26 frames, of which at most 8 are taken."""
    by_length, alike = (chosen(26, frame_counts=[15, 11], dynamic=dynamic) for dynamic in (True, False))
    assert [sum(place < 15 for place in places) for places in (by_length, alike)] == [5, 4]
    assert len(by_length) == len(alike) == 8
    assert by_length == (1, 4, 7, 10, 13, 16, 20, 24)


def test_segments_that_were_counted_at_another_rate_span_the_whole_clip():
    places = chosen(260, frame_counts=[15, 11], dynamic=True)
    assert [sum(place < 150 for place in places), max(places) > 230] == [5, True]


@pytest.mark.parametrize(
    ("lengths", "total", "by_length", "expected"),
    [
        ([15, 11], 8, True, [5, 3]),
        ([100, 1, 1], 8, True, [6, 1, 1]),  # at least one each
        ([100, 1, 1], 8, False, [6, 1, 1]),  # no more than there are
        ([5, 5, 5], 8, True, [3, 3, 2]),
        ([5, 5, 5], 3, False, [1, 1, 1]),
        ([2, 2], 4, False, [2, 2]),
    ],
)
def test_shares_are_at_least_one_and_no_more_than_the_segment(lengths, total, by_length, expected):
    assert frame_choice.shares(lengths, total, by_length) == expected


def test_every_sharing_adds_up():
    draw = random.Random(0)
    for _ in range(300):
        lengths = [draw.randint(1, 30) for _ in range(draw.randint(1, 9))]
        total = draw.randint(len(lengths), sum(lengths))
        for by_length in (True, False):
            given = frame_choice.shares(lengths, total, by_length)
            assert sum(given) == total
            assert all(1 <= count <= length for count, length in zip(given, lengths, strict=True))


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([80, 21], r"\[80, 21\] are 101 frames and the clip has 100"),
        ([], "must name the length of each segment"),
        ([15, 0], "1 frame or more"),
        ([5] * 9, "9 segments of frame_cnts need a frame each and max_frames is 8"),
    ],
)
def test_segments_that_disagree_with_the_clip_are_an_error(counts, said):
    with pytest.raises(DataError, match=said):
        chosen(frame_counts=counts)


def test_a_budget_of_tokens_gives_up_frames_first_and_then_pixels():
    """560 x 280 pixels are 20 x 10 patches of 28, so that two frames cost 200 tokens."""
    clip = footage()
    for most, frames, size in [
        (800, 8, (560, 280)),
        (799, 6, (560, 280)),
        (400, 4, (560, 280)),
        (399, 4, (532, 252)),
        (100, 4, (280, 140)),
    ]:
        section = VideoSection(max_tokens=most)
        places = frame_choice.choose(clip, section, patch=28)
        assert (len(places), frame_choice.size(clip, len(places), section, 28)) == (frames, size)
        assert frames // 2 * size[0] * size[1] // 28**2 <= most
    with pytest.raises(DataError, match=r"a\.mp4: no multiple of 28 pixels"):
        frame_choice.size(clip, 4, VideoSection(max_tokens=20), 28)


@pytest.mark.parametrize("patch", [4, 28, 32])
def test_a_size_is_whole_patches_inside_the_bounds_and_stays(patch):
    draw = random.Random(0)
    section = VideoSection(min_pixels=16 * patch**2, max_pixels=300 * patch**2)
    for _ in range(500):
        width, height = draw.randint(40, 3000), draw.randint(40, 3000)
        wide, high = frame_choice.fitted(width, height, section, patch, "a clip")
        assert wide % patch == high % patch == 0
        assert section.min_pixels <= wide * high <= section.max_pixels
        assert frame_choice.fitted(wide, high, section, patch, "a clip") == (wide, high)
    with pytest.raises(DataError, match="200 times longer"):
        frame_choice.fitted(4000, 10, section, patch, "a clip")
