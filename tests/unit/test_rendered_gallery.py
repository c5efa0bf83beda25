"""Covers rendered_gallery.py and its part of a comparison: what is kept of a run's pictures, how much, and what a broken file does."""

import hashlib
import json
from pathlib import Path

import pytest
from PIL import Image

from qwen_vl_grpo import registry, rendered_gallery, report, tracking
from qwen_vl_grpo.errors import JudgeError, RenderError
from qwen_vl_grpo.interfaces import Conditioning, Judgement, RenderRequest, RunCard, Source
from qwen_vl_grpo.rendered_gallery import Entry, RenderedGallery
from qwen_vl_grpo.report import tables
from qwen_vl_grpo.report.drawn import extremes

EVIL = '</p></script><script>document.title="owned"</script><img src=x onerror="document.title=1">'


def entry(completion, score=None, original="a cat", reward=None, sources=(), states=None):
    conditioning = Conditioning(states, None) if states else None
    request = RenderRequest(original, completion, 7, sources=tuple(sources), conditioning=conditioning) if completion else None
    outcome = Judgement(score, {"cosine": score / 2}, "a cat can be seen") if score is not None else None
    return Entry(original, completion, request, outcome, score if reward is None else reward, tuple(sources))


def source(colour, size=(640, 480)):
    return Source(hashlib.sha256(colour.encode()).hexdigest(), Image.new("RGB", size, colour))


def drawn(*entries, side=8):
    return {one.request: Image.new("RGB", (side, side), (number, 0, 0)) for number, one in enumerate(entries)}


def test_the_best_and_the_worst_of_a_step_are_kept_with_their_verdicts(tmp_path):
    entries = [entry("b", 0.5), entry("c", 0.9, reward=0.2), entry("d", 0.1, reward=0.6), entry("")]
    RenderedGallery(tmp_path, 10).keep_step(3, entries, drawn(*entries[:3]))
    (best, worst), broken = rendered_gallery.read(tmp_path)
    assert (best["completion"], worst["completion"], best["moment"], broken) == ("d", "c", "step 3", 0)
    assert rendered_gallery.verdict(worst) == "score 0.90, cosine 0.450, reward 0.20, a cat can be seen"
    with Image.open(tmp_path / worst["picture"]) as picture:
        assert picture.convert("RGB").getpixel((0, 0)) == (1, 0, 0)


def test_what_was_not_drawn_again_has_the_picture_that_the_run_has_drawn_before_also_after_a_resume(tmp_path):
    one, other = entry("b", 0.5), entry("c", 0.5)
    RenderedGallery(tmp_path, 10).keep_held_out("before", [one], drawn(one))
    RenderedGallery(tmp_path, 10).keep_held_out("after", [one, other], {})
    before, again, remembered = rendered_gallery.read(tmp_path)[0]
    assert again["picture"] == before["picture"] and remembered["picture"] is None


def test_a_picture_is_another_for_another_source_or_other_states_of_the_policy_though_the_words_are_the_same(tmp_path):
    seen = [entry("b", 0.5, sources=[source("red")], states="1"), entry("b", 0.5, sources=[source("blue")], states="1")]
    RenderedGallery(tmp_path, 10).keep_held_out("before", seen, drawn(*seen))
    RenderedGallery(tmp_path, 10).keep_held_out("after", [*seen, entry("b", 0.5, sources=[source("red")], states="2")], {})
    pictures = [line["picture"] for line in rendered_gallery.read(tmp_path)[0]]
    assert pictures[0] != pictures[1]
    assert pictures[2:] == [*pictures[:2], None]


def test_a_source_is_kept_once_and_small_however_many_completions_begin_from_it(tmp_path):
    kept = RenderedGallery(tmp_path, 40)
    for step in range(1, 21):
        best, worst = (entry(f"{name} {step}", score, sources=[source("red")]) for name, score in (("best", 0.9), ("worst", 0.1)))
        kept.keep_step(step, [best, worst], {})
    RenderedGallery(tmp_path, 40).keep_held_out("after", [entry("", sources=[source("red"), source("blue")])], {})
    *steps, after = rendered_gallery.read(tmp_path)[0]
    (red,) = {name for line in steps for name in line["sources"]}
    assert (len(steps), after["sources"][0], len(list((tmp_path / "answers").iterdir()))) == (40, red, 2)
    assert rendered_gallery.caption(steps[0]).endswith("a cat -> best 1 | the source, and at its right what was drawn")
    with Image.open(tmp_path / after["sources"][1]) as picture:
        assert (picture.size, picture.convert("RGB").getpixel((0, 0))) == ((320, 240), (0, 0, 255))


