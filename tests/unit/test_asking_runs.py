"""Covers putting questions to runs with real tiny models: many runs at once, adapters that must be in use, items at fault."""

import base64
import io
import json

import pytest
from PIL import Image

from qwen_vl_grpo import answering, dataset, fetching, loading, opening, registry, vllm_backend
from qwen_vl_grpo.errors import ConfigError, HardwareError, RegistryError
from qwen_vl_grpo.items import Item
from qwen_vl_grpo.transformers_backend import TransformersBackend
from tests.made_runs import change_adapter, make_run

HOW = answering.How(backend="transformers", batch_size=4)
LORA = {"enabled": True, "r": 4}


@pytest.fixture
def made(checkpoint, tmp_path):
    """Three runs: two adapters on one base, one of them in the vision tower too, and a full fine-tune."""
    make_run(tmp_path, "v1.0-text", checkpoint("qwen2_5_vl"), 1, lora=LORA)
    make_run(tmp_path, "v1-tower", checkpoint("qwen2_5_vl"), 2, lora=LORA | {"r": 8, "vision": True})
    make_run(tmp_path, "whole", checkpoint("qwen2_5_vl"), 3)
    return tmp_path


def load(asked):
    return [loading.load(card, run_dir) for card, run_dir in registry.select(asked)]


def question(name, *colours, **more):
    file = {}
    for colour in colours:
        file[colour] = io.BytesIO()
        Image.new("RGB", (60, 90), colour).save(file[colour], "PNG")
    urls = ["data:image/png;base64," + base64.b64encode(content.getvalue()).decode() for content in file.values()]
    return Item(name, [{"role": "user", "content": "Which digit is this?"}], urls, **more)


ITEMS = [question("red", "red"), question("text"), question("two", "red", "blue"), question("blue", "blue")]


def test_a_card_of_another_version_is_refused_in_one_sentence(checkpoint, tmp_path):
    make_run(tmp_path, "v9", checkpoint("qwen2_5_vl"), 1)
    card, run_dir = registry.resolve("v9")
    newer = card.model_copy(update={"config": card.config | {"of_tomorrow": 1}})
    with pytest.raises(ConfigError, match=r"^run_id v9: its card's config is not of this version: unknown key 'of_tomorrow'"):
        loading.load(newer, run_dir)


def told(records):
    return {(record["run_id"], record["item"]): record["completion"] for record in records}


def test_runs_are_found_by_id_list_pattern_and_all(made):
    assert [run.run_id for run in load("whole, v1-tower")] == ["whole", "v1-tower"]
    assert [run.run_id for run in load("v1*")] == ["v1.0-text", "v1-tower"]
    assert [run.run_id for run in load("all")] == ["v1.0-text", "v1-tower", "whole"]
    registry.write(registry.read(made / "whole").model_copy(update={"state": "failed"}), made / "whole")
    assert [run.run_id for run in load("all")] == ["v1.0-text", "v1-tower"]
    for asked, said in {"v2*": "no finished run; there are 2", ",": "names no run", "v1-towr": "did you mean"}.items():
        with pytest.raises(RegistryError, match=said):
            load(asked)


def test_every_run_answers_beside_the_others_what_it_answers_alone(made):
    runs = load("all")
    assert [[run.run_id for run in group] for group in loading.groups(runs)] == [["v1.0-text", "v1-tower"], ["whole"]]
    together = told(answering.ask(runs, ITEMS, HOW))
    assert len(together) == 12
    assert len({together[run.run_id, "red"] for run in runs}) == 3
    alone = {}
    for run in runs:
        alone |= told(answering.ask([run], ITEMS, answering.How(backend="transformers", batch_size=1)))
    assert together == alone


def test_a_record_says_who_was_asked_what_and_how_the_answer_came(made):
    (run,) = load("v1-tower")
    record = next(answering.ask([run], [question("red", "red", max_new_tokens=3)], answering.How("Be brief.", backend="transformers")))
    assert (record["run_id"], record["sha"], record["item"], record["backend"]) == ("v1-tower", run.sha, "red", "transformers")
    assert (record["max_new_tokens"], record["finish_reason"], record["completion_tokens"], record["error"]) == (3, "length", 3, None)
    assert record["prompt_tokens"] == len(loading.prompt_ids(run.processor, _sample(run, "Be brief.")))
    assert len(json.dumps(record)) < 1500


