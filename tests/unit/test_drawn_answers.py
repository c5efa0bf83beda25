"""Covers answers that are drawn from the policy's own states for a person who asks: whose states, which judge, and what is said without."""

import weakref

import pytest
import torch
from peft import PeftModel
from PIL import Image
from transformers import AutoModelForImageTextToText

from demo import tiny_qwen_image
from demo.images import answer
from demo.judge_server import JudgeServer
from qwen_vl_grpo import dataset, loading, policy_states, registry, side_by_side
from qwen_vl_grpo.answering import How
from qwen_vl_grpo.images.embeddings import PolicyEncoder, Turn
from qwen_vl_grpo.images.qwen_image import QwenImage
from qwen_vl_grpo.items import Item
from tests.made_runs import make_run


@pytest.fixture(scope="module")
def made(checkpoint, tmp_path_factory):
    """A run of each task on one base, found as the command finds them, and the server that judged the edits."""
    folder, base = tmp_path_factory.mktemp("drawn"), checkpoint("qwen2_5_vl")
    judges = {"image_edit": "complex_edit", "text_to_image": "mmmg"}
    kinds = {"image_edit": "qwen_image_edit", "text_to_image": "qwen_image"}
    with JudgeServer(answer) as server, tiny_qwen_image.small_sources(), pytest.MonkeyPatch.context() as own:
        own.setenv("GRPO_HOME", str(folder / "home"))
        for seed, (task, kind) in enumerate(kinds.items()):
            tiny_qwen_image.build(folder / kind, kind, base)
            renderer = {"name": kind, "model": str(folder / kind), "width": 32, "height": 32, "steps": 1}
            judge = {"name": judges[task], "base_url": server.url, "replay": "off", "attempts": 1}
            lora = {"enabled": True, "r": 4}
            make_run(folder, task, base, seed, spread=1.0, task={"name": task}, renderer=renderer, judge=judge, lora=lora)
        found = registry.select(",".join(kinds))
        yield side_by_side.SideBySide(found), found, server


@pytest.fixture
def drawn(monkeypatch):
    """What the renderers are asked for, in order."""
    seen = []
    render = QwenImage.render
    monkeypatch.setattr(QwenImage, "render", lambda self, requests: seen.extend(requests) or render(self, requests))
    return seen


def item(name, prompt, *pictures):
    return Item(name, [{"role": "user", "content": prompt}], [str(picture) for picture in pictures])


def own_states(kind, model, run, record, images):
    sources = tuple(policy_states.source(dataset.fit(image, run.processor, run.config)) for image in images)
    ids = tuple(run.processor.tokenizer(record["answer"])["input_ids"])
    (encoded,) = PolicyEncoder(kind, model, run.processor).encode([Turn(record["prompt"], ids, sources)])
    return encoded.conditioning.states


def test_each_side_is_drawn_from_its_own_states_and_the_edit_is_judged_beside_its_source(made, drawn, checkpoint, tmp_path):
    runs, found, server = made
    red = Image.new("RGB", (64, 48), "red")
    red.save(tmp_path / "red.png")
    already = len(server.asked)
    ((_, (pair,)),) = runs.ask(["image_edit"], [item("1", "Paint it blue.", tmp_path / "red.png")], How())
    run = loading.load(*found[0])
    base = AutoModelForImageTextToText.from_pretrained(checkpoint("qwen2_5_vl"), dtype=torch.float32).eval()
    expected = own_states("qwen_image_edit", base, run, pair.base.record, [red])
    without = own_states("qwen_image_edit", base, run, pair.tuned.record, [red])
    tuned = own_states("qwen_image_edit", PeftModel.from_pretrained(base, str(run.folder)).eval(), run, pair.tuned.record, [red])
    assert not torch.allclose(tuned, without, atol=0.01)
    torch.testing.assert_close(drawn[0].conditioning.states, expected)
    torch.testing.assert_close(drawn[1].conditioning.states, tuned)
    for side in (pair.base, pair.tuned):
        assert side.picture.size == (32, 32)
        assert side.verdict.startswith("score 0.") and "identity" in side.verdict
    assert pair.base.picture.tobytes() != pair.tuned.picture.tobytes()
    assert {len(asked.images) for asked in server.asked[already:]} == {1, 2}


