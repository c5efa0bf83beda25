"""May a run start on this machine? Facts and measurements, each a finding with its remedy."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qwen_vl_grpo import checks, environment, findings, footprint, hardware
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.findings import Finding
from qwen_vl_grpo.hardware import Hardware


@dataclass(frozen=True)
class Examination:
    machine: Hardware
    found: list[Finding]
    seconds: float

    @property
    def ready(self) -> bool:
        """Whether training may start."""
        return not findings.failed(self.found)

    @property
    def line(self) -> str:
        """The verdict in one line."""
        packages = hardware.versions()
        stack = ", ".join(f"{name} {packages[name]}" for name in ("torch", "vllm", "trl") if name in packages)
        card = f"{self.machine.devices} x {self.machine.name}" if self.machine.accelerated else f"no GPU, {self.machine.cores} cores"
        return findings.line(self.found, f"{card}, {stack}")

    def record(self) -> dict[str, Any]:
        """Everything, as --json prints it."""
        return {
            "ready": self.ready, "line": self.line, "date": time.strftime("%Y-%m-%d"), "seconds": round(self.seconds, 2),
            "machine": hardware.describe(self.machine), "versions": hardware.versions(),
            "findings": [asdict(finding) for finding in self.found],
        }  # fmt: skip


def examine(config: RunConfig, quick: bool = False) -> Examination:
    """Set the environment that this card wants, look at everything that needs no torch, and measure the rest unless `quick`."""
    started = time.perf_counter()
    machine = hardware.detect()
    found = environment.settle(machine, config) + checks.quick(config, machine)
    if not quick:
        hardware.quiet_libraries()
        found += measured(config, machine)
    return Examination(machine, found, time.perf_counter() - started)


def measured(config: RunConfig, machine: Hardware) -> list[Finding]:
    """Ask the services, then measure card, disk and engine; minutes on a card, since an engine is started."""
    from qwen_vl_grpo import network, sleep_check

    found = network.reachable(config)
    if hardware.torch_build()[0]:
        from qwen_vl_grpo import measuring

        found += measuring.everything(machine, checks.nearest(Path(config.output_dir)))
    if machine.accelerated and hardware.vllm_version():
        starts = footprint.has_engine(config)
        found += sleep_check.look(starts, sleeps=starts and config.vllm_enable_sleep_mode)
    return found