def test_pictures_of_the_items_that_are_shown_later_are_kept_beside_the_answers(made, own_home):
    (run,) = load("whole")
    how = answering.How(backend="transformers", shown={"two", "text"})
    records = {record["item"]: record for record in answering.ask([run], ITEMS, how)}
    assert ["pictures" in records[item] for item in ("red", "text", "two")] == [False, True, True]
    assert (records["text"]["pictures"], len(set(records["two"]["pictures"]))) == ([], 2)
    assert all((own_home / "inference" / name).is_file() for name in records["two"]["pictures"])


def test_few_questions_make_a_small_engine_unless_the_config_says_its_size(checkpoint, made, monkeypatch):
    make_run(made, "v1", checkpoint("qwen2_5_vl"), 4)
    make_run(made, "sized", checkpoint("qwen2_5_vl"), 4, engine={"max_num_seqs": 8})
    seats = lambda run_id, *questions: vllm_backend.engine_options(load(run_id), 1, 0, *questions).get("max_num_seqs")  # noqa: E731
    assert [seats("v1"), seats("v1", 3), seats("v1", 256), seats("sized", 3)] == [None, 3, None, 8]
    monkeypatch.setattr(answering, "VllmBackend", lambda runs, images, clips, questions: seats("v1", questions))
    assert answering._start("vllm", load("v1"), ITEMS, HOW) == len(ITEMS)


def _asked(run, opened, how):
    return answering._question(run, opened, how, 4096, opening.sized_of(opened, [run])[run])


def _sample(run, system):
    item = question("red", "red")
    return _asked(run, opening.opened_of(item, False), answering.How(system)).sample


def test_a_picture_is_sized_once_for_all_runs_that_see_it_in_one_size(made, checkpoint, monkeypatch):
    make_run(made, "large", checkpoint("qwen2_5_vl"), 4, data={"min_pixels": 200_704})
    runs = load("v1*,large")
    made_for, fit = [], dataset.fit
    monkeypatch.setattr(dataset, "fit", lambda picture, *given: made_for.append(given) or fit(picture, *given))
    sized = opening.sized_of(opening.opened_of(question("red", "red"), False), runs)
    assert len(made_for) == 2
    assert [run.run_id for run in runs] == ["v1.0-text", "v1-tower", "large"]
    assert sized[runs[0]] is sized[runs[1]]
    assert [sized[run][0].size for run in runs] == [(56, 84), (56, 84), (392, 560)]


def test_what_is_answered_is_not_asked_again_and_another_question_is(made):
    runs = load("v1*")
    first = list(answering.ask(runs, ITEMS, HOW))
    answered = {answering.key_of(run, item, HOW) for run in runs for item in ITEMS} - {answering.key_of(runs[0], ITEMS[2], HOW)}
    again = list(answering.ask(runs, ITEMS, HOW, answered))
    assert [(record["run_id"], record["item"]) for record in again] == [("v1.0-text", "two")]
    assert told(again).items() <= told(first).items()
    assert list(answering.ask(runs, ITEMS, HOW, answered | {answering.key_of(runs[0], ITEMS[2], HOW)})) == []
    hotter = answering.How(backend="transformers", temperature=1.0)
    assert not {answering.key_of(run, item, hotter) for run in runs for item in ITEMS} & answered


def test_an_item_at_fault_is_told_and_the_others_are_answered(made):
    trap = Item("trap", [{"role": "user", "content": "What is <|image_pad|>?"}])
    long = question("long", "red", max_new_tokens=5000)
    sliver = question("sliver")
    file = io.BytesIO()
    Image.new("RGB", (1000, 2)).save(file, "PNG")
    sliver.images.append("data:image/png;base64," + base64.b64encode(file.getvalue()).decode())
    gone = Item("gone", [{"role": "user", "content": "?"}], ["gone.png"])
    records = list(answering.ask(load("v1*"), [trap, ITEMS[0], long, gone, sliver, ITEMS[1], Item("line 7", error="is broken")], HOW))
    assert len(records) == 14
    errors = {record["item"]: record["error"] for record in records if record["error"]}
    assert errors.keys() == {"trap", "long", "gone", "sliver", "line 7"}
    for item, said in {"trap": "stand for pictures", "long": "lower --max_new_tokens", "gone": "no such file", "sliver": "crop it"}.items():
        assert said in errors[item]
    assert len(told(record for record in records if not record["error"])) == 4


