"""What the text of an answer stands for: words, a number with its unit, a list, or an expression in LaTeX.

A number is read exactly (no float), so 3.7 is never 3 and 1/3 is never 0.333333. Only a text that is one value and
nothing else has a value: "12 or 13", "about 12" and "12 thousand" have none, so hedging earns nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Any

_UNITS = """
mm millimeter millimeters millimetre millimetres|cm centimeter centimeters centimetre centimetres 厘米|dm|m meter meters metre metres 米
km kilometer kilometers kilometre kilometres|in inch inches|ft foot feet|yd yard yards|mi mile miles|海里|mm2|cm2|m2|km2|mm3|cm3|m3
mg|g gram grams|kg kilogram kilograms|lb lbs pound pounds|oz ounce ounces|ml|l liter liters litre litres
ms|s sec secs second seconds|min mins minute minutes|h hr hrs hour hours|day days|week weeks|month months|year years yr yrs
° deg degree degrees|rad radian radians|°c|°f|% percent|usd dollar dollars|eur euro euros|cent cents
n newton newtons|j joule joules|kj|w watt watts|kw|v volt volts|hz|khz|mhz|pa|kpa|mol|mph|m/s|km/h|unit units
"""
UNITS = {name: names.split()[0] for names in re.split(r"[|\n]", _UNITS.strip()) for name in names.split()}
"""Every spelling of a unit that an answer may carry -> the unit. Any other word after a number makes it a text."""

_SPELLINGS = [
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"\\(?:text|mathrm|textbf|mathbf)\s?\{([^{}]*)\}", r"\1"), (r"\\left\b|\\right\b|\\!", ""), (r"\\[,;: ]|~", " "),
        (r"\s?\*?\s?(?:\^\s?\{\s?\\circ\s?\}|\^\s?\\circ|\\degree)", "°"), (r"\\%", "%"), (r"\\\$", "$"), (r"\{,\}", ","),
        ("[\u2212\u2013]", "-"), ("√", r"\\sqrt "), ("π", r"\\pi "), ("\u00d7", r"\\times "), (r"\\[dt]frac", r"\\frac"),
    )
]  # fmt: skip
_WRAPPERS = [
    re.compile(pattern)
    for pattern in (
        r"\$([^$]+)\$", r"\$\$([^$]+)\$\$", r"\\\((.*)\\\)", r"\\\[(.*)\\\]", r"\\boxed\s?\{(.*)\}", r"\*\*((?:(?!\*\*).)+)\*\*",
        "`([^`]+)`", '"([^"]+)"', "'([^']+)'", r"(?i:(?:the )?(?:final |correct )?answer(?: is|\s?:))\s?(.+)", r"[xyz]\s?=\s?([^=]+)",
    )
]  # fmt: skip
_NUMBER = r"[+-]?(?:\d{1,3}(?:,\d{3})+(?:\.\d{0,40})?|\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][+-]?\d{1,2})?"
_RATIO = re.compile(rf"({_NUMBER})(?:\s?/\s?({_NUMBER}))?", re.ASCII)
_WRITTEN_OUT = re.compile(
    rf"[+-]?\d*\s?\\frac\s?(?:\{{{_NUMBER}\}}|\d)\s?(?:\{{{_NUMBER}\}}|\d)"
    rf"|(?:{_NUMBER}\s?(?:\\times|\\cdot|\*)\s*)?10\s?\^\s?(?:\{{\d+\}}|\d+)",
    re.ASCII,
)
"""A rational number in LaTeX that is worked out: a fraction, a mixed one, a power of ten."""
_WITH_UNIT = re.compile(r"(.*?)[\s*]*([^\W\d_]+(?:/[a-z])?(?:\^?[23²³])?|°\s?[CcFf]?|%)")
_EXPRESSION = re.compile(
    r"(?:\\(?:frac|sqrt|pi|cdot|times)(?![A-Za-z])|(?<![A-Za-z])[A-Za-z](?![A-Za-z])|[\d.+\-*/(){}\s]"
    r"|(?<=\w)\^(?:\{\d{1,2}\}|\d{1,2})(?![\d\s]*\^)(?!\d))+",
    re.ASCII,
)


def tidy(text: str) -> str:
    """Take off what a text is wrapped in ($…$, \\boxed{…}, **…**, "the answer is …") and write LaTeX's signs in one way."""
    text = " ".join(text.split())
    before = None
    while text != before and len(text) <= 500:  # what is longer is no answer, and not worth the time
        before = text
        for pattern, spelling in _SPELLINGS:
            text = pattern.sub(spelling, text)
        text = text.strip().removesuffix(".").strip()
        unwrapped = (match.group(1).strip() for wrapper in _WRAPPERS if (match := wrapper.fullmatch(text)))
        text = next(unwrapped, text)
    return text


