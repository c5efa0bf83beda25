"""What a judge has cost, and the end of a run that may spend no more."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from filelock import FileLock

from qwen_vl_grpo.errors import BudgetError
from qwen_vl_grpo.rendered_sections import JudgeSection

COUNTED = ("requests", "input_tokens", "output_tokens", "cost")


class Budget:
    """Counts what is spent, in the file of `judge.spending` where there is one; threads and processes may share it.

    What is under way when the budget ends is still paid for, so it may be passed by `judge.concurrency` requests.
    """

    def __init__(self, section: JudgeSection):
        self._section = section
        self._file = Path(section.spending) if section.spending else None
        self._lock = threading.Lock()
        self.spent: dict[str, float] = dict.fromkeys(COUNTED, 0)
        """Of all processes and runs that share the file."""
        if self._file is not None and self._file.is_file():
            self.spent = self._read(self._file)

    def check(self) -> None:
        """Raise BudgetError if nothing may be spent any more."""
        section, tokens = self._section, self.spent["input_tokens"] + self.spent["output_tokens"]
        if section.most_cost is not None and self.spent["cost"] >= section.most_cost:
            raise BudgetError(f"judge.most_cost: {self.spent['cost']:.2f} of {section.most_cost:g} is spent; raise it and --resume")
        if section.most_tokens is not None and tokens >= section.most_tokens:
            raise BudgetError(f"judge.most_tokens: {tokens:.0f} of {section.most_tokens} are used; raise it and --resume")

    def spend(self, input_tokens: int, output_tokens: int) -> None:
        """Count one request."""
        cost = (input_tokens * self._section.input_price + output_tokens * self._section.output_price) / 1e6
        with self._lock:
            if self._file is None:
                self._add(1, input_tokens, output_tokens, cost)
                return
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self._file}.lock"):
                if self._file.is_file():
                    self.spent = self._read(self._file)
                self._add(1, input_tokens, output_tokens, cost)
                part = self._file.with_name(f"{self._file.name}.{os.getpid()}.part")
                part.write_text(json.dumps(self.spent), encoding="utf-8")
                part.replace(self._file)

    def _add(self, *amounts: float) -> None:
        self.spent = {name: self.spent[name] + amount for name, amount in zip(COUNTED, amounts, strict=True)}

    def _read(self, file: Path) -> dict[str, float]:
        try:
            kept = json.loads(file.read_text(encoding="utf-8"))
            return {name: kept[name] + 0 for name in COUNTED}
        except (ValueError, KeyError, TypeError) as error:
            raise BudgetError(f"judge.spending {file}: cannot be read ({error}); mend it, or delete it to count from 0") from None
