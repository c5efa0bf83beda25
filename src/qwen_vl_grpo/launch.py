"""One run on many cards, by `accelerate launch`: which cards, which strategy, and the restarts of a run that dies."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from qwen_vl_grpo import attempts, following, planning, strategies
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import ConfigError, HardwareError, PolicyError
from qwen_vl_grpo.following import Outcome
from qwen_vl_grpo.hardware import Hardware
from qwen_vl_grpo.index import PROJECT
from qwen_vl_grpo.spreading import STRATEGIES

log = logging.getLogger("qwen_vl_grpo")

CONFIGS = {"single": "single", "ddp": "ddp", "zero2": "deepspeed_zero2", "zero3": "deepspeed_zero3", "fsdp2": "fsdp2"}
"""Strategy -> accelerate's config in configs/launch/."""
TOLD = {
    "zero2": {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"},
    "zero3": {
        "ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3", "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true",
    },
    "fsdp2": {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT"},
}  # fmt: skip
"""Strategy that splits the trainer -> what accelerate puts into the environment of a rank for our config of it."""
VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES"}
PASSING = ("EngineError", "HubError", "JudgeError", "RankError")
"""Errors that may not come again; whatever else we can name, a restart does not mend."""


@dataclass(frozen=True)
class Nodes:
    """The machines of a launch: how many, which is this one, and where the first one listens."""

    count: int = 1
    rank: int = 0
    address: str = "127.0.0.1"
    port: int = 0


@dataclass(frozen=True)
class Launch:
    """`cards` are this node's, none on a CPU; `processes` run on each node."""

    strategy: str
    processes: int
    cards: tuple[str, ...]
    variable: str
    nodes: Nodes

    @property
    def ranks(self) -> int:
        return self.processes * self.nodes.count

    @property
    def environment(self) -> dict[str, str | None]:
        """What the ranks find in their environment besides what torchrun puts there; what is None they do not find."""
        if not self.cards:
            return {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
        return dict.fromkeys(VISIBLE.values()) | {self.variable: ",".join(self.cards)}

    @contextmanager
    def as_a_rank_sees_it(self) -> Iterator[None]:
        """Show this process for a while what a rank sees, so that it refuses what a rank would."""
        shown = self.environment | {"WORLD_SIZE": str(self.ranks)}
        shown |= TOLD.get(self.strategy, {})
        before = {name: os.environ.get(name) for name in shown}
        _set(shown)
        try:
            yield
        finally:
            _set(before)


def plan(config: RunConfig, machine: Hardware, asked: str, cards: tuple[str, ...], cpus: int, nodes: Nodes, memory: float | None) -> Launch:
    """Which strategy starts how many processes; raises ConfigError and HardwareError for one that cannot.

    `memory` is a card's, in GiB.
    """
    apart = config.placement is not None and any(
        re.fullmatch(r"cuda:[1-9]\d*", place) for place in (config.placement.renderer, config.placement.judge)
    )
    processes = cpus or (1 if apart or asked == "single" else len(cards))
    strategy = asked
    if asked == "auto":
        strategy = "single" if processes * nodes.count == 1 else _first_that_fits(config, machine, memory, processes * nodes.count)
    if apart and (strategy != "single" or nodes.count > 1):
        raise ConfigError(
            f"--strategy {strategy}: placement gives renderer or judge a card of its own, which the policy's other processes would take; "
            "leave placement out, or launch with --strategy single"
        )
    if strategy == "single" and processes * nodes.count > 1:
        raise ConfigError(f"--strategy single: is one process, and {processes * nodes.count} were asked for; take ddp, or --gpus 1")
    if strategy != "single" and processes * nodes.count == 1:
        raise ConfigError(f"--strategy {strategy}: is for several cards, and one was asked for; take single, or more with --gpus")
    if strategy.startswith("zero") and importlib.util.find_spec("deepspeed") is None:
        raise HardwareError(f"--strategy {strategy}: DeepSpeed is not installed here; pip install deepspeed, or take fsdp2")
    if strategy == "single" and not apart:
        cards = cards[:1]  # torch would copy the policy to every card that it sees
    return Launch(strategy, processes, cards, VISIBLE.get(machine.kind, ""), nodes)


def cards(asked: str | None, machine: Hardware, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The cards of this node that the run gets, as its visibility variable names them; raises HardwareError, ConfigError."""
    if not machine.accelerated:
        raise HardwareError(f"this machine has no GPU ({machine.kind}, {machine.cores} cores); --cpu N starts N processes on its CPU")
    listed = next((environ[name] for name in (VISIBLE[machine.kind], "CUDA_VISIBLE_DEVICES") if environ.get(name)), "")
    there = tuple(part.strip() for part in listed.split(",") if part.strip()) or tuple(map(str, range(machine.devices)))
    if asked is None:
        return there
    if not re.fullmatch(r"[1-9]\d*|\w+(-\w+)*(,\w+(-\w+)*)*,?", asked):
        raise ConfigError(f"--gpus {asked}: give a number of cards, or their names with commas between them: 4, or 0,1,2")
    chosen = there[: int(asked)] if asked.isdigit() else tuple(filter(None, asked.split(",")))
    wanted = int(asked) if asked.isdigit() else len(chosen)
    if not wanted or len(set(chosen)) < wanted or not set(chosen) <= set(there):
        raise HardwareError(f"--gpus {asked}: this process sees {len(there)} cards ({', '.join(there)}); ask for some of these, each once")
    return chosen


def nodes(count: int, rank: int, address: str | None) -> Nodes:
    """The machines of a launch; raises ConfigError where they cannot find each other."""
    if count == 1:
        return Nodes()
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--main_address {address}: {count} nodes meet at the first one's HOST:PORT; give the same to each of them")
    if not 0 <= rank < count:
        raise ConfigError(f"--node_rank {rank}: of {count} nodes the first is 0 and the last {count - 1}")
    return Nodes(count, rank, host, int(port))


def _first_that_fits(config: RunConfig, machine: Hardware, memory: float | None, ranks: int) -> str:
    """Of what is right for the config and can be had here: the way to share the trainer that sends the least and fits, or splits most."""
    there = [name for name in STRATEGIES[1:] if not name.startswith("zero") or importlib.util.find_spec("deepspeed")]
    among = [name for name in there if _right(config, name, machine)]
    try:
        fits = planning.strategy_that_fits(config, memory, ranks, among=among) if memory is not None else None
    except PolicyError:  # what is not known is not refused, either
        memory = fits = None
    return among[0] if memory is None else fits or among[-1]


def _right(config: RunConfig, strategy: str, machine: Hardware) -> bool:
    try:
        strategies.refuse(config, strategy, machine.accelerated, TOLD.get(strategy, {}))
    except ConfigError:
        return False
    return True


def command(launch: Launch, arguments: Sequence[str]) -> list[str]:
    """`accelerate launch` of a `grpo` command."""
    meeting = ["--main_process_ip", launch.nodes.address, "--main_process_port", str(launch.nodes.port)]
    return [
        sys.executable, "-m", "accelerate.commands.launch",
        "--config_file", str(PROJECT / "configs/launch" / f"{CONFIGS[launch.strategy]}.yaml"),
        "--num_processes", str(launch.ranks), "--num_machines", str(launch.nodes.count), "--machine_rank", str(launch.nodes.rank),
        *(meeting if launch.ranks > 1 else []), "-m", "qwen_vl_grpo.launched", *arguments,
    ]  # fmt: skip


def run(config: RunConfig, launch: Launch, arguments: Sequence[str], restarts: int = 0) -> Outcome:
    """Start the run, and again from its newest whole checkpoint up to `restarts` times if it dies of what may pass."""
    outcome, begun = _once(config, launch, arguments)
    again = restarts and outcome.code and not outcome.asked and (not outcome.kind or outcome.kind in PASSING)
    reason = outcome.reason + (f"; the run is started again, {restarts - 1} restarts are left" if again else "")
    if outcome.code and begun and launch.nodes.rank == 0:
        attempts.died(config.run_dir, reason)
    if again:
        log.warning(reason)
        resume = ["--resume"] if begun and "--resume" not in arguments else []
        return run(config, launch, [*arguments, *resume], restarts - 1)
    job = os.environ.get("SLURM_JOB_ID")
    if (
        signal.SIGUSR1 in outcome.asked and launch.nodes.rank == 0 and job and shutil.which("scontrol")
    ):  # in a container its batch script does
        subprocess.run(["scontrol", "requeue", job], check=False)
    return outcome


def _once(config: RunConfig, launch: Launch, arguments: Sequence[str]) -> tuple[Outcome, bool]:
    """Start the run once; returns what it came to, and whether it got as far as its own folder, which has the logs then."""
    package = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    told = {**os.environ, **launch.environment, "PYTHONPATH": path}
    with following.logs(config.run_dir, f"{time.strftime('%Y%m%dT%H%M%S')}-node-{launch.nodes.rank}") as logs:
        environment = {name: value for name, value in told.items() if value is not None}
        outcome = following.follow(command(launch, arguments), environment, logs, launch.nodes.rank * launch.processes)
        return outcome, logs.kept


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
