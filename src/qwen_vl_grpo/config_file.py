"""A config file as text: strict YAML, changes from the command line, and what is wrong with it in one sentence."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from qwen_vl_grpo.errors import ConfigError


def read(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file; raises ConfigError if there is none, or a key stands in it twice."""
    try:
        raw = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_StrictLoader)  # noqa: S506 - a SafeLoader
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config file; configs/ holds the documented ones") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: a run config is a list of `key: value` lines; this file holds {type(raw).__name__}")
    return raw


def override(raw: dict[str, Any], given: str) -> None:
    """Change one key of a config by `a.b=c`; raises ConfigError if that is no key and value."""
    dotted, equals, text = given.partition("=")
    if not equals or not dotted:
        raise ConfigError(f"--set {given}: write --set key=value, or --set section.key=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"--set {given}: the value is not valid YAML; quote it") from None
    *sections, key = dotted.split(".")
    target = raw
    for section in sections:
        if target.get(section) is None:
            target[section] = {}
        target = target[section]
        if not isinstance(target, dict):
            raise ConfigError(f"--set {given}: {section} is a value, not a section")
    target[key] = value


def first_fault(error: ValidationError, model: type[BaseModel]) -> str:
    """The first fault that pydantic found, in one sentence; of an unknown key the nearest one of the model is named."""
    fault = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    where = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        key = str(fault["loc"][-1])
        known = _fields_at(fault["loc"][:-1], model)
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        return f"unknown key {where!r}; " + (f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}")
    if fault["type"] == "missing":
        return f"{where} is missing; add it"
    message = fault["msg"].removeprefix("Value error, ")
    given = "" if fault["type"] == "value_error" else f" (given: {fault['input']!r})"
    return f"{where}: {message}{given}" if where else message


def _fields_at(location: tuple[int | str, ...], model: Any) -> list[str]:
    for part in location:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        model = next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
    return list(model.model_fields)


class _StrictLoader(yaml.SafeLoader):
    """YAML takes the last of two equal keys in silence; a run config may not hold two."""


def _mapping_without_repeats(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.YAMLError(f"the key {key!r} stands twice{node.start_mark}")
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_without_repeats)
