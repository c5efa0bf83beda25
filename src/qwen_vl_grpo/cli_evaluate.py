"""`grpo evaluate`: one pinned evaluator for base and tuned, by run_id."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from qwen_vl_grpo.cli_flags import AsJson, Backend, Debug, heed, load, show_log
from qwen_vl_grpo.errors import ConfigError
from qwen_vl_grpo.run_id import BASE


class Form(StrEnum):
    """What a result may be exported to; typer takes no list of literals."""

    lmms_eval = "lmms_eval"
    vlmevalkit = "vlmevalkit"


def evaluate(
    who: Annotated[str, typer.Argument(help="A run by its id, or a model: Hub id or folder.", metavar="RUN_ID|MODEL")],
    against: Annotated[
        str | None, typer.Option("--against", help="A second run or model, or `base`: what the run's GRPO began from.")
    ] = None,
    config: Annotated[str | None, typer.Option("--config", help="Ask what this YAML file asks; the run's own config if not given.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Change one key of that config: --set judge.base_url=… Repeatable.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", min=0, help="Sampled answers a row beside the greedy one; evaluation.samples if not given.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first rows.")] = None,
    backend: Backend = "auto",
    batch_size: Annotated[int | None, typer.Option("--batch_size", min=1, help="Answers that transformers writes at once.")] = None,
    export: Annotated[
        list[Form] | None,
        typer.Option("--export", help="Also write the result in another program's format. Repeatable."),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Score a run or a model on held-out rows under one pinned protocol, perhaps against another; what was answered before is kept."""
    from qwen_vl_grpo import checks, environment, hardware

    _refuse(who, against, config)
    protocol = load(config, overrides) if config else None
    show_log()
    machine = hardware.detect()
    heed(checks.machine_only(machine) + environment.settle(machine))
    hardware.quiet_libraries()
    from qwen_vl_grpo import exports, scoring, subjects
    from qwen_vl_grpo.report import evaluated

    subject = subjects.find(who, protocol)
    pinned = protocol or _changed(subject.config, overrides)
    other = subjects.find(against, pinned, subject) if against else None
    asked = scoring.Asked(limit, samples, backend, batch_size)
    done = scoring.evaluate(subject, pinned, asked)
    if other is None:
        told, page = done.result, evaluated.markdown(done.result)
    else:
        base = scoring.evaluate(other, pinned, asked)
        changes = scoring.against(base, done)
        told: dict[str, Any] = {"base": base.result, "tuned": done.result, "changes": changes}
        page = evaluated.markdown(done.result, base.result, changes)
    print(json.dumps(told, indent=2) if as_json else page)
    for form in export or ():
        print(f"{form.value}: {exports.FORMS[form.value](done)}", file=sys.stderr)
    print(f"every answer: {done.folder / scoring.ITEMS}", file=sys.stderr)


def _refuse(who: str, against: str | None, config: str | None) -> None:
    """Raise for a word that stands for no policy here, an id of no run and a model without a config, before anything heavy is imported."""
    from qwen_vl_grpo import registry

    if who == BASE:
        raise ConfigError("grpo evaluate base: is what a run beside it began from; write `grpo evaluate RUN_ID --against base`")
    for name in filter(None, (who, against)):
        if name != BASE and registry.names_run(name):
            registry.resolve(name)
    if config is None and not registry.names_run(who):
        raise registry.without_config(who)


def _changed(own: Any, overrides: list[str] | None) -> Any:
    """A run's own config with some keys changed."""
    from qwen_vl_grpo import config as configs
    from qwen_vl_grpo import config_file

    raw = own.model_dump(mode="json", exclude_unset=True)
    for given in overrides or ():
        config_file.override(raw, given)
    return configs.check(raw, f"run_id {own.run_id}")