def test_a_chat_with_its_own_system_prompt_and_pictures_in_their_places_is_asked_as_it_is(made):
    (run,) = load("whole")
    parts = [{"type": "text", "text": "Which"}, {"type": "image"}, {"type": "text", "text": "digit?"}]
    chat = [{"role": "system", "content": [{"type": "text", "text": "Own"}]}, {"role": "user", "content": parts}]
    asked = _asked(run, Item("1", chat, opened=[fetching.Picture(Image.new("RGB", (56, 56)), "")]), HOW)
    text = run.processor.decode(loading.prompt_ids(run.processor, asked.sample))
    assert text.startswith("<|im_start|>system\nOwn<|im_end|>\n<|im_start|>user\nWhich<|vision_start|><|image_pad|>")
    assert "<|vision_end|>digit?" in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: {name.replace("language_model.layers", "layers"): tensor for name, tensor in tensors.items()}, "has no place for"),
        (lambda tensors: {name: tensor[:, :-1] if "lora_A" in name else tensor for name, tensor in tensors.items()}, "for another model"),
        (lambda tensors: {name: tensor * ("lora_A" in name) for name, tensor in tensors.items()}, "all zeros"),
    ],
    ids=["renamed", "another size", "zero"],
)
def test_an_adapter_that_would_be_ignored_does_not_answer(made, change, said):
    change_adapter(made, "v1-tower", lambda tensors: {name: tensor.contiguous() for name, tensor in change(tensors).items()})
    with pytest.raises(RegistryError, match=f"run_id v1-tower: .*{said}"):
        load("v1-tower")


@pytest.mark.parametrize("run_id", ["v1-tower", "v1.0-text"])
def test_an_adapter_for_another_family_does_not_answer_even_if_every_layer_fits(made, checkpoint, run_id):
    card = registry.read(made / run_id)
    registry.write(card.model_copy(update={"config": card.config | {"model_name": checkpoint("qwen3_vl")}}), made / run_id)
    with pytest.raises(RegistryError, match="is for another model"):
        load(run_id)


def test_an_adapter_for_another_base_of_its_family_does_not_answer(made, monkeypatch):
    (run,) = load("v1-tower")
    run.adapter_config["base_model_name_or_path"] = "Qwen/Qwen2.5-VL-3B-Instruct"
    loading._check_base(run, "qwen2_5_vl")  # its base is a folder, which may be that model
    monkeypatch.setattr(loading.RunPolicy, "base", "Qwen/Qwen2.5-VL-7B-Instruct")
    with pytest.raises(RegistryError, match=r"was trained on Qwen/Qwen2.5-VL-3B-Instruct and its card names Qwen/Qwen2.5-VL-7B-Instruct"):
        loading._check_base(run, "qwen2_5_vl")


def test_an_adapter_that_is_loaded_and_not_in_use_is_noticed_before_the_first_answer(made, monkeypatch):
    published = TransformersBackend.__init__

    def without_effect(self, *arguments):
        published(self, *arguments)
        for module in self.model.modules():
            if isinstance(getattr(module, "scaling", None), dict):
                module.scaling = dict.fromkeys(module.scaling, 0.0)

    monkeypatch.setattr(TransformersBackend, "__init__", without_effect)
    with pytest.raises(RegistryError, match="its adapter changes no probability of its base; nothing was asked"):
        next(answering.ask(load("v1-tower"), ITEMS, HOW))


def test_vllm_is_refused_where_it_is_not(monkeypatch):
    monkeypatch.setattr(answering.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HardwareError, match="--backend vllm"):
        answering.choose_backend("vllm")
    assert answering.choose_backend("auto") == "transformers"
