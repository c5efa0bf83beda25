"""Covers reading a run config: documented values, unknown and repeated keys, broken files."""

from pathlib import Path

import pytest
import yaml

from qwen_vl_grpo import config as configs
from qwen_vl_grpo.errors import ConfigError
from qwen_vl_grpo.tasks import video_actions

PROJECT = Path(__file__).resolve().parents[2]
DOCUMENTED = {
    "run_id": "v1-baseline",
    "output_dir": "outputs/qwen-vl-grpo",
    "model_name": "Qwen/Qwen2.5-VL-7B-Instruct",
    "learning_rate": 5.0e-6,
    "max_steps": 100,
    "batch_size": 8,
    "gradient_accumulation_steps": 2,
    "num_generations": 8,
    "max_completion_length": 512,
    "dataset_name": "AI4Math/MathVista",
    "dataset_split": "testmini",
    "use_vllm": True,
    "vllm_gpu_memory_utilization": 0.7,
    "vllm_enable_sleep_mode": True,
}
VISIBLE = {"task": {"name": "visual_reasoning", "mode": "strict"}}
"""Stands in the file, though it is the default, because one should see which rewards one gets."""
FOR_EIGHT = {"image_edit.yaml": 8, "text_to_image.yaml": 8}
"""Configs whose documented step is that of eight GPUs."""
RUN_CONFIGS = sorted(
    path for path in (PROJECT / "configs").rglob("*.yaml") if path.parent.name != "launch" and path.name != "datasets.yaml"
)


def test_the_documented_file_holds_the_documented_keys_the_mode_and_no_others():
    assert yaml.safe_load((PROJECT / "configs/qwen_grpo.yaml").read_text()) == DOCUMENTED | VISIBLE


def test_the_documented_file_loads_with_the_documented_values():
    loaded = configs.load(PROJECT / "configs/qwen_grpo.yaml").model_dump()
    assert {key: loaded[key] for key in DOCUMENTED} == DOCUMENTED


def test_the_documented_edit_holds_its_documented_values():
    loaded = configs.load(PROJECT / "configs/image_edit.yaml")
    documented = {
        "output_dir": "outputs/drgrpo_qwenie", "model_name": "Qwen/Qwen2.5-VL-7B-Instruct", "loss_type": "dr_grpo", "dtype": "bfloat16",
        "batch_size": 1, "gradient_accumulation_steps": 2, "num_generations": 8, "learning_rate": 1e-5,
    }  # fmt: skip
    assert {key: getattr(loaded, key) for key in documented} == documented
    assert (loaded.lora.enabled, loaded.renderer.name, loaded.judge.name) == (True, "qwen_image_edit", "complex_edit")
    assert loaded.judge.weights == {"alignment": 0.6, "quality": 0.4}
    assert configs.load(PROJECT / "configs/text_to_image.yaml").output_dir == "outputs/grpo_qwen_image"


def test_a_bare_run_id_gives_the_documented_run():
    assert configs.check({"run_id": "v1-baseline"}) == configs.load(PROJECT / "configs/qwen_grpo.yaml")


@pytest.mark.parametrize("path", RUN_CONFIGS, ids=lambda path: str(path.relative_to(PROJECT)))
def test_every_config_of_the_project_loads_and_its_groups_fit(path):
    assert configs.arithmetic(configs.load(path), devices=FOR_EIGHT.get(path.name))


def test_a_loaded_config_cannot_be_changed(config_of):
    with pytest.raises(ValueError, match="frozen"):
        config_of().seed = 1


@pytest.mark.parametrize(
    ("line", "where", "nearest"),
    [
        ("learning_rat: 1", "learning_rat", "learning_rate"),
        ("num_generation: 8", "num_generation", "num_generations"),
        ("lora: {alpah: 16}", "lora.alpah", "alpha"),
        ("evaluation: {evry: 5}", "evaluation.evry", "every"),
        ("rewards: [{function: correctness_reward_func, wieght: 1}]", "rewards.0.wieght", "weight"),
        ("warmup: {dataset_name: digits, step: 3}", "warmup.step", "steps"),
    ],
)
def test_an_unknown_key_is_named_with_its_place_and_the_nearest_key(write_yaml, line, where, nearest):
    with pytest.raises(ConfigError) as error:
        configs.load(write_yaml(f"run_id: a\n{line}\n"))
    assert f"unknown key {where!r}; did you mean {nearest!r}?" in str(error.value)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [("run-id: a", "run_id"), ("run_id: a\nwarmup: {datasetname: digits}", "dataset_name")],
)
def test_a_misspelt_required_key_is_called_unknown_rather_than_missing(write_yaml, text, nearest):
    with pytest.raises(ConfigError, match=f"did you mean '{nearest}'"):
        configs.load(write_yaml(text))


