"""Frozen weights from a folder or the Hub, with refusals that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qwen_vl_grpo import hub
from qwen_vl_grpo.errors import GrpoError, briefly


def check(key: str, model: str, first: str, revision: str | None, error: type[GrpoError]) -> Path:
    """Find a model's first file before gigabytes are asked for; raises `error` if it cannot be had."""
    if Path(model).is_dir():
        if not (Path(model) / first).is_file():
            raise error(f"{key} {model}: the folder holds no {first}")
        return Path(model) / first
    if model.count("/") != 1 or model.startswith((".", "/")):
        raise error(f"{key} {model}: there is no such folder here; name a folder, or a Hub id such as OWNER/NAME")
    from huggingface_hub import hf_hub_download

    with loading(key, model, error):
        return Path(hf_hub_download(model, first, revision=revision))


@contextmanager
def loading(key: str, model: str, error: type[GrpoError]) -> Iterator[None]:
    """Turn what the libraries raise while a model is found and read into `error`; a gated model's page is named."""
    try:
        yield
    except (OSError, ValueError, ImportError, RuntimeError) as cause:
        reason = hub.denied(cause, model)
        raise error(f"{key} {model}: {reason or f'cannot be loaded ({briefly(cause)})'}") from None
