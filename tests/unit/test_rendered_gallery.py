"""Covers rendered_gallery.py and its part of a comparison: what is kept of a run's pictures, how much, and what a broken file does."""

import json
from pathlib import Path

import pytest
from PIL import Image

from qwen_vl_grpo import registry, rendered_gallery, report
from qwen_vl_grpo.errors import JudgeError, RenderError
from qwen_vl_grpo.interfaces import Judgement, RenderRequest, RunCard
from qwen_vl_grpo.rendered_gallery import Entry, RenderedGallery

EVIL = '</p></script><script>document.title="owned"</script><img src=x onerror="document.title=1">'


def entry(completion, score=None, original="a cat", reward=None):
    request = RenderRequest(original, completion, 7) if completion else None
    outcome = Judgement(score, {"cosine": score / 2}, "a cat can be seen") if score is not None else None
    return Entry(original, completion, request, outcome, score if reward is None else reward)


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
