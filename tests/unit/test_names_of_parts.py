"""Covers that a renderer, a judge or a device that nobody knows is refused where a config is read, and not when a run starts."""

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
