"""Covers answers from one real engine with several adapters in it: the same as transformers gives, and nothing ignored in silence."""

from contextlib import closing

import numpy
import pytest
from PIL import Image

from qwen_vl_grpo import answering, exporting, fetching, loading, processors, registry, vllm_backend
from qwen_vl_grpo.errors import EngineError, RegistryError
from qwen_vl_grpo.interfaces import Clip, Sample
from qwen_vl_grpo.items import Item
from qwen_vl_grpo.loading import Question
from qwen_vl_grpo.transformers_backend import TransformersBackend
from tests.made_runs import change_adapter, make_run

LORA = {"enabled": True, "r": 4}
TOWER = LORA | {"r": 12, "vision": True}


@pytest.fixture
def made(checkpoint, tmp_path, monkeypatch):
    """Two adapters and a full fine-tune of one family, in a registry of their own."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))

    def make(family="qwen2_5_vl", **changes):
        for seed, (run_id, lora) in enumerate({"text": LORA, "tower": TOWER, "whole": {"enabled": False}}.items()):
            make_run(tmp_path, run_id, checkpoint(family), seed, lora=lora, vllm_max_model_length=512, **changes)
        return tmp_path

    return make


def load(asked):
    return [loading.load(card, run_dir) for card, run_dir in registry.select(asked)]


def question(name, *sizes):
    pictures = [fetching.Picture(Image.linear_gradient("L").resize(size).convert("RGB"), name) for size in sizes]
    return Item(name, [{"role": "user", "content": f"Which digit is {name}?"}], [name] * len(sizes), opened=pictures)


ITEMS = [
    question("one", (112, 112)),
    question("none"),
    question("two", (112, 84), (100, 150)),
    *(question(str(i), (60, 60 + i)) for i in range(5)),
]


def told(records):
    return {(record["run_id"], record["item"]): [record[key] for key in ALIKE] for record in records}


ALIKE = ("sha", "asked", "completion", "answer", "well_formed", "finish_reason", "prompt_tokens", "completion_tokens", "error")


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_all_runs_in_one_engine_answer_as_they_do_under_transformers(made, family, monkeypatch):
    made(family, engine={"max_num_seqs": 4})
    monkeypatch.setattr(vllm_backend, "QUEUED", 1)
    engine = told(answering.ask(load("text,tower"), ITEMS, answering.How(backend="vllm")))
    assert len(engine) == 2 * len(ITEMS)
    assert engine == told(answering.ask(load("text,tower"), ITEMS, answering.How(backend="transformers")))
    assert len({run.base_key for run in load("text,tower")}) == 1
    assert engine["text", "one"] != engine["tower", "one"]


def watching(run, *lengths, pictures=0):
    """A question about clips of so many frames of noise, and about pictures behind them."""
    side = 2 * processors.merged_patch(run.processor)
    noise = numpy.random.default_rng(len(lengths)).integers(0, 255, (max(lengths), side, 2 * side, 3), dtype=numpy.uint8)
    clips = [Clip(noise[:n], tuple(range(0, 3 * n, 3)), 8.0, 3 * n, str(n)) for n in lengths]
    content = [{"type": "video"}] * len(clips) + [{"type": "image"}] * pictures + [{"type": "text", "text": "What happens?"}]
    images = [Image.linear_gradient("L").resize((2 * side, side)).convert("RGB")] * pictures
    return Question(run, Sample(str(lengths), [{"role": "user", "content": content}], images, "", videos=clips), 16, 0.0)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_clips_are_answered_as_under_transformers(made, family):
    made(family)
    runs = load("text,tower")
    asked = [watching(run, *lengths) for run in runs for lengths in [(6,), (5, 1), (1,)]]
    engine = completions(vllm_backend.VllmBackend(runs, 0, 2), asked)
    assert engine == completions(TransformersBackend(runs, 8), asked)
    assert len({tuple(completion.token_ids) for completion in engine}) > 1


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_clips_beside_pictures_are_answered_as_under_transformers(made, family):
    made(family)
    runs = load("text")
    asked = [watching(runs[0], *lengths, pictures=len(lengths) - 1) for lengths in [(6,), (5, 1), (4, 2)]]
    assert completions(vllm_backend.VllmBackend(runs, 1, 2), asked) == completions(TransformersBackend(runs, 8), asked)


def test_a_tower_answers_about_pictures_and_clips_from_a_merged_copy(made, tmp_path, caplog):
    made()
    pytest.importorskip("av", reason="this environment is older than requirements.txt; remove .venv-vllm and run make test-vllm")
    from demo import clips

    clips.write(tmp_path / "long.mp4", clips.counting(20), fps=8.0)
    clip = Item("clip", [{"role": "user", "content": "What happens?"}], folder=tmp_path, videos=["long.mp4"])
    caplog.set_level("INFO")
    engine = told(answering.ask(load("text,tower"), [ITEMS[0], clip], answering.How(backend="vllm")))
    assert "tower: vLLM leaves out what its adapter learned in the vision tower; answered from a merged copy" in caplog.messages
    assert engine == told(answering.ask(load("text,tower"), [ITEMS[0], clip], answering.How(backend="transformers")))
    assert not any(record[-1] for record in engine.values())


def completions(started, asked):
    with closing(started) as backend:
        found = {id(question): completion for question, completion in backend.answer(asked)}
    return [found[id(question)] for question in asked]


def test_an_answer_is_told_once_and_its_prompt_written_once(made, monkeypatch):
    made()
    (run,) = load("text")
    written, told_by_engine = [], []
    monkeypatch.setattr(loading, "prompt_ids", lambda *given, plain=loading.prompt_ids: written.append(given) or plain(*given))
    with closing(vllm_backend.VllmBackend([run], 2)) as backend:
        engine = backend.llm.llm_engine
        monkeypatch.setattr(engine, "step", lambda plain=engine.step: told_by_engine.extend(made := plain()) or made)
        answers = list(answering.answers_of(backend, [run], ITEMS, answering.How()))
    assert (len(answers), len(written), len(told_by_engine)) == (len(ITEMS),) * 3
    assert max(record["completion_tokens"] for _, record, _ in answers) > 1


def test_a_tower_is_asked_for_pictures_or_clips_and_never_both(made):
    made()
    on = lambda *most: vllm_backend.engine_options(load("text,tower"), *most).get("enable_tower_connector_lora", False)  # noqa: E731
    assert [on(1, 0), on(0, 1), on(1, 1)] == [True, True, False]


def test_a_full_fine_tune_answers_as_under_transformers(made):
    made()
    engine = told(answering.ask(load("whole"), ITEMS, answering.How(backend="vllm")))
    assert engine == told(answering.ask(load("whole"), ITEMS, answering.How(backend="transformers")))


def test_the_largest_rank_decides_the_room_and_a_tower_is_asked_for_only_if_one_learned(made):
    made()
    text, tower = load("text,tower")
    assert vllm_backend.lora_options([text], on_cpu=False) == {"enable_lora": True, "max_lora_rank": 8, "max_loras": 1, "max_cpu_loras": 2}
    both = vllm_backend.lora_options([text, tower], on_cpu=True)
    assert (both["max_lora_rank"], both["max_loras"], both["enable_tower_connector_lora"]) == (16, 3, True)


def test_a_rank_that_vllm_does_not_hold_is_refused(made, checkpoint):
    make_run(made(), "wide", checkpoint("qwen2_5_vl"), 5, lora=LORA | {"r": 600})
    with pytest.raises(EngineError, match="wide has 600; ask with --backend transformers"):
        next(answering.ask(load("wide"), ITEMS, answering.How(backend="vllm")))


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_a_tower_that_vllm_leaves_out_answers_from_a_merged_copy(made, family, without_tower_lora, caplog):
    made(family)
    caplog.set_level("INFO")
    loads = []
    engine = told(answering.ask(load("text,tower"), ITEMS, answering.How(backend="vllm"), loaded=loads.append))
    assert "tower: vLLM leaves out what its adapter learned in the vision tower; answered from a merged copy" in caplog.messages
    assert [message.split(":")[0] for message in caplog.messages if "moves a canary's" in message] == ["text"]
    assert engine == told(answering.ask(load("text,tower"), ITEMS, answering.How(backend="transformers")))
    assert list((registry.home() / "merged").iterdir()) == []
    assert len(loads) == 3


def test_a_tower_that_can_be_neither_asked_nor_merged_stops_before_its_first_answer(made, without_tower_lora, monkeypatch):
    made()
    monkeypatch.setattr(exporting, "BOUNDS", {"float32": 0.0})
    with pytest.raises(RegistryError, match=r"run_id tower: no merged copy could be made \(.*\); use --backend transformers"):
        next(answering.ask(load("tower"), ITEMS, answering.How(backend="vllm")))


def test_an_adapter_whose_names_vllm_does_not_know_stops_before_the_first_answer(made, monkeypatch):
    change_adapter(made(), "text", lambda tensors: {name.replace("language_model", "text_model"): value for name, value in tensors.items()})
    monkeypatch.setattr(loading, "check_adapter", lambda run: None)
    with pytest.raises((RegistryError, EngineError)):
        next(answering.ask(load("text"), ITEMS, answering.How(backend="vllm")))
