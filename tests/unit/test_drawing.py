"""Covers answers that are drawn as they come: whose states a picture is of, what its record and its file hold, and what has no picture."""

import hashlib

import pytest
from PIL import Image
from transformers import AutoModelForImageTextToText

from demo import tiny_pictures, tiny_qwen_image
from qwen_vl_grpo import answering, dataset, journal, loading, policy_states, registry
from qwen_vl_grpo.drawing import Drawing, png
from qwen_vl_grpo.errors import DataError, RenderError
from qwen_vl_grpo.images.embeddings import PolicyEncoder, Turn
from qwen_vl_grpo.items import Item
from qwen_vl_grpo.rewards.rendered import seed_of
from qwen_vl_grpo.transformers_backend import TransformersBackend
from tests.made_runs import make_run

WIDE = {"width": 352, "height": 32, "steps": 1}
"""Wider than the copies that are kept of a run's own pictures."""


@pytest.fixture(scope="module")
def made(checkpoint, tmp_path_factory):
    """A run of each drawn task, their adapters on one base, by the id of its task."""
    folder, base = tmp_path_factory.mktemp("runs"), checkpoint("qwen2_5_vl")
    tiny_pictures.sd3(folder / "sd3")
    for kind in ("qwen_image", "qwen_image_edit"):
        tiny_qwen_image.build(folder / kind, kind, base)
    renderers = {
        "text_to_image": {"name": "qwen_image", "model": str(folder / "qwen_image")} | WIDE,
        "image_edit": {"name": "qwen_image_edit", "model": str(folder / "qwen_image_edit"), "width": 32, "height": 32, "steps": 1},
        "prompt_enhancement": {"model": str(folder / "sd3"), "t5": False, "batch_size": 2} | WIDE,
    }
    with pytest.MonkeyPatch.context() as own, tiny_qwen_image.small_sources():
        own.setenv("GRPO_HOME", str(folder / "home"))
        for seed, (task, renderer) in enumerate(renderers.items()):
            lora = {"enabled": True, "r": 4}
            make_run(folder, task, base, seed, spread=1.0, task={"name": task}, renderer=renderer, lora=lora)
        yield {card.run_id: loading.load(card, run_dir) for card, run_dir in registry.select(",".join(renderers))}


@pytest.fixture
def drawn(made, tmp_path):
    """Ask runs by their ids, with everything drawn into a folder."""

    def ask(names, *items):
        runs = [made[name] for name in names]
        how = answering.How(backend="transformers", batch_size=4, draw=Drawing(runs, tmp_path / "drawn"))
        return {(record["run_id"], record["item"]): record for record in answering.ask(runs, items, how)}

    return ask


@pytest.fixture
def red(tmp_path):
    Image.new("RGB", (64, 48), "red").save(tmp_path / "red.png")
    return str(tmp_path / "red.png")


def item(name, prompt, *pictures):
    return Item(name, [{"role": "user", "content": prompt}], list(pictures))


def content(record):
    return hashlib.sha256(open(record["picture"]["path"], "rb").read()).hexdigest()


def test_a_picture_is_of_the_states_of_the_run_that_answered(made, drawn, red, checkpoint):
    record = drawn(["image_edit"], item("1", "Paint it blue.", red))["image_edit", "1"]
    run = made["image_edit"]
    sources = (policy_states.source(dataset.fit(Image.open(red).convert("RGB"), run.processor, run.config)),)
    turn = Turn(record["prompt"], tuple(run.processor.tokenizer(record["answer"])["input_ids"]), sources)
    tuned = TransformersBackend([run], 1).model
    base = AutoModelForImageTextToText.from_pretrained(checkpoint("qwen2_5_vl"), dtype=tuned.dtype).eval()
    (own,), (without,) = (PolicyEncoder("qwen_image_edit", model, run.processor).encode([turn]) for model in (tuned.eval(), base))
    assert record["picture"]["conditioning_sha256"] == own.conditioning.sha256 != without.conditioning.sha256
    assert record["picture"]["seed"] == seed_of(run.config.seed, "Paint it blue.")


