"""Covers that a data set which cannot be there is refused by a dry run, and that nobody is asked for one that may be on the Hub."""

from pathlib import Path

import pytest

from qwen_vl_grpo import cli

CONFIG = ["--config", str(Path(__file__).resolve().parents[2] / "configs/qwen_grpo.yaml")]


def dry_run(*changes):
    """What the command ends with: 0, or its refusal."""
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "--dry_run", *CONFIG, *(part for change in changes for part in ("--set", change))])
    return end.value.code


@pytest.mark.parametrize("key", ["dataset_name", "evaluation.dataset_name", "warmup.dataset_name"])
@pytest.mark.parametrize("name", ["nowhere", "./gone", "a/b/c", "gone.jsonl", "/gone/rows"])
def test_a_data_set_that_is_nowhere_is_refused(key, name, capsys):
    said = dry_run(f"{key}={name}", *["evaluation.dataset_split=test"] * key.startswith("evaluation"))
    assert (
        said == f"error: {key}: there is no file or folder {name} here (paths start where the command is run), and a Hub id is OWNER/NAME"
    )
    assert capsys.readouterr().out == ""


def test_a_run_is_refused_alike_before_any_library_is_loaded(tmp_path):
    with pytest.raises(SystemExit) as end:
        cli.main(["train", *CONFIG, "--set", "use_vllm=false", "--set", "dataset_name=nowhere", "--set", f"output_dir={tmp_path}"])
    assert str(end.value).startswith("error: dataset_name: there is no file or folder nowhere here")


def test_it_is_said_where_each_data_set_is(tmp_path, monkeypatch, capsys):
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert dry_run("warmup.dataset_name=digits") == 0
    told = capsys.readouterr().out
    assert "\n# data AI4Math/MathVista: on the Hub, which HF_HUB_OFFLINE forbids to ask: the copy in this machine's cache" in told
    assert "\n# data digits: here\n" in told
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert dry_run() == 0
    assert "\n# data AI4Math/MathVista: on the Hub, which is asked when the run starts\n" in capsys.readouterr().out


def test_registered_data_are_here_or_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "datasets.yaml").write_text("digits: {annotations: digits.jsonl}", encoding="utf-8")
    registered = ("dataset_name=null", "dataset_use=digits%50", "data.registry=datasets.yaml")
    assert dry_run(*registered) == "error: data.registry datasets.yaml: there are no annotations of digits at digits.jsonl"
    (tmp_path / "digits.jsonl").touch()
    assert dry_run(*registered) == 0
    assert "\n# data digits%50: here, by datasets.yaml\n" in capsys.readouterr().out
