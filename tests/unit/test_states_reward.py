"""Covers rendered_reward.py where the renderer sees the policy's states: whose they are, what they are made of, and what is remembered."""

import copy
import threading
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from demo import tiny_qwen_image
from qwen_vl_grpo import rendered_gallery, tasks
from qwen_vl_grpo.errors import ConfigError
from qwen_vl_grpo.images.embeddings import PolicyEncoder, Turn
from qwen_vl_grpo.rendered_reward import StatesReward
from qwen_vl_grpo.sections import TaskSection

JUDGE = Path(__file__).parents[1] / "fixtures/bright.py"
PROMPT = "a red cat"


@pytest.fixture(scope="module")
def policy(checkpoint):
    """A tiny policy under an adapter that changes what it says, and its processor."""
    model = AutoModelForImageTextToText.from_pretrained(checkpoint("qwen2_5_vl"), dtype=torch.float32)
    torch.manual_seed(0)
    model = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"]))
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data += torch.randn_like(weight)
    return model, AutoProcessor.from_pretrained(checkpoint("qwen2_5_vl"))


@pytest.fixture(scope="module")
def renderers(checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("renderers")
    for kind in ("qwen_image", "qwen_image_edit"):
        tiny_qwen_image.build(folder / kind, kind, checkpoint("qwen2_5_vl"))
    return folder


@pytest.fixture
def made(config_of, checkpoint, policy, renderers, tmp_path):
    """A reward that holds a policy, and what it logged."""

    def make(kind="qwen_image", model=policy[0], **changes):
        section = {"name": kind, "model": str(renderers / kind), "width": 32, "height": 32, "steps": 2, "guidance_scale": 1}
        sections = {"model_name": checkpoint("qwen2_5_vl"), "renderer": section, "judge": {"name": f"{JUDGE}:judge"}}
        name = "image_edit" if kind == "qwen_image_edit" else "text_to_image"
        sections |= {"task": {"name": name}, "output_dir": str(tmp_path)}
        ((reward, _),) = tasks.rewards(tasks.build(TaskSection(name=name)), config_of(**(sections | changes)))
        assert isinstance(reward, StatesReward)
        reward.hold(model, policy[1])
        return reward

    return make


def said(*words):
    return [[{"role": "assistant", "content": text}] for text in words]


def requests_of(reward, monkeypatch):
    """What the renderer is asked for at each call, as a list that grows."""
    seen = []
    render = reward._score.generator.render
    monkeypatch.setattr(reward._score.generator, "render", lambda requests: seen.extend(requests) or render(requests))
    return seen


def test_the_states_are_those_of_the_sampled_ids_up_to_the_end_of_the_turn(made, policy, monkeypatch):
    reward = made()
    drawn = requests_of(reward, monkeypatch)
    tokenizer = policy[1].tokenizer
    ids = [*(tokenizer.convert_tokens_to_ids(token) for token in "abc"), tokenizer.eos_token_id, tokenizer.pad_token_id]
    (score,) = reward(completions=said("abc"), original_prompt=[PROMPT], completion_ids=[ids])
    assert 0 < score < 1
    (own,) = PolicyEncoder("qwen_image", *policy).encode([Turn(PROMPT, tuple(ids[:3]))])
    assert drawn[0].conditioning == own.conditioning
    assert torch.equal(drawn[0].conditioning.states, own.conditioning.states)


def test_an_evaluation_has_no_ids_and_reads_the_words(made, policy, monkeypatch):
    reward = made()
    drawn = requests_of(reward, monkeypatch)
    reward(completions=said("a blue dog"), original_prompt=[PROMPT])
    (own,) = PolicyEncoder("qwen_image", *policy).encode([Turn(PROMPT, tuple(policy[1].tokenizer("a blue dog")["input_ids"]))])
    assert drawn[0].conditioning == own.conditioning


def test_what_is_drawn_follows_the_adapter_and_a_judgement_is_remembered_for_these_weights_alone(made, policy):
    model = copy.deepcopy(policy[0])
    reward, told = made(model=model), {}
    asked = {"completions": said("a blue dog", "a blue dog"), "original_prompt": [PROMPT] * 2, "log_metric": told.__setitem__}
    before = reward(**asked)
    assert (before[0] == before[1], told["rendered/remembered"]) == (True, 0)
    assert (reward(**asked), told["rendered/remembered"]) == (before, 1)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data *= -1
    assert reward(**asked) != before
    assert told["rendered/remembered"] == 0


def test_guidance_leads_away_from_what_the_base_makes_of_the_negative_prompt(made, policy, renderers):
    section = {"name": "qwen_image", "model": str(renderers / "qwen_image"), "width": 32, "height": 32, "steps": 2, "guidance_scale": 4.0}
    reward = made(renderer=section)
    (guided,) = reward(completions=said("a blue dog"), original_prompt=[PROMPT])
    assert guided != made()(completions=said("a blue dog"), original_prompt=[PROMPT])[0]
    (kept,) = reward._states._negatives.values()
    (own,) = PolicyEncoder("qwen_image", *policy).encode([Turn(" ")], adapters=False)
    assert kept == own.conditioning


def test_a_completion_without_a_word_has_no_score_and_marks_and_lengths_are_counted(made, policy):
    told = {}
    tokenizer = policy[1].tokenizer
    mark = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    letter = tokenizer.convert_tokens_to_ids("a")
    scores = made()(
        completions=said("", "a", "a" * 3000),
        original_prompt=[PROMPT] * 3,
        completion_ids=[[tokenizer.eos_token_id], [letter, mark], [letter] * 3000],
        log_metric=told.__setitem__,
    )
    assert scores[0] is None
    assert None not in scores[1:]
    assert (told["rendered/dropped_tokens"], told["rendered/empty"]) == (1, pytest.approx(1 / 3))
    assert 0.6 / 3 < told["rendered/lost_beyond_1024"] < told["rendered/lost_beyond_512"] < 1 / 3


def test_completions_are_embedded_while_pictures_of_those_before_them_are_judged(made, policy, monkeypatch):
    """Ten are two forward passes; a judge that answers only after the second would wait for ever if that waited for the judge."""
    reward, events, second = made(), [], threading.Event()
    judge, render = reward._score.judge.judge, reward._score.generator.render

    def embeds(*_):
        events.append("embed")
        if events.count("embed") == 2:
            second.set()

    def judges(pictures):
        assert second.wait(60)
        return judge(pictures)

    monkeypatch.setattr(reward._score.judge, "judge", judges)
    monkeypatch.setattr(reward._score.generator, "render", lambda requests: events.append(len(requests)) or render(requests))
    handle = policy[0].get_base_model().model.register_forward_pre_hook(embeds)
    try:
        scores = reward(completions=said(*"abcdefghij"), original_prompt=[PROMPT] * 10)
    finally:
        handle.remove()
    assert None not in scores
    assert events == ["embed", 4, 4, "embed", 2]


def test_an_edit_begins_from_the_rows_picture_which_is_known_by_its_pixels(made, monkeypatch):
    reward = made("qwen_image_edit")
    drawn = requests_of(reward, monkeypatch)
    red, again, blue = (Image.new("RGB", (64, 64), colour) for colour in ("red", "red", "blue"))
    with tiny_qwen_image.small_sources():
        scores = reward(
            completions=said("a", "a", "a"), original_prompt=["Make it green."] * 3, images=[[red], [again], [blue]], rubric=["x", "x", "x"]
        )
    assert scores[0] == scores[1] != scores[2]
    assert [request.sources[0].image for request in drawn] == [red, blue]
    assert drawn[0].rubric == "x"


def test_a_gallery_shows_the_source_also_of_a_completion_without_a_word(made, tmp_path):
    reward = made("qwen_image_edit")
    red, blue = (Image.new("RGB", (64, 64), colour) for colour in ("red", "blue"))
    with tiny_qwen_image.small_sources():
        reward(completions=said("", "a"), original_prompt=["Make it green."] * 2, images=[[red], [blue]], moment="before")
    lines, _ = rendered_gallery.read(reward._config.run_dir)
    shown = [Image.open(reward._config.run_dir / line["sources"][0]).convert("RGB").getpixel((0, 0)) for line in lines]
    assert (shown, lines[0]["picture"]) == ([(255, 0, 0), (0, 0, 255)], None)


def test_a_policy_that_the_transformer_cannot_read_is_refused_before_anything_is_loaded(made, checkpoint):
    with pytest.raises(ConfigError, match="reads qwen2_5_vl's of"):
        made(model_name=checkpoint("qwen3_vl"))
    with pytest.raises(ConfigError, match="renderer: a task that draws from the policy's states needs this section"):
        made(renderer=None)