def test_runs_that_are_asked_together_answer_and_draw_what_they_do_alone(drawn, red):
    prompts = ["Paint it blue.", "Put a cat there.", "Take the wall away."]
    items = [item(f"{place}-{len(given)}", prompt, *given) for given in ((red,), ()) for place, prompt in enumerate(prompts)]
    together = drawn(["image_edit", "text_to_image"], *items)
    assert sum("sha256" in record["picture"] for record in together.values()) == 6, "one edits pictures, and the other takes none"
    for name in ("image_edit", "text_to_image"):
        for key, alone in drawn([name], *items).items():
            assert alone["completion"] == together[key]["completion"]
            assert alone["picture"].get("sha256") == together[key]["picture"].get("sha256")


def test_a_file_holds_the_whole_picture_and_nothing_else(drawn):
    records = drawn(["prompt_enhancement"], *(item(f"a/{place}", prompt) for place, prompt in enumerate(["a cat", "a cat", "a dog"])))
    told = [record["picture"] for record in records.values()]
    for record, one in zip(records.values(), told, strict=True):
        with Image.open(one["path"]) as picture:
            assert (picture.size, picture.format, picture.info) == ((352, 32), "PNG", {})
        assert one["sha256"] == content(record) and one["path"].endswith(f"-{one['sha256'][:16]}.png")
        assert (one["width"], one["height"], one["conditioning_sha256"], one["error"]) == (352, 32, None, None)
    first, again, other = told
    assert first["sha256"] == again["sha256"] != other["sha256"], "noise and words are those of the prompt"


def test_what_a_renderer_notes_in_a_picture_does_not_leave_with_it():
    picture = Image.new("RGB", (8, 8), "red")
    picture.info |= {"prompt": "sk-secret", "icc_profile": b"/home/someone"}
    assert b"sk-secret" not in png(picture) and b"iCCP" not in png(picture)


def test_an_answer_that_cannot_be_drawn_says_why_and_is_asked_again_on_demand(drawn, red, tmp_path):
    records = drawn(["image_edit"], item("1", "Paint it blue."), item("2", "Paint it blue.", red), item("3", "Paint it blue.", "gone.png"))
    without, with_picture, gone = (records["image_edit", name] for name in "123")
    assert without["picture"] == {"error": "qwen_image_edit takes one picture, and 'Paint it blue.' has 0"}
    assert with_picture["picture"]["error"] is None
    assert "picture" not in gone and "gone.png" in gone["error"]
    with journal.Journal(tmp_path / "kept.jsonl") as kept:
        for record in records.values():
            kept.add(record)
        assert kept.answered(retry_errors=False) == {journal.key(record) for record in records.values()}
        assert kept.answered(retry_errors=True) == {journal.key(with_picture)}


def test_where_pictures_go_is_part_of_what_was_asked(made, tmp_path):
    run, asked = made["prompt_enhancement"], item("1", "a cat")
    folders = [None, tmp_path / "here", tmp_path / "there"]
    hows = [answering.How(draw=folder and Drawing([run], folder)) for folder in folders]
    assert len({answering.key_of(run, asked, how) for how in hows}) == 3


def test_a_folder_that_cannot_be_made_and_a_renderer_that_is_not_there_are_said_before_anything_is_asked(made, tmp_path):
    run = made["prompt_enhancement"]
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"--picture_dir .*file/below: cannot be made \(Not a directory\); name another folder"):
        Drawing([run], tmp_path / "file/below")
    elsewhere = run.config.model_copy(update={"renderer": run.config.renderer.model_copy(update={"model": str(tmp_path / "gone")})})
    with pytest.raises(RenderError, match="gone"):
        Drawing([loading.RunPolicy(run.card, run.run_dir, elsewhere)], tmp_path / "drawn")
