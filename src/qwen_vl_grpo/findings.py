"""What a check of this machine found, and what follows from all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from qwen_vl_grpo.errors import HardwareError

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One check: `found` is what was seen or measured, `remedy` what to do about it, `figures` the numbers for a program.

    `fail` means that training would break or be wrong; `warn` that it would be slow, or that something is not proven.
    """

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.found}; {self.remedy}" if self.remedy else self.found


def failed(findings: Iterable[Finding]) -> list[Finding]:
    """Those under which training may not start."""
    return [finding for finding in findings if finding.verdict == "fail"]


def warned(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.verdict == "warn"]


def refuse(findings: Iterable[Finding]) -> None:
    """Raise HardwareError with the first finding under which training may not start."""
    for finding in failed(findings):
        raise HardwareError(str(finding))


def line(findings: Sequence[Finding], machine: str) -> str:
    """The verdict in one line: the first fault, or what the machine is and how much is doubtful."""
    if faults := failed(findings):
        more = f" (and {len(faults) - 1} more; see `grpo doctor`)" if len(faults) > 1 else ""
        return f"not ready: {faults[0]}{more}"
    doubts = [finding.name for finding in warned(findings)]
    return f"ready: {machine}" + (f"; warnings: {', '.join(doubts)} (see `grpo doctor`)" if doubts else "")
