"""Write the pages of docs/ that are made from the code, or check that they are fresh.

make docs                           # write them
python docs/generate.py --check     # exit 1 if one is stale
"""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "src"))

from qwen_vl_grpo import cli, config  # noqa: E402 - the line above makes it importable

NOTICE = "<!-- Made from the code by `make docs`; change the code instead. -->\n"


def configuration() -> str:
    """Every key of the run config: the text under each field is its documentation."""
    page = [
        "# Configuration",
        NOTICE,
        "One YAML file a run. The documented keys are flat; sections group the rest. An unknown key fails and the nearest one is named. "
        "`--set a.b=c` changes a key on the command line, and `--dry_run` prints the resolved config with its arithmetic.",
        "",
        "Secrets (`HF_TOKEN`, `WANDB_API_KEY`) come from the environment or from `.env`, never from this file.",
        "",
    ]
    sections = {name: field.annotation for name, field in config.RunConfig.model_fields.items()}
    classes = {node.name: node for node in ast.parse(inspect.getsource(config)).body if isinstance(node, ast.ClassDef)}
    page += ["## Flat keys", "", *table(classes["RunConfig"])]
    for name, annotation in sections.items():
        kind = getattr(annotation, "__name__", "")
        inner = next((part for part in getattr(annotation, "__args__", ()) if getattr(part, "__name__", "") in classes), None)
        section = kind if kind in classes else getattr(inner, "__name__", None)
        if section:
            page += ["", f"## `{name}:`" + (" (a list of these)" if section == "RewardEntry" else ""), "", *table(classes[section])]
    return "\n".join(page) + "\n"


def table(node: ast.ClassDef) -> list[str]:
    rows = ["| key | type | default | what it is |", "|---|---|---|---|"]
    for field, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            name = ast.unparse(field.target)
            text = " ".join(str(following.value.value).split())
            rows.append(
                f"| `{name}` | {kind(ast.unparse(field.annotation))} | {default(field.value)} | {text.replace('|', chr(92) + '|')} |"
            )
        elif isinstance(field, ast.AnnAssign) and ast.unparse(field.target) != "model_config":
            raise SystemExit(f"config.py: {node.name}.{ast.unparse(field.target)} has no text under it")
    return rows


def kind(annotation: str) -> str:
    if annotation.startswith("Annotated[str"):
        return "`str`"
    if annotation.startswith("Literal["):
        return "one of " + annotation.removeprefix("Literal[").replace("]", "").replace(" | ", " or ").replace("'", "`")
    return f"`{annotation}`".replace("|", "or")


def default(value: ast.expr | None) -> str:
    if value is None:
        return "required"
    if isinstance(value, ast.Call):
        given = next((keyword.value for keyword in value.keywords if keyword.arg == "default"), None)
        return f"`{ast.unparse(given)}`" if given is not None else ""
    return f"`{ast.unparse(value)}`" if ast.unparse(value) not in ("()", "{}") else "empty"


def commands() -> str:
    """What `--help` says of each command."""
    import typer.main
    from typer.testing import CliRunner

    page = ["# Commands", NOTICE, "`grpo VERB`, or the documented scripts: `src/fine_tuning/train.py` is `grpo train`, "]
    page[-1] += "`src/inference/inference.py` is `grpo infer`.\n"
    group = typer.main.get_command(cli.app)
    runner = CliRunner()
    for path in command_paths(group):
        shown = runner.invoke(cli.app, [*path, "--help"], prog_name="grpo", env={"TERMINAL_WIDTH": "100", "COLUMNS": "100"}).output
        page += [
            f"## `{' '.join(['grpo', *path])}`",
            "",
            "```text",
            "\n".join(line.rstrip() for line in shown.strip().splitlines()),
            "```",
            "",
        ]
    return "\n".join(page)


def command_paths(group: object, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    paths = [above] if above else []
    for name, command in sorted(getattr(group, "commands", {}).items()):
        paths += command_paths(command, (*above, name))
    return paths


PAGES = {"configuration.md": configuration, "commands.md": commands}


def main() -> None:
    stale = []
    for name, make in PAGES.items():
        path, text = DOCS / name, make()
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(f"docs/{name}")
    if stale:
        sys.exit(f"stale: {', '.join(stale)}; run `make docs`")


if __name__ == "__main__":
    main()