def test_of_many_sources_the_first_are_kept(tmp_path):
    many = [source(colour) for colour in ("red", "green", "blue", "white", "black")]
    RenderedGallery(tmp_path, 1).keep_held_out("before", [entry("b", 0.5, sources=many)], {})
    assert len(rendered_gallery.read(tmp_path)[0][0]["sources"]) == len(list((tmp_path / "answers").iterdir())) == 3


@pytest.mark.parametrize("given", [{}, {"sources": None}, {"sources": "answers/0.png"}, {"sources": [1, {}]}, {"request": [7]}])
def test_a_line_without_sources_as_older_runs_have_it_is_read(tmp_path, given):
    line = {"moment": "before", "kind": "held-out", "place": 0, "original": "a cat", "completion": "b", "picture": None, "score": 0.5}
    (tmp_path / rendered_gallery.FILE).write_text(json.dumps(line | given) + "\n")
    (read,), broken = rendered_gallery.read(tmp_path)
    assert (read["sources"], broken, rendered_gallery.caption(read)) == ([], 0, "score 0.50 | a cat -> b")
    RenderedGallery(tmp_path, 1).keep_held_out("after", [entry("b", 0.5)], {})
    assert len(rendered_gallery.read(tmp_path)[0]) == 2


def test_a_tracker_sees_source_and_picture_in_a_row_of_equal_places(tmp_path):
    for name, size, colour in (("wide", (32, 16), "red"), ("drawn", (24, 24), "blue")):
        Image.new("RGB", size, colour).save(tmp_path / f"{name}.png")
    row = tracking.beside([tmp_path / "wide.png", tmp_path / "drawn.png"])
    assert row.size == (64, 24)
    assert [row.getpixel(at) for at in ((16, 12), (16, 1), (48, 12), (33, 12))] == [
        (255, 0, 0),
        (255, 255, 255),
        (0, 0, 255),
        (255, 255, 255),
    ]


def test_weights_and_biases_gets_source_and_picture_as_one_small_file_and_a_picture_without_source_as_it_is(tmp_path):
    import wandb

    photograph = Image.effect_noise((64, 48), 90).resize((640, 480), Image.Resampling.BICUBIC)
    edited = entry("b", 0.5, sources=[Source("1", photograph)])
    alone = entry("c", 0.5)
    run = wandb.init(mode="offline", dir=tmp_path, settings=wandb.Settings(silent=True))
    try:
        RenderedGallery(tmp_path, 1).keep_held_out("before", [edited], dict.fromkeys(drawn(edited), photograph.resize((320, 320))))
        RenderedGallery(tmp_path, 1).keep_step(1, [alone], drawn(alone))
        media = Path(run.dir) / "media/images/gallery"
    finally:
        run.finish()
    (row,) = media.glob("held-out_*")
    with Image.open(row) as picture:
        assert (picture.size, picture.format) == ((640, 320), "JPEG")
    assert row.stat().st_size < 80_000
    for kind in ("best", "worst"):
        (same,) = media.glob(f"{kind}_*")
        assert same.read_bytes() == (tmp_path / rendered_gallery.read(tmp_path)[0][-1]["picture"]).read_bytes()


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (RenderError("a picture of one colour"), "no score: a picture of one colour"),
        (JudgeError("no answer"), "no score: no answer"),
        (None, "no score: there was nothing to draw"),
    ],
)
def test_what_has_no_score_says_why(tmp_path, outcome, said):
    RenderedGallery(tmp_path, 1).keep_held_out("before", [Entry("a cat", "x", None, outcome, None)], {})
    assert rendered_gallery.verdict(rendered_gallery.read(tmp_path)[0][0]) == said


def test_a_step_that_was_done_again_is_there_once_and_broken_lines_are_counted(tmp_path):
    kept = RenderedGallery(tmp_path, 10)
    kept.keep_step(1, [entry("old", 0.5)], {})
    kept.keep_step(1, [entry("new", 0.5)], {})
    with (tmp_path / rendered_gallery.FILE).open("a") as file:
        file.write('{"moment": "step\n' + json.dumps({"moment": 3}) + "\n")
    lines, broken = rendered_gallery.read(tmp_path)
    assert ([line["completion"] for line in lines], broken) == (["new", "new"], 2)


def test_a_gallery_is_bounded_however_long_the_run_and_large_the_pictures(tmp_path):
    kept = RenderedGallery(tmp_path, 10_000)
    for step in range(1, 10_001):
        kept.keep_step(step, [entry(f"completion {step}", 0.5)], {})
    kept.keep_held_out("after", [entry(f"held out {place}", 0.5) for place in range(100)], {})
    kinds = [line["kind"] for line in rendered_gallery.read(tmp_path)[0]]
    assert (kinds.count("best"), kinds.count("worst"), kinds.count("held-out")) == (250, 250, 16)


