"""Covers the page of a run: its numbers, the ways to load it, its licence, and text that must stay text."""

import json
from pathlib import Path

import pytest
import yaml

from qwen_vl_grpo import licences, model_card
from qwen_vl_grpo.interfaces import RunCard

REAL = Path(__file__).resolve().parents[2] / "docs/gpu_digits/run.json"


def page(**changes) -> str:
    card = RunCard.model_validate(json.loads(REAL.read_text(encoding="utf-8"))).model_copy(update=changes)
    return model_card.render(card, "someone/runs", f"run/{card.run_id}")


def metadata(text: str) -> dict:
    return yaml.safe_load(text.split("---\n")[1])


def test_the_scores_of_a_real_run_stand_with_n_and_interval():
    text = page()
    assert "| greedy | before | 0.000 | 0.000 to 0.011 | 0.000 | 360 | 360 |" in text
    assert "| greedy | after | 0.969 | 0.946 to 0.983 | 1.000 | 360 | 360 |" in text
    assert "| greedy | after, adapter off | 0.000 |" in text
    assert "| greedy, shown a white picture | after | 0.097 | 0.071 to 0.132 | 1.000 | 360 | 360 |" in text
    assert "| greedy, shown a blank clip | after | 0.097 |" in page(task="video_actions")
    assert "| greedy, shown a blank clip | after | 0.097 |" in page(preprocessing={"clips": True})


def test_a_run_whose_words_tell_nothing_right_shows_the_means_of_its_rewards():
    drawn = {"format": 1.0, "n": 16, "rows": 8, "rewards": {"rendered_reward": 0.4567, "unjudged": None}}
    text = page(metrics={"before": {"greedy": drawn}, "after": {"greedy": drawn}})
    assert "| greedy | after | `rendered_reward` | 0.457 | 16 | 8 |" in text
    assert "unjudged" not in text and "was not scored" not in text


def test_an_adapter_is_loaded_on_its_base_and_a_full_run_alone():
    adapter = page()
    assert 'from_pretrained(f"{folder}/warmup", dtype="auto")' in adapter
    assert 'PeftModel.from_pretrained(base, f"{folder}/checkpoint-120")' in adapter
    assert '--lora-modules gpu-digits="$FOLDER/checkpoint-120"' in adapter
    full = page(checkpoint_files={"checkpoint-120/model.safetensors": "0" * 64})
    assert "Peft" not in full
    assert metadata(full)["library_name"] == "transformers"
    assert "A full fine-tune of" in full
    assert 'vllm serve "$FOLDER/checkpoint-120" --served-model-name gpu-digits' in full


def test_an_adapter_on_a_base_from_the_hub_names_it_with_its_revision():
    files = {"checkpoint-120/adapter_config.json": "0" * 64}
    text = page(checkpoint_files=files, base_model="Qwen/Qwen2.5-VL-7B-Instruct", base_revision="abc")
    assert "from_pretrained('Qwen/Qwen2.5-VL-7B-Instruct', revision='abc', dtype=\"auto\")" in text
    assert "vllm serve Qwen/Qwen2.5-VL-7B-Instruct --enable-lora" in text
    assert metadata(text)["base_model"] == "Qwen/Qwen2.5-VL-7B-Instruct"


@pytest.mark.parametrize(("r", "rank"), [(8, 8), (9, 16), (16, 16), (100, 128)])
def test_vllm_gets_a_rank_that_it_takes(r, rank):
    assert f"--max-lora-rank {rank} " in page(config={"lora": {"r": r}})


@pytest.mark.parametrize(("vision", "flag"), [(True, True), (False, False)])
def test_an_adapter_in_the_tower_asks_vllm_for_the_tower(vision, flag):
    assert ("--enable-tower-connector-lora" in page(config={"lora": {"r": 8, "vision": vision}})) is flag


@pytest.mark.parametrize(
    ("base", "spdx", "words"),
    [
        ("Qwen/Qwen2.5-VL-3B-Instruct", "other", "**Not for commercial use**"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "apache-2.0", "Commercial use is allowed."),
        ("Qwen/Qwen2.5-VL-72B-Instruct", "other", "100 million monthly users"),
        ("Qwen/Qwen3-VL-8B-Instruct", "apache-2.0", "Apache 2.0"),
    ],
)
def test_the_licence_of_a_known_base_is_said(base, spdx, words):
    text = page(base_model=base)
    assert metadata(text)["license"] == spdx
    assert words in text.split("## Licence")[1]


def test_a_base_that_nobody_knows_gets_no_licence():
    text = page(base_model="someone/else")
    assert "license" not in metadata(text)
    assert "is not known to qwen-vl-grpo" in text


def test_a_card_states_the_licences_in_words():
    assert licences.of_run("Qwen/Qwen2.5-VL-3B-Instruct", "AI4Math/MathVista") == {
        "base": "qwen-research. Not for commercial use (Qwen Research License Agreement).",
        "data": "CC BY-SA 4.0. Its pictures have licences of their own.",
    }
    assert licences.of_run("/models/mine", "rows.jsonl")["base"] == "not known to qwen-vl-grpo; look at its page"


def test_data_that_is_not_for_commercial_use_is_named():
    assert licences.of_dataset("UCSC-VLAA/Complex-Edit").allows == "**Not for commercial use.**"
    assert "**Not for commercial use.**" in page(dataset={"name": "UCSC-VLAA/Complex-Edit"}).split("## Licence")[1]


def test_a_folder_of_this_machine_stays_out_of_the_metadata():
    assert set(metadata(page())) == {"library_name", "pipeline_tag", "tags"}


def test_a_bare_card_has_a_page_too():
    text = page(metrics={}, config={}, preprocessing={}, versions={}, hardware={}, git={}, dataset={}, digest="", state="interrupted")
    assert "The run was not scored" in text
    assert "**The run is interrupted**" in text
    assert "pixels" not in text


def test_text_of_a_run_cannot_become_markdown_or_metadata():
    evil = "x`\n---\nlicense: mit\n| a | b |\n```\n<script>"
    text = page(system_prompt=evil, base_model=evil, error=evil, state="failed", task=evil)
    assert "license" not in metadata(text)
    body = text.split("---\n", 2)[2]
    assert "````text\n" + evil + "\n````" in body
    assert "<script>" not in body.replace(evil, "").replace("`x' --- license: mit / a / b / ''' <script>`", "")
