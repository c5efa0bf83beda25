"""Is a run's reward believable? One HTML page of what it kept: what was paid, for what else it may have been, and what nobody can tell.

From the run's folder alone, and the cache of judgements where a judge looks at pictures; what a run did not keep is said.
"""

from __future__ import annotations

from pathlib import Path

from qwen_vl_grpo import registry
from qwen_vl_grpo.errors import RegistryError


def audit(run_id: str, output: Path | None = None, ask: int = 0) -> tuple[Path, list[str]]:
    """Write the page of a run (audit.html in its folder if no other file is named), and return where it is and what stands out.

    `ask` puts each of a few kept pictures to the judge so many times. Raises RegistryError for an unknown run and a file that cannot be
    written, and the typed error of a judge that is to be asked and cannot be.
    """
    card, folder = registry.resolve(run_id)
    from qwen_vl_grpo.audit import findings, page  # a refusal needs none of this

    told = findings.gather(card, folder, ask)
    file = output or folder / "audit.html"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page.page(told), encoding="utf-8")
    except OSError as error:
        raise RegistryError(f"{file}: the audit cannot be written there ({error.strerror}); choose another --output") from None
    return file, told.standing_out
