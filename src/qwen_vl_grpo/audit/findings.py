"""All that an audit says of a run, gathered once, and what of it stands out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qwen_vl_grpo import registry
from qwen_vl_grpo.audit import figures, repeats, suspicion
from qwen_vl_grpo.audit import kept as keeping
from qwen_vl_grpo.audit.figures import Distribution, Habit, Together
from qwen_vl_grpo.audit.kept import Completions
from qwen_vl_grpo.audit.repeats import Repeats
from qwen_vl_grpo.audit.suspicion import Suspect
from qwen_vl_grpo.interfaces import RunCard
from qwen_vl_grpo.report import curves

STRONG = 0.5
"""A correlation from which on a reward is said to go with length, and below which it is said to have little to do with another measure."""
ALIKE = tuple(f"the judge's {name}" for name in ("official", "fidelity", "mmmg"))
"""Measures that should say the same as the reward."""
OFTEN = 0.02
"""A share of the completions from which on a habit that is paid stands out."""


@dataclass(frozen=True)
class Audit:
    """The run, and every table of its page."""

    card: RunCard
    folder: Path
    command: str
    written: str
    kept: Completions
    history: curves.History
    distributions: list[Distribution]
    lengths: list[Together]
    repeats: Repeats
    others: list[Together]
    habits: list[Habit]
    suspects: list[Suspect]
    high: int
    """Kept completions that earned much."""
    standing_out: list[str]


def gather(card: RunCard, folder: Path, ask: int = 0) -> Audit:
    """Read a run and put its reward to every test; raises the typed error of a judge that is to be asked again and cannot be."""
    kept = keeping.read(card, folder)
    seen = suspicion.look(kept)
    why = [suspicion.reasons(one, seen) for one in [*kept.rows, *kept.looked_at]]
    suspects, high = suspicion.most_suspicious(kept, why)
    lengths, others = figures.with_length(kept), figures.beside_others(kept)
    habits = figures.habits(kept, list(suspicion.RULES), why)
    return Audit(
        card=card,
        folder=folder,
        command=f"grpo audit {card.run_id}" + f" --ask {ask}" * bool(ask),
        written=registry.now(),
        kept=kept,
        history=curves.read(folder / "metrics.jsonl"),
        distributions=figures.distributions(kept),
        lengths=lengths,
        repeats=repeats.of(card, folder, kept, ask),
        others=others,
        habits=habits,
        suspects=suspects,
        high=high,
        standing_out=_standing_out(lengths, others, habits, len(kept.rows)),
    )


def _standing_out(lengths: list[Together], others: list[Together], habits: list[Habit], rows: int) -> list[str]:
    said = []
    for one in others:
        if one.table and one.table[1] > OFTEN * one.n:
            said.append(f"{one.table[1]} of {one.n} completions were paid well though {one.other} would not pay them")
        elif one.other in ALIKE and one.rho is not None and one.rho < STRONG:
            said.append(f"the reward has little to do with {one.other} (Spearman {one.rho:+.2f}, n {one.n})")
    for one in lengths:
        if one.rho is not None and abs(one.rho) >= STRONG:
            said.append(f"{one.ours} goes with the length of a completion (Spearman {one.rho:+.2f}, n {one.n})")
    for habit in habits:
        grows = habit.thirds[2] > OFTEN and habit.thirds[2] > 2 * habit.thirds[0]
        pays = habit.n > OFTEN * rows and habit.mean is not None and (habit.others is None or habit.mean >= habit.others)
        if grows or pays:
            how = " and ".join(["more at the end than at the beginning"] * grows + ["no less paid than others"] * pays)
            said.append(f"{habit.name}: {habit.n} of {rows} completions, {how}")
    return said