def test_runs_on_one_base_are_drawn_each_with_its_own_adapter(made, tmp_path):
    runs, _, _ = made
    Image.new("RGB", (64, 64), "red").save(tmp_path / "red.png")
    edited, typed = item("1", "Paint it blue.", tmp_path / "red.png"), item("2", "Draw a frog.")
    (_, (edit, _)), (_, (_, drawing)) = runs.ask(["image_edit", "text_to_image"], [edited, typed], How())
    ((backend, _),) = runs._loaded
    model = weakref.ref(backend.model)
    del backend
    runs._load(["image_edit"])
    assert model() is None, "a policy that is picked no more leaves the card, though its renderer stays"
    ((_, (edit_alone,)),) = runs.ask(["image_edit"], [edited], How())
    ((_, (drawing_alone,)),) = runs.ask(["text_to_image"], [typed], How())
    for together, alone in ((edit, edit_alone), (drawing, drawing_alone)):
        assert together.tuned.picture.tobytes() == alone.tuned.picture.tobytes()
        assert together.base.picture.tobytes() == alone.base.picture.tobytes()


def test_a_typed_prompt_without_a_graph_is_drawn_and_has_no_score(made, drawn):
    runs, _, server = made
    already = len(server.asked)
    ((_, pairs),) = runs.ask(["image_edit", "text_to_image"], [item("1", "Draw a frog.")], How())
    edit, drawing = pairs
    assert edit.base.picture is None
    assert edit.base.verdict == "no picture: qwen_image_edit takes one picture, and 'Draw a frog.' has 0"
    for side in (drawing.base, drawing.tuned):
        assert side.picture.size == (32, 32)
        assert side.said.startswith("no score: no knowledge graph comes with this prompt")
    first, second = drawn
    assert first.conditioning != second.conditioning
    assert (first.seed, first.original) == (second.seed, second.original)
    assert len(server.asked) == already, "nobody is asked about a picture that has nothing to be judged by"


def test_a_wrong_question_of_a_file_leaves_the_others_and_their_pictures(made, tmp_path):
    runs, _, _ = made
    for name in ("red", "blue"):
        Image.new("RGB", (64, 64), name).save(tmp_path / f"{name}.png")
    asked = [
        item("1", "Paint it green.", tmp_path / "red.png"),
        item("2", "Paint it green.", tmp_path / "gone.png"),
        item("3", "Paint it green.", tmp_path / "blue.png"),
    ]
    shown = list(runs.ask(["image_edit"], asked, How()))
    assert [one.id for one, _ in shown] == ["1", "2", "3"]
    first, second, third = (pair.tuned for _, (pair,) in shown)
    assert second.picture is None and second.said.startswith("not asked: ")
    assert first.picture.tobytes() != third.picture.tobytes()
    assert [picture.image.getpixel((0, 0)) for picture in shown[2][0].opened] == [(0, 0, 255)]


def test_without_its_judge_a_picture_has_the_reason_in_place_of_a_score_until_the_judge_is_back(made, tmp_path, monkeypatch):
    runs, _, server = made
    Image.new("RGB", (64, 64), "red").save(tmp_path / "red.png")
    asked = [item("1", "Paint it green.", tmp_path / "red.png")]
    with monkeypatch.context() as away:
        away.setattr(server, "models", ("another",))
        ((_, (without,)),) = runs.ask(["image_edit"], asked, How())
    ((_, (judged,)),) = runs.ask(["image_edit"], asked, How())
    assert without.tuned.verdict.endswith("there is no such model; it has another")
    assert without.tuned.picture.tobytes() == judged.tuned.picture.tobytes()
    assert judged.tuned.verdict.startswith("score 0.")
