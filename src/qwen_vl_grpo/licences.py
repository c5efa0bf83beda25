"""What the licences of the known bases and data sets allow, as public summaries of November 2026 tell it.

The Hub's own pages were not read for it, and what they say is what counts: a published page links the base that it names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Licence:
    """`spdx` is the Hub's word for it (`other` with a `name`), `allows` one sentence for people."""

    spdx: str
    name: str
    allows: str


APACHE = Licence("apache-2.0", "Apache 2.0", "Commercial use is allowed.")
RESEARCH = Licence("other", "qwen-research", "**Not for commercial use** (Qwen Research License Agreement).")
QWEN = Licence("other", "qwen", "Commercial use is allowed below 100 million monthly users (Qwen License Agreement).")

BASES: tuple[tuple[str, Licence], ...] = (
    (r"Qwen/Qwen2\.5-VL-3B-.*", RESEARCH),
    (r"Qwen/Qwen2\.5-VL-72B-.*", QWEN),
    (r"Qwen/Qwen2\.5-VL-(7|32)B-.*", APACHE),
    (r"Qwen/Qwen2-VL-72B.*", Licence("other", "tongyi-qianwen", QWEN.allows)),
    (r"Qwen/Qwen2-VL-(2|7)B.*", APACHE),
    (r"Qwen/Qwen3-VL-.*", APACHE),
)
DATASETS: tuple[tuple[str, Licence], ...] = (
    (r"AI4Math/MathVista", Licence("cc-by-sa-4.0", "CC BY-SA 4.0", "Its pictures have licences of their own.")),
    (r".*Complex-Edit.*", Licence("other", "Complex-Edit", "**Not for commercial use.**")),
)


def of_base(name: str) -> Licence | None:
    """The licence of a base model by its Hub id; None if it is not known here."""
    return _find(name, BASES)


def of_dataset(name: str) -> Licence | None:
    """The licence of a data set by its Hub id; None if it is not known here."""
    return _find(name, DATASETS)


def of_run(base: str, dataset: str) -> dict[str, str]:
    """What a card states: base and data -> the licence and what it allows, in words."""
    found = {"base": of_base(base), "data": of_dataset(dataset)}
    return {
        what: f"{licence.name}. {licence.allows.replace('*', '')}" if licence else "not known to qwen-vl-grpo; look at its page"
        for what, licence in found.items()
    }


def _find(name: str, known: tuple[tuple[str, Licence], ...]) -> Licence | None:
    return next((licence for pattern, licence in known if re.fullmatch(pattern, name)), None)
