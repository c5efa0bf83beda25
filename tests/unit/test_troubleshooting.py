"""Covers docs/troubleshooting.md: every key it names is one of the config, and every alarm is in it. And CITATION.cff's version."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from qwen_vl_grpo import config as configs
from qwen_vl_grpo.alarms import ALARMS

PROJECT = Path(__file__).parents[2]
TEXT = (PROJECT / "docs/troubleshooting.md").read_text(encoding="utf-8")
OF_METRICS = {"blind", "generate", "sync", "wake", "sleep", "generate_and_score", "step_time", "grad_norm", "reward"}


def keys(model=configs.RunConfig, prefix=""):
    """Every key of the config, dotted."""
    for name, field in model.model_fields.items():
        yield prefix + name
        for inner in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from keys(inner, f"{prefix}{name}.")


def test_every_key_that_is_named_exists():
    alarms = {alarm.name for alarm in ALARMS}
    named = {quoted.split(": ")[0] for quoted in re.findall(r"`([^`]+)`", TEXT)}
    named = {name for name in named if re.fullmatch(r"[a-z_]+(\.[a-z_]+)*", name)} - OF_METRICS - alarms
    assert len(named) > 25
    assert named - set(keys()) - {"training.log", "metrics.jsonl"} == set()


@pytest.mark.parametrize("alarm", [alarm.name for alarm in ALARMS if alarm.name != "not_a_number"])
def test_every_alarm_is_explained(alarm):
    assert f"alarm `{alarm}`" in TEXT


def test_what_is_cited_is_this_version():
    cited = yaml.safe_load((PROJECT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
