"""A run to the Hub: its card, a page for people and its weights; what fails waits in a queue and fails no run."""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path

from qwen_vl_grpo import hardware, hub, index, model_card, registry
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import GrpoError, HubError, RegistryError
from qwen_vl_grpo.interfaces import RunCard
from qwen_vl_grpo.pulling import BESIDE, checked_files

log = logging.getLogger("qwen_vl_grpo")

SECRETS = re.compile(rb"\b(?:hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{30,})")
SECRET_VARIABLES = ("HF_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY")


def publish(card: RunCard, run_dir: Path, public: bool = False, tag: str | None = None) -> RunCard:
    """Put a run on the Hub and return its card with the address; raises RegistryError (no weights, another run's id) and HubError.

    Publishing the same run again brings its files up to date. Only what inference and comparison need goes: safetensors,
    settings, the card, the metrics; never an optimizer's state.
    """
    registry.checkpoint_folder(card, run_dir)
    registry.verify_files(card, run_dir)
    tag = tag or f"run/{card.run_id}"
    page = model_card.render(card, hub.repository() or "", tag)
    (run_dir / "README.md").write_text(page, encoding="utf-8")
    files: dict[str, Path | bytes] = {name: run_dir / name for name in card.checkpoint_files}
    files |= {name: (run_dir / name).read_bytes() for name in BESIDE if (run_dir / name).is_file()}  # metrics grow while they are sent
    files |= {"run.json": _public_card(card), "README.md": page.encode()}  # as bytes, too: TRL writes a README.md at every save
    checked_files(card.model_dump())
    _refuse_secrets(files)
    copy = hub.push(card.run_id, files, tag, public, lambda there: _same_run(there, card))
    return card.model_copy(update={"published": copy.record()})


def by_id(run_id: str, public: bool = False) -> RunCard:
    """Publish the run of an id and keep the address in its card; raises RegistryError, and HubError after which it waits in the queue."""
    card, run_dir = registry.resolve(run_id)
    if card.state == "running":
        killed = registry.as_seen(card, run_dir).state == "killed"
        what = "was killed; resume it (grpo train --resume) and publish it then" if killed else "is still running; wait for its end"
        raise RegistryError(f"run_id {run_id}: {what}")
    waiting = index.queue() / f"{card.run_id}.json"
    waiting.parent.mkdir(parents=True, exist_ok=True)
    waiting.write_text(json.dumps({"public": public}) + "\n", encoding="utf-8")  # first: a process that is killed leaves it waiting
    try:
        card = publish(card, run_dir, public)
    except RegistryError:
        waiting.unlink(missing_ok=True)
        raise
    registry.write(card, run_dir)
    waiting.unlink(missing_ok=True)
    return card


def pending() -> list[tuple[str, bool]]:
    """The runs that wait for the Hub, oldest first, and whether they may go to a public repository."""
    found = []
    for path in sorted(index.queue().glob("*.json"), key=lambda path: path.stat().st_mtime):
        try:
            public = json.loads(path.read_text(encoding="utf-8"))["public"] is True
        except (ValueError, KeyError, TypeError):  # half written by a process that was killed; its run still waits
            public = False
        found.append((path.stem, public))
    return found


def attempt(card: RunCard, public: bool) -> RunCard:
    """Publish a run that has just ended, from its main process; whatever fails is a warning and stays in the queue."""
    if not hardware.is_main_process():
        return card
    try:
        card = by_id(card.run_id, public)
        log.info("published: %s at %s", card.published["repo"], card.published["commit"][:12])
    except Exception as error:  # a run that is finished stays finished, whatever the Hub or its client does
        said = str(error) if isinstance(error, GrpoError) else f"{type(error).__name__}: {error}"
        log.warning("the run is finished and kept here, but not published: %s. Later: grpo publish %s", said, card.run_id)
    return card


def refuse(config: RunConfig) -> None:
    """Raise before a run what would keep it from being published at its end; a Hub that is away just now is no reason."""
    if config.registry.push == "none" or not hardware.is_main_process():
        return
    earlier = registry.read(config.run_dir) if (config.run_dir / "run.json").is_file() else None
    try:
        hub.check(config.run_id, config.registry.public, lambda there: earlier is not None and _same_run(there, earlier))
    except HubError as error:
        if not error.passing:
            raise
        log.warning("%s; the run starts all the same", error)


def _public_card(card: RunCard) -> bytes:
    return (card.model_dump_json(indent=2, exclude={"published"}) + "\n").encode()


def _same_run(there: bytes, card: RunCard) -> bool:
    """Whether a published card is an earlier state of this run."""
    try:
        other = json.loads(there)
        return (other["run_id"], other["created"], other["digest"]) == (card.run_id, card.created, card.digest)
    except (ValueError, KeyError, TypeError):
        return False


def _refuse_secrets(files: dict[str, Path | bytes]) -> None:
    """A config can carry anything that its writer put there, and the Hub keeps what it once got."""
    own = [value.encode() for name in SECRET_VARIABLES if len(value := os.environ.get(name, "")) >= 8]
    for name, content in files.items():
        if name.endswith(".safetensors"):
            continue
        text = content if isinstance(content, bytes) else content.read_bytes()
        if SECRETS.search(text) or any(value in text for value in own):
            raise RegistryError(f"{name}: holds a token or key, so the run was not published; take it out, since secrets belong in .env")
