"""`grpo publish`: runs to the Hub, and the proof that what lies there is the policy that was trained."""

from __future__ import annotations

from typing import Annotated

import typer

from qwen_vl_grpo.cli_flags import Debug
from qwen_vl_grpo.errors import ConfigError, GrpoError, HubError, RegistryError


def publish(
    run_id: Annotated[str | None, typer.Argument(help="The run to publish.")] = None,
    pending: Annotated[bool, typer.Option("--pending", help="Publish every run that waits because the Hub failed.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Publish nothing: let a clean process bring the run from the Hub and answer again.")
    ] = False,
    public: Annotated[bool, typer.Option("--public", help="Publish even if anyone can read the repository.")] = False,
    debug: Debug = False,
) -> None:
    """Put a run into the repository of HF_REGISTRY_REPO, where every node finds it by its run_id."""
    if (run_id is None) != pending or (verify and run_id is None):
        raise ConfigError("grpo publish: name one run, or say --pending")
    if verify:
        print(_verified(str(run_id)))
        return
    from qwen_vl_grpo import publishing

    waiting = publishing.pending() if run_id is None else [(run_id, public)]
    failed = []
    for name, anyone in waiting:
        try:
            where = publishing.by_id(name, public or anyone).published
            print(f"{name}: published in {where['repo']} at {where['commit']}")
        except GrpoError as error:
            if run_id is not None:
                raise
            failed.append(str(error))
    if failed:
        raise HubError(f"{len(failed)} of {len(waiting)} runs still wait: {'; '.join(failed)}")
    if not waiting:
        print("no run waits for the Hub")


def _verified(name: str) -> str:
    """Ask the copy on the Hub what the policy was asked when it was trained; the verdict goes into the card here."""
    import tempfile
    from pathlib import Path

    from qwen_vl_grpo import hardware, pulling, registry

    card, run_dir = registry.resolve(name)
    hardware.quiet_libraries()
    from qwen_vl_grpo import proof

    with tempfile.TemporaryDirectory() as clean:
        copy = pulling.pull(card.run_id, Path(clean) / "hub")
        if copy is None:
            raise RegistryError(f"run_id {card.run_id}: the Hub has no whole copy of it; run `grpo publish {card.run_id}` first")
        verdict = proof.verify(registry.read(copy), copy.parent, {"HF_HOME": f"{clean}/cache"})
    proof.keep(verdict | {"copy": "Hub"}, run_dir)
    if verdict["state"] != "proved":
        raise RegistryError(verdict["text"])
    return f"{verdict['text']} (brought from the Hub)"
