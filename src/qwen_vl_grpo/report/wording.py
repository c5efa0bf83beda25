"""How figures are written in every form of a comparison."""

from __future__ import annotations

from qwen_vl_grpo.report.tables import Score

NOTHING = "–"  # noqa: RUF001 - a dash where there is no figure


def share(value: float | None, interval: tuple[float, float] | None = None, signed: bool = False) -> str:
    """A share with three decimals, and its interval in brackets if there is one."""
    if value is None:
        return NOTHING
    form = "+.3f" if signed else ".3f"
    return f"{value:{form}}" + (f" [{interval[0]:{form}}, {interval[1]:{form}}]" if interval else "")


def pair(values: tuple[float | None, float | None]) -> str:
    return NOTHING if values == (None, None) else f"{share(values[0])} → {share(values[1])}"


def figure(value: float | str | None) -> str:
    """A number with four digits that count, thousands apart; text as it is."""
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def row(score: Score) -> dict[str, str]:
    """A score as the cells of a table."""
    return {
        "run": score.run.id,
        "name": score.name,
        "rows": figure(score.rows),
        "n": figure(score.n),
        "before": share(score.before, score.before_interval),
        "after": share(score.after, score.after_interval),
        "gain": share(score.gain, score.gain_interval, signed=True),
        "form": pair(score.form),
        "official": pair(score.official),
    }