def test_a_key_like_no_other_gets_the_list_of_known_keys(write_yaml):
    with pytest.raises(ConfigError, match=r"unknown key 'zzzzzz'; known keys: .*learning_rate"):
        configs.load(write_yaml("run_id: a\nzzzzzz: 1\n"))


@pytest.mark.parametrize("text", ["run_id: a\nseed: 1\nseed: 2\n", "run_id: a\nlora:\n  r: 8\n  r: 16\n"])
def test_a_key_that_stands_twice_is_refused(write_yaml, text):
    with pytest.raises(ConfigError, match="stands twice"):
        configs.load(write_yaml(text))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("learning_rate: -1", "learning_rate: Input should be greater than 0"),
        ("num_generations: 1", "num_generations: Input should be greater than or equal to 2"),
        ("loss_type: ppo", "loss_type: Input should be 'grpo'"),
        ("max_steps: many", "max_steps: Input should be a valid integer"),
        ("lora: 8", "lora: Input should be a valid dictionary"),
    ],
)
def test_a_value_out_of_its_range_is_named_with_its_key(write_yaml, line, said):
    with pytest.raises(ConfigError) as error:
        configs.load(write_yaml(f"run_id: a\n{line}\n"))
    assert said in str(error.value)


@pytest.mark.parametrize("name", ["picture", "questions"])
def test_data_columns_maps_known_names_only(config_of, name):
    with pytest.raises(ConfigError, match=name):
        config_of(data={"columns": {name: "x"}})


@pytest.mark.parametrize(("text", "said"), [("a: [1", "not valid YAML"), ("- a\n- b\n", "holds list"), ("", "holds NoneType")])
def test_a_file_that_is_no_config_is_refused(write_yaml, text, said):
    with pytest.raises(ConfigError, match=said):
        configs.load(write_yaml(text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such config file"):
        configs.load(tmp_path / "nowhere.yaml")


def test_a_missing_run_id_is_asked_for(write_yaml):
    with pytest.raises(ConfigError, match="run_id is missing; add it"):
        configs.load(write_yaml("seed: 1\n"))


def test_a_context_without_room_for_a_prompt_is_refused():
    with pytest.raises(ConfigError, match=r"vllm_max_model_length 512: .* max_completion_length 512 leaves no token for a prompt"):
        configs.check({"run_id": "unit", "vllm_max_model_length": 512, "max_completion_length": 512})
    assert configs.check({"run_id": "unit", "vllm_max_model_length": 513, "max_completion_length": 512})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"lora": {"enabled": False}}, "there is no adapter with lora.enabled: false"),
        ({"lora": {"quantization": "4bit"}, "use_vllm": True}, "set use_vllm: false"),
    ],
)
def test_an_adapter_that_cannot_be_switched_off_is_refused(config_of, changes, why):
    with pytest.raises(ConfigError, match=f"evaluation.without_adapter: .*{why}"):
        config_of(evaluation={"without_adapter": True}, **changes)


@pytest.mark.parametrize("chosen", ["most", -1, 1.5])
def test_gradient_checkpointing_names_its_choices(config_of, chosen):
    with pytest.raises(ConfigError, match=r"gradient_checkpointing: .* write auto, true, false, or a number of layers"):
        config_of(gradient_checkpointing=chosen)


@pytest.mark.parametrize("chosen", ["auto", True, False, 0, 1, 12])
def test_gradient_checkpointing_keeps_a_number_apart_from_a_yes(config_of, chosen):
    kept = config_of(gradient_checkpointing=chosen).gradient_checkpointing
    assert (type(kept), kept) == (type(chosen), chosen)


def test_a_replay_that_is_off_needs_no_quotes(write_yaml):
    assert configs.load(write_yaml("run_id: unit\njudge: {replay: off}\n")).judge.replay == "off"


def test_the_documented_run_on_clips_holds_its_documented_values():
    loaded = configs.load(PROJECT / "configs/video_actions.yaml")
    documented = {
        "output_dir": "output/grpo_model", "model_name": "Qwen/Qwen2.5-VL-3B-Instruct", "learning_rate": 2e-5, "reward_scale": 0.5,
        "beta": 0.1, "num_generations": 4, "scale_rewards": "none", "temperature": 1.0, "max_completion_length": 512,
    }  # fmt: skip
    assert {key: getattr(loaded, key) for key in documented} == documented
    assert loaded.batch_size * loaded.gradient_accumulation_steps == loaded.num_generations, "one record a device and step"
    assert (loaded.evaluation.temperature, loaded.evaluation.top_p) == (0.7, 0.9)
    assert (loaded.lora.enabled, loaded.lora.parts) == (False, ("merger", "language"))
    assert (loaded.video.min_frames, loaded.video.max_frames) == (4, 8)
    for mode in ("strict", "documented"):
        assert [weight for _, weight in video_actions.REWARDS[mode]] == [0.3, 0.7]
