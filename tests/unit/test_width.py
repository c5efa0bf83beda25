"""Covers images/width.py: a policy whose states the DiT cannot read is refused from two config files, and the ones that fit are named."""

import json

import pytest
from huggingface_hub import constants

from qwen_vl_grpo.errors import ConfigError
from qwen_vl_grpo.images import width

COMMIT = "0" * 40


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """Put a pipeline's transformer/config.json into a cache of the Hub."""

    def put(name, **keys):
        folder = tmp_path / f"models--{name.replace('/', '--')}"
        config = folder / "snapshots" / COMMIT / "transformer/config.json"
        config.parent.mkdir(parents=True)
        config.write_text(json.dumps(keys))
        (folder / "refs").mkdir()
        (folder / "refs/main").write_text(COMMIT)
        return name

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return put


@pytest.mark.parametrize("name", ["Qwen/Qwen-Image", "Qwen/Qwen-Image-Edit", "Qwen/Qwen-Image-Edit-2509"])
def test_a_policy_of_another_width_is_refused_with_the_one_that_fits(name, cached, config_of):
    renderer = {"model": cached(name, joint_attention_dim=3584)}
    width.check(config_of(model_name="Qwen/Qwen2.5-VL-7B-Instruct", renderer=renderer))
    with pytest.raises(ConfigError) as refused:
        width.check(config_of(model_name="Qwen/Qwen2.5-VL-3B-Instruct", renderer=renderer))
    assert str(refused.value) == (
        "model_name Qwen/Qwen2.5-VL-3B-Instruct: its states are 2048 wide and qwen2_5_vl's, and the DiT of renderer.model "
        f"{name} reads qwen2_5_vl's of 3584; take Qwen/Qwen2.5-VL-7B-Instruct"
    )


def test_the_right_width_in_another_family_does_not_fit(cached, config_of):
    renderer = {"model": cached("Qwen/Qwen-Image", joint_attention_dim=3584)}
    with pytest.raises(ConfigError, match=r"are 3584 wide and qwen2_vl's, .* take Qwen/Qwen2\.5-VL-7B-Instruct$"):
        width.check(config_of(model_name="Qwen/Qwen2-VL-7B-Instruct", renderer=renderer))


def test_a_width_that_no_published_policy_has_names_none(cached, config_of):
    renderer = {"model": cached("somebody/tiny", joint_attention_dim=24)}
    with pytest.raises(ConfigError, match=r"reads qwen2_5_vl's of 24$"):
        width.check(config_of(model_name="Qwen/Qwen2.5-VL-7B-Instruct", renderer=renderer))


def test_a_config_is_refused_by_what_is_published_where_no_file_is_here(cached, config_of):
    seven, three = (f"Qwen/Qwen2.5-VL-{size}-Instruct" for size in ("7B", "3B"))
    for model in width.PUBLISHED:
        width.check(config_of(model_name=seven, renderer={"model": model}), ask_hub=False)
        with pytest.raises(ConfigError, match=r"are 2048 wide .* take Qwen/Qwen2\.5-VL-7B-Instruct$"):
            width.check(config_of(model_name=three, renderer={"model": model}), ask_hub=False)
    for model_name, renderer in [(three, "somebody/unknown"), ("somebody/unknown", "Qwen/Qwen-Image")]:
        width.check(config_of(model_name=model_name, renderer={"model": renderer}), ask_hub=False)
    renderer = {"model": cached("Qwen/Qwen-Image", joint_attention_dim=24)}
    with pytest.raises(ConfigError, match=r"reads qwen2_5_vl's of 24$"):
        width.check(config_of(model_name=seven, renderer=renderer), ask_hub=False)


def test_what_cannot_be_read_is_one_sentence(tmp_path, config_of):
    for model, said in [
        ("nowhere/at/all", "there is no such folder here"),
        (str(tmp_path), "the folder holds no transformer/config.json"),
        ("somebody/unknown", "renderer.model somebody/unknown: "),
    ]:
        with pytest.raises(ConfigError, match=said):
            width.check(config_of(renderer={"model": model}))
    (tmp_path / "transformer").mkdir()
    for content in ("{}", "not json", "[]", '{"joint_attention_dim": null}'):
        (tmp_path / "transformer/config.json").write_text(content)
        with pytest.raises(ConfigError, match="names no joint_attention_dim"):
            width.check(config_of(renderer={"model": str(tmp_path)}))
    with pytest.raises(ConfigError, match="needs this section"):
        width.check(config_of())