def test_a_second_rank_keeps_nothing_and_a_full_disk_stops_no_run(tmp_path, monkeypatch, caplog):
    (tmp_path / rendered_gallery.FILE).mkdir()
    RenderedGallery(tmp_path, 1).keep_step(1, [entry("b", 0.5)], {})
    assert "the pictures of step 1 are not kept (Is a directory)" in caplog.text
    monkeypatch.setenv("RANK", "1")
    RenderedGallery(tmp_path / "run", 1).keep_step(1, [entry("b", 0.5)], drawn(entry("b", 0.5)))
    assert not (tmp_path / "run").exists()


def test_a_comparison_shows_pictures_beside_each_other_and_strangers_text_as_text(tmp_path):
    for run_id in ("one", "two"):
        folder = tmp_path / run_id
        folder.mkdir()
        registry.write(RunCard(run_id=run_id, task="prompt_enhancement", base_model="tiny", state="finished"), folder)
        kept = RenderedGallery(folder, 40)
        for moment in ("before", *(f"step {step}" for step in range(1, 9)), "after"):
            entries = [entry(f"{EVIL} {moment}", 0.5, f"prompt {place}") for place in range(12)]
            kept.keep_held_out(moment, entries, drawn(*entries, side=8))
        for step in range(1, 41):
            best = entry(f"best of {step}", 0.5)
            kept.keep_step(step, [best], drawn(best))
    page = Path(report.compare(["one", "two"], tmp_path / "out")[0]).read_text(encoding="utf-8")
    shown = page[page.index('<section id="pictures"') : page.index('<section id="config"')]
    assert shown.count("<img") == 2 * (8 * 4 + 6 + 6) == shown.count("data:image/png;base64,")
    assert "<script" not in shown and "&lt;script&gt;" in shown
    assert all(f"<figcaption>{moment} " in shown for moment in ("before", "after", "step 1", "step 40"))
    assert "score 0.50, cosine 0.250, a cat can be seen" in shown


def test_a_comparison_shows_a_held_out_source_once_and_an_extremes_source_beside_its_picture(tmp_path):
    for run_id in ("one", "two"):
        folder = tmp_path / run_id
        folder.mkdir()
        registry.write(RunCard(run_id=run_id, task="image_edit", base_model="tiny", state="finished"), folder)
        kept = RenderedGallery(folder, 2)
        for moment in ("before", "after"):
            entries = [entry(f"{EVIL} {moment}", 0.5, "Make it green.", sources=[source(colour)]) for colour in ("red", "blue")]
            kept.keep_held_out(moment, [*entries, entry("", original="Make it dark.", sources=[source("red")])], drawn(*entries))
        best, worst = entry("best", 0.9, sources=[source("blue"), source("red")]), entry("worst", 0.1, sources=[source("blue")])
        kept.keep_step(1, [best, worst], drawn(best, worst))
    page = Path(report.compare(["one", "two"], tmp_path / "out")[0]).read_text(encoding="utf-8")
    shown = page[page.index('<section id="pictures"') : page.index('<section id="config"')]
    assert shown.count("<h3>Make it green.</h3>") == 2, "one prompt for two pictures is two"
    assert shown.count('<img class="source"') == 3 + 2 * (2 + 1)
    assert shown.count("<img") - shown.count('<img class="source"') == 2 * (2 * 2 + 2)
    assert "<script" not in shown and "dashed" in shown


def test_a_source_that_is_gone_is_said_and_a_line_may_name_no_other_file(tmp_path):
    (tmp_path / "one").mkdir()
    registry.write(RunCard(run_id="one", task="image_edit", base_model="tiny", state="finished"), tmp_path / "one")
    line = {"moment": "before", "kind": "best", "place": 0, "original": "a cat", "completion": "b", "picture": None, "score": 0.5}
    names = ["answers/0123456789abcdef.png", "../../secret.png"]
    (tmp_path / "secret.png").write_bytes(b"secret")
    held_out = line | {"kind": "held-out", "sources": names[1:]}
    (tmp_path / "one" / rendered_gallery.FILE).write_text(json.dumps(line | {"sources": names}) + "\n" + json.dumps(held_out) + "\n")
    page = Path(report.compare(["one"], tmp_path / "out")[0]).read_text(encoding="utf-8")
    assert '<img class="source"' not in page
    assert page.count("The source is not there.") == 3


def test_a_source_keeps_its_number_where_the_one_before_it_is_gone(tmp_path):
    registry.write(RunCard(run_id="one", task="image_edit", base_model="tiny", state="finished"), tmp_path)
    asked = entry("best", 0.9, sources=[source("blue"), source("red")])
    RenderedGallery(tmp_path, 1).keep_step(1, [asked], drawn(asked))
    (tmp_path / rendered_gallery.read(tmp_path)[0][0]["sources"][0]).unlink()
    best, _ = extremes([tables.gather(registry.read(tmp_path), tmp_path)])
    missing, there = best.runs[0][0].sources
    assert missing is None
    assert there.startswith("data:image/png;base64,")