def plain(text: str) -> str:
    """The words of a text without what does not change their meaning: case, spaces, wrapping."""
    return re.sub(r"\s*([^\w\s])\s*", r"\1", " ".join(tidy(text).casefold().split()))


def same_value(given: str, gold: str, precision: int | None = None, unit: str | None = None) -> bool:
    """Say whether two texts are equal as words, numbers, lists or expressions.

    Numbers are equal to the last digit, or with a `precision` to half a unit of that decimal place (MathVista rounds
    there). "6 \\times 7" is no number: a sum or product that is not worked out is the question handed back. Units are equal
    or left out; a percentage may be given as a share. Lists are equal item by item.
    """
    if plain(given) == plain(gold):
        return plain(gold) != ""
    given, gold = tidy(given), tidy(gold)
    if gold.startswith("[") and gold.endswith("]"):
        ours, theirs = _items(given), _items(gold)
        return len(ours) == len(theirs) and all(same_value(*pair, precision) for pair in zip(ours, theirs, strict=True))
    units = UNITS if unit is None else {unit.casefold(): unit.casefold()} | UNITS
    given, given_unit = _without_unit(given, units)
    gold, gold_unit = _without_unit(gold, units)
    gold_unit = gold_unit or (units[unit.casefold()] if unit else None)
    if given_unit and gold_unit and given_unit != gold_unit:
        return False
    allowed = Fraction(1, 2 * 10**precision) if precision is not None else Fraction(0)
    number, gold_number = _number(given), _number(gold)
    if number is None or gold_number is None:
        formulas = all(value is not None or re.search(r"[\\^*]", text) for value, text in ((number, given), (gold_number, gold)))
        unsolved = gold_number is not None and _is_unsolved(given)
        return formulas and not unsolved and _same_expression(given, gold, float(allowed))
    readings = [number]
    if given_unit == "%" and gold_unit is None:
        readings.append(number / 100)
    if gold_unit == "%" and given_unit is None:
        readings.append(number * 100)
    return any(abs(reading - gold_number) <= allowed for reading in readings)


def _without_unit(text: str, units: Mapping[str, str]) -> tuple[str, str | None]:
    text = re.sub(r"^([+-]?)\s?[$€£¥]\s?(?=[\d.])", r"\1", text)
    match = _WITH_UNIT.fullmatch(text)
    if match is None:
        return text, None
    name = match.group(2).casefold().replace(" ", "").replace("^", "").replace("²", "2").replace("³", "3")
    return (match.group(1), units[name]) if name in units else (text, None)


def _number(text: str) -> Fraction | None:
    match = _RATIO.fullmatch(text)
    if match is None:
        return None
    above, below = (Fraction(part.replace(",", "")) if part else Fraction(1) for part in match.groups())
    return above / below if below else None


def _items(text: str) -> list[str]:
    return (text[1:-1] if text[:1] + text[-1:] in ("[]", "()") else text).split(",")


def _same_expression(given: str, gold: str, allowed: float) -> bool:
    """Compare two formulas: by value, or term by term where they hold letters. (math-verify itself rounds to six digits.)"""
    ours, theirs = _expression(given), _expression(gold)
    if ours is None or theirs is None:
        return False
    if ours.free_symbols or theirs.free_symbols:
        return ours.free_symbols == theirs.free_symbols and (ours - theirs).expand() == 0
    gap = abs(ours.evalf(30) - theirs.evalf(30))
    return bool(gap.is_finite and gap <= max(allowed, 1e-12))


def _is_unsolved(text: str) -> bool:
    """Whether a formula comes to a rational number that it does not say."""
    value = _expression(text)
    return value is not None and value.is_rational is True and not _WRITTEN_OUT.fullmatch(text)


def _depth(text: str) -> int:
    """How deep the brackets of a formula are nested; the parser's time is exponential in it."""
    steps = accumulate((character in "({") - (character in ")}") for character in text)
    return max(steps, default=0)


@lru_cache(maxsize=4096)
def _expression(text: str) -> Any:
    """What math-verify reads in one short formula, a sympy expression; None if it is something else.

    The grammar is so small (60 characters, brackets three deep, no power of a power, no sum over a range) that no answer
    keeps the parser or sympy busy. math-verify's own time limit is an alarm signal, which works in the main thread alone.
    """
    if len(text) > 60 or not _EXPRESSION.fullmatch(text) or _depth(text) > 3:
        return None
    import math_verify
    import sympy

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it has no time limit
    latex = [math_verify.LatexExtractionConfig()]
    found = math_verify.parse(f"${text}$", extraction_config=latex, fallback_mode="no_fallback", parsing_timeout=None)  # type: ignore[arg-type]
    return found[0] if found and isinstance(found[0], sympy.Expr) else None
