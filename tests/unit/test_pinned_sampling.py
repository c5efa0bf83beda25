"""Covers that a checkpoint's generation_config changes neither a rollout nor a score: every sampling setting is ours."""

import json
import shutil
from pathlib import Path

import datasets
import pytest
from PIL import Image
from transformers import AutoModelForImageTextToText

from qwen_vl_grpo import answering, assembly, policy, tasks
from qwen_vl_grpo.interfaces import Sample
from qwen_vl_grpo.ledger import Ledger

PUBLISHED = {"do_sample": True, "repetition_penalty": 1.05, "temperature": 1e-6, "top_k": 1, "top_p": 0.001}
"""What Qwen2-VL and Qwen2.5-VL ship between them; below the penalty is made strong enough to be seen."""
MORE = {
    "min_p": 0.9, "typical_p": 0.1, "epsilon_cutoff": 0.5, "eta_cutoff": 0.5, "top_h": 0.1, "no_repeat_ngram_size": 1,
    "bad_words_ids": [[5], [7]], "num_beams": 2, "min_new_tokens": 4, "begin_suppress_tokens": [9], "sequence_bias": [[[11], 50.0]],
    "forced_eos_token_id": 13, "encoder_repetition_penalty": 3.0, "exponential_decay_length_penalty": [1, 2.0], "guidance_scale": 2.0,
}  # fmt: skip
"""Others that a folder could carry."""
SAMPLES = [
    Sample("0", [{"role": "user", "content": "Which colour, which colour?"}], [Image.new("RGB", (64, 64), "red")], ""),
    Sample("1", [{"role": "user", "content": "6 times 7?"}], [], ""),
]


@pytest.fixture
def folders(checkpoint, tmp_path):
    """The same weights twice: without sampling settings, and with a generation_config that would change every answer."""

    def make(changes):
        plain, opinionated = tmp_path / "plain", tmp_path / "opinionated"
        for folder in (plain, opinionated):
            shutil.copytree(checkpoint("qwen2_5_vl"), folder)
        kept = json.loads((plain / "generation_config.json").read_text()) if (plain / "generation_config.json").is_file() else {}
        ends = {key: kept[key] for key in ("eos_token_id", "pad_token_id") if key in kept} or {"eos_token_id": 2, "pad_token_id": 0}
        (plain / "generation_config.json").write_text(json.dumps(ends))
        (opinionated / "generation_config.json").write_text(json.dumps(ends | changes))
        return plain, opinionated

    return make


def answers(folder: Path, config_of, temperature):
    config = config_of(model_name=str(folder))
    model, processor = policy.load_model(config), policy.load_processor(config)
    return answering.with_transformers(model, processor, 12, 8, seed=0, show=False)(SAMPLES, 2 if temperature else 1, temperature)


def rolled_out(folder: Path, config_of, tmp_path):
    """Completion ids of the first step of a run."""
    seen = []

    def note(completions, completion_ids, **_):
        seen.extend(completion_ids)
        return [0.0] * len(completions)

    message = {"role": datasets.Value("string"), "content": datasets.Value("string")}
    features = datasets.Features({"prompt": [message], "images": datasets.List(datasets.Image())})
    rows = datasets.Dataset.from_list([{"prompt": sample.prompt, "images": sample.images} for sample in SAMPLES], features=features)
    config = config_of(
        model_name=str(folder), batch_size=8, gradient_accumulation_steps=1, num_generations=4, max_completion_length=12, max_steps=1,
        lora={"enabled": False}, tracking={"report_to": "none"},
    )  # fmt: skip
    ledger = Ledger(tmp_path, 1)
    try:
        prepared = assembly.Prepared(tasks.build(config.task), [note], [1.0], policy.load_processor(config), rows, [], None, 0)
        assembly.build_trainer(config, prepared, policy.load_model(config), tmp_path, ledger).train()
    finally:
        ledger.close()
    return seen


CASES = [{"do_sample": True} | {key: value} for key, value in MORE.items()]
CASES.append(PUBLISHED | {"repetition_penalty": 5.0})


@pytest.mark.parametrize("changes", CASES, ids=lambda changes: list(changes)[1])
def test_a_score_is_the_same_whatever_the_checkpoint_would_sample_with(folders, config_of, changes):
    plain, opinionated = folders(changes)
    for temperature in (0.0, 1.0):
        assert answers(opinionated, config_of, temperature) == answers(plain, config_of, temperature)


@pytest.mark.parametrize("changes", [CASES[-1], {"do_sample": True} | MORE], ids=["published", "all others"])
def test_a_rollout_is_the_same_whatever_the_checkpoint_would_sample_with(folders, config_of, tmp_path, changes):
    plain, opinionated = folders(changes)
    assert rolled_out(opinionated, config_of, tmp_path) == rolled_out(plain, config_of, tmp_path)


def test_every_id_that_ends_an_answer_is_kept_and_the_tokenizers_is_added(folders, config_of):
    _, folder = folders({"eos_token_id": [7, 9]})
    config = config_of(model_name=str(folder))
    model, processor = policy.load_model(config), policy.load_processor(config)
    assert model.generation_config.eos_token_id == [7, 9]
    asked = []
    model.generate = lambda **given: asked.append(given["eos_token_id"]) or given["input_ids"]
    answering.with_transformers(model, processor, 4, 8, seed=0, show=False)(SAMPLES, 1, 0.0)
    assert asked == [[processor.tokenizer.eos_token_id, 7, 9]]


def test_the_settings_above_do_change_what_transformers_alone_answers(folders, config_of):
    plain, opinionated = folders(PUBLISHED | {"repetition_penalty": 5.0})
    config = config_of(model_name=str(plain))
    encoded = policy.encode(policy.load_processor(config), SAMPLES)
    own = [AutoModelForImageTextToText.from_pretrained(folder).generate(**encoded, max_new_tokens=12) for folder in (plain, opinionated)]
    assert own[0].tolist() != own[1].tolist()


def test_the_likeliest_tokens_alone_are_sampled_where_that_is_asked_for(folders, config_of):
    plain, _ = folders({})
    config = config_of(model_name=str(plain))
    model, processor = policy.load_model(config), policy.load_processor(config)

    def answer(temperature, **asked):
        return answering.with_transformers(model, processor, 12, 8, seed=0, show=False, **asked)(SAMPLES, 1, temperature)

    assert answer(1.0, top_p=1e-6) == answer(0.0) != answer(1.0)
