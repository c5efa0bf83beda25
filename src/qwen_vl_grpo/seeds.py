"""A group: one config run with several seeds, one after another, and the mean and spread of their scores.

Each run is a process of its own: an engine leaves memory of its card behind for as long as its process lives, and a run begins
as it does alone.
"""

from __future__ import annotations

import logging
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from qwen_vl_grpo import attempts, following, registry
from qwen_vl_grpo.config import RunConfig, check, launched
from qwen_vl_grpo.errors import ConfigError, RegistryError
from qwen_vl_grpo.interfaces import RunCard

log = logging.getLogger("qwen_vl_grpo")

SCORED = ("before", "after", "blind", "without_adapter")
COUNTS = ("n", "rows")


def members(config: RunConfig, count: int) -> list[RunConfig]:
    """The runs of a group: `<run_id>-s0` with the config's own seed, `<run_id>-s1` with the next, …"""
    whole = config.model_dump(mode="json")
    whole["registry"]["group"] = config.run_id
    return [check(whole | {"run_id": f"{config.run_id}-s{i}", "seed": config.seed + i}, "--seeds") for i in range(count)]


def left(config: RunConfig, count: int, resume: bool) -> list[tuple[RunConfig, bool]]:
    """The runs of a group that are not at their end, each with whether it was begun; every refusal comes before one starts.

    Raises ConfigError with the keys that differ from a run that was begun, or under a launcher of many processes; RegistryError if
    an id is taken, or there is no group to resume.
    """
    if launched() > 1:
        raise ConfigError("--seeds: starts each run as a process of its own, which a launcher of many cannot share; launch each seed alone")
    if not resume:
        registry.refuse_existing(config)
    elif not (config.run_dir / registry.GROUP).is_file():
        raise RegistryError(f"run_id {config.run_id}: there is no group in {config.run_dir} to resume; leave out --resume to start it")
    found = []
    for run in members(config, count):
        begun = resume and (run.run_dir / "run.json").is_file()
        if not begun:
            registry.refuse_existing(run)
        if not begun or not attempts.ended(attempts.begun(run), run):
            found.append((run, begun))
    return found


def train(config: RunConfig, count: int, todo: Sequence[tuple[RunConfig, bool]], debug: bool = False) -> dict[str, Any]:
    """Run what is left of a group and return its summary, which group.json in the group's own folder holds after every run.

    Raises RegistryError at the first run that fails; SystemExit as the run does that is stopped by a signal of attempts.STOPS.
    """
    folder, runs = config.run_dir, members(config, count)
    folder.mkdir(parents=True, exist_ok=True)
    with attempts.hold(folder):
        registry.write_group(summary(config.run_id, runs), folder)
        for run, begun in todo:
            log.info("group %s: run %s %s", config.run_id, run.run_id, "goes on" if begun else "starts")
            written = folder / f"{run.run_id}.yaml"
            written.write_text(yaml.safe_dump(run.model_dump(mode="json"), sort_keys=False), encoding="utf-8")
            code = _process(["train", "--config", str(written), *(["--resume"] if begun else []), *(["--debug"] if debug else [])])
            registry.write_group(summary(config.run_id, runs), folder)
            if code - 128 in attempts.STOPS:
                raise SystemExit(code)
            if code:
                raise RegistryError(
                    f"group {config.run_id}: run {run.run_id} ended with exit code {code} and said why above; mend it, then --resume"
                )
    return summary(config.run_id, runs)


def _process(arguments: list[str]) -> int:
    """Run our own command to its end and return its exit code, as a shell counts it; that of a signal if one came, whatever it ended."""
    package = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    told = {"PYTHONPATH": path, following.LAUNCHER: str(os.getpid())}  # that it was stopped is for this process to say
    child = subprocess.Popen([sys.executable, "-m", "qwen_vl_grpo", *arguments], env=os.environ | told)
    asked: list[int] = []

    def hand_on(number: int, _: Any) -> None:
        asked.append(number)
        if number != signal.SIGINT:  # a terminal has sent Ctrl-C to both
            child.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in attempts.STOPS}
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked and not code:
        return 128 + asked[0]
    return code if code >= 0 else 128 - code


def summary(group: str, runs: Sequence[RunConfig]) -> dict[str, Any]:
    """The state of each run, and mean, sample standard deviation, n and values of each score over the finished ones."""
    cards = [registry.read(run.run_dir) if (run.run_dir / "run.json").is_file() else None for run in runs]
    values: dict[str, list[float]] = {}
    for card in cards:
        for name, value in scores(card).items() if card and card.state == "finished" else ():
            values.setdefault(name, []).append(value)
    return {
        "run_id": group,
        "runs": [
            {"run_id": run.run_id, "seed": run.seed, "state": card.state if card else "not started"}
            for run, card in zip(runs, cards, strict=True)
        ],
        "scores": {
            name: {
                "mean": round(statistics.fmean(each), 4),
                "sd": round(statistics.stdev(each), 4) if len(each) > 1 else None,
                "n": len(each),
                "values": each,
            }
            for name, each in values.items()
        },
    }


def scores(card: RunCard) -> dict[str, float]:
    """The scores on a card by their path (`after/sampled/correct`), and the reward of the last step."""
    of_rows = _flat({when: card.metrics[when] for when in SCORED if when in card.metrics})
    reward = card.metrics.get("last_step", {}).get("reward")
    return of_rows | ({"last_step/reward": reward} if reward is not None else {})


def _flat(content: dict[str, Any], above: str = "") -> dict[str, float]:
    flat: dict[str, float] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{above}{key}/")
        elif isinstance(value, int | float) and key not in COUNTS:
            flat[above + key] = value
    return flat


def text(group: dict[str, Any]) -> str:
    """A group's summary as a table."""
    runs = ", ".join(f"{run['run_id']} (seed {run['seed']}) {run['state']}" for run in group["runs"])
    width = max(map(len, group["scores"]), default=5)
    lines = [f"group {group['run_id']}: {runs}", f"{'score':{width}} {'mean':>8} {'sd':>8} {'n':>3}  values"]
    for name, score in group["scores"].items():
        spread = "-" if score["sd"] is None else f"{score['sd']:.4f}"
        values = " ".join(f"{value:.4f}" for value in score["values"])
        lines.append(f"{name:{width}} {score['mean']:8.4f} {spread:>8} {score['n']:3}  {values}")
    return "\n".join(lines)
