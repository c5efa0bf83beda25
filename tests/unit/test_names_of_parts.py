"""Covers that a renderer, a judge or a device that nobody knows is refused where a config is read, and not when a run starts."""

import itertools
from pathlib import Path

import pytest

from qwen_vl_grpo import cli, rendered_parts
from qwen_vl_grpo.errors import ConfigError
from qwen_vl_grpo.rendered_sections import JudgeSection, RendererSection

UNKNOWN = {
    "renderer.name=sd4": "error: renderer.name: there is no renderer 'sd4'; take sd3",
    "judge.name=clipp": "error: judge.name: there is no judge 'clipp'; take clip",
    "judge.name=gone.py:judge": "error: judge.name: gone.py:judge: there is no file gone.py (paths start where the command is run)",
    "placement.judge=gpu1": "placement.judge: 'gpu1' is no device; write auto, cuda:1, mps or cpu",
    "placement.renderer=cuda:one": "placement.renderer: 'cuda:one' is no device",
}


@pytest.mark.parametrize("command", [("train", "--dry_run"), ("train",), ("plan",), ("validate",), ("prepare",)], ids=" ".join)
@pytest.mark.parametrize("change", UNKNOWN)
def test_an_unknown_part_is_refused_in_one_sentence(command, change, write_yaml):
    file = str(write_yaml("run_id: unit\nuse_vllm: false\n"))
    given = [*command, "--config", file] if command[0] in ("train", "plan") else [*command, file]
    with pytest.raises(SystemExit) as end:
        cli.main([*given, "--set", change])
    assert UNKNOWN[change] in str(end.value)
    assert "\n" not in str(end.value)


WRONG = {
    "prompt_enhancement": {
        "renderer.text_tokens=600": "text_tokens 600: sd3's T5 reads at most 512",
        "judge.low=0.5": "low 0.5 is not below high 0.35",
        "penalties.coppying=1": "unknown key 'penalties.coppying'; did you mean 'copying'?",
        "task.mode=documented": "task.mode: documented is for visual_reasoning and video_actions, which have published rewards; remove it",
        "renderer.name=qwen_image": "renderer.name: qwen_image cannot do with the rows of prompt_enhancement; take sd3",
        "judge.name=mmmg": "judge.name: mmmg cannot do with the rows of prompt_enhancement; take clip",
        "task.name=prompt_enhancment": "no task is called 'prompt_enhancment'; did you mean 'prompt_enhancement'?",
    },
    "image_edit": {
        "renderer.width=1000": "width 1000: qwen_image_edit takes multiples of 16; take 992 or 1008",
        "renderer.name=sd3": "sd3 cannot do with the rows of image_edit; take qwen_image_edit or qwen_image_edit_plus",
        "judge.name=mmmg": "mmmg cannot do with the rows of image_edit; take complex_edit",
        "judge.weights.beauty=1": "'alignment', 'quality' or 'identity'",
        "judge.noise_gate=1": "one vote does not tell a judge's noise; set votes to 3 or more",
        "judge.most_cost=5": "most_cost needs input_price and output_price",
        "judge.region_counter=mine.py:count": "region_counter mine.py:count: complex_edit does not read it, mmmg does; remove it",
        "data.complexity=9": "there is no complexity 9; the nearest is 8",
    },
    "text_to_image": {
        "renderer.text_tokens=2000": "less than or equal to 1024",
        "renderer.name=qwen_image_edit": "qwen_image_edit cannot do with the rows of text_to_image; take qwen_image",
        "judge.name=complex_edit": "complex_edit cannot do with the rows of text_to_image; take mmmg",
        "judge.scoring=expected": "scoring expected: mmmg does not read it, complex_edit does; remove it",
        "judge.weights.identity=1": "mmmg does not read it, complex_edit does; remove it",
        "data.levels=[kindergarten]": "there is no 'kindergarten'",
        "data.disciplines=[Alchemy]": "there is no 'Alchemy'; did you mean 'Chemistry'?",
    },
}
PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("command", [("train", "--dry_run"), ("plan",)], ids=" ".join)
@pytest.mark.parametrize(("config", "change"), [(config, change) for config in WRONG for change in WRONG[config]])
def test_a_wrong_value_in_a_config_of_a_drawn_task_is_refused_in_one_sentence(command, config, change):
    with pytest.raises(SystemExit) as end:
        cli.main([*command, "--config", str(PROJECT / f"configs/{config}.yaml"), "--set", change])
    said = str(end.value)
    assert said.startswith("error: ") and "\n" not in said
    assert WRONG[config][change] in said


def test_parts_that_fit_a_task_and_those_of_a_task_of_the_users_own_pass():
    for task, fitting in rendered_parts.FITTING.items():
        for renderer, judge in itertools.product(fitting["renderer"], fitting["judge"]):
            rendered_parts.check_fit(task, RendererSection(name=renderer), JudgeSection(name=judge))
        rendered_parts.check_fit(task, RendererSection(name="mine.py:draw"), JudgeSection(name="mine.py:judge"))
    rendered_parts.check_fit("mine.py:task", RendererSection(name="sd3"), JudgeSection(name="mmmg"))


def test_known_parts_and_files_that_are_there_pass(tmp_path, monkeypatch, capsys, write_yaml):
    (tmp_path / "mine.py").write_text("raise ImportError('a config is read without running it')\n")
    monkeypatch.chdir(tmp_path)
    rendered_parts.check_names(RendererSection(name="mine.py:draw"), JudgeSection(name="mine.py:judge"))
    for name in rendered_parts.GENERATORS:
        rendered_parts.check_names(RendererSection(name=name), None)
    for name in rendered_parts.JUDGES:
        rendered_parts.check_names(None, JudgeSection(name=name))
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "--config", str(write_yaml("run_id: unit\nplacement: {renderer: 'cuda:3', judge: cpu}\n")), "--dry_run"])
    assert end.value.code == 0
    assert "renderer: cuda:3" in capsys.readouterr().out


def test_a_run_that_is_built_without_the_command_line_is_refused_alike():
    with pytest.raises(ConfigError, match=r"^judge.name: there is no judge 'none'; take clip"):
        rendered_parts.check_names(None, JudgeSection(name="none"))
