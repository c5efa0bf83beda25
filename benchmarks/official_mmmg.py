"""Runs MMMG's published scoring code on made-up answers of a judge, and writes what it says to tests/fixtures/mmmg_scores.jsonl.

    git clone https://github.com/MMMGBench/MMMG.git CHECKOUT && git -C CHECKOUT checkout 98bb915
    pip install networkx==3.4.2 scipy scikit-learn matplotlib datasets pillow tqdm      # the networkx that MMMG names
    python benchmarks/official_mmmg.py CHECKOUT

The code is run where it lies and none of it is copied: `parse_output_to_checklist` of utils/stat_knowledge.py reads an answer, and
`process_data` of step3_stat.py scores it, with a school level for each row so that no row is averaged with another.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parents[1] / "tests/fixtures/mmmg_scores.jsonl"
ROWS, SEED = 160, 8
NAMES: tuple[str, ...] = (
    "water", "water vapour", "Water Cycle", "sun", "Sunlight", "cloud", "rain cloud", "leaf", "green leaf", "root", "CO₂", "O2",
    "boiler", "steam turbine", "turbine", "generator", "supply curve", "demand curve", "price (equilibrium)", "axis: time", "E = mc^2",
    "Julius Caesar", "senate", "the crossing of the Rubicon", "a+b", "slope", "y-intercept", "DNA", "mRNA", "ribosome", "protein chain",
)  # fmt: skip
RELATIONS = ("Causes", "Requires", "Entails", "Defines", "Contains", "TemporalOrder", "causes", "Resembles")
YES, NO = ("yes", "Yes", "YES", "[yes]"), ("no", "No", "NO", "[no]")


def main() -> None:
    """Write a line about the run, then a line for each answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="folder of MMMGBench/MMMG")
    checkout = parser.parse_args().checkout.resolve()
    sys.path[:0] = [str(checkout / "mmmg_eval"), str(checkout / "mmmg_eval/utils")]
    reading, scoring = importlib.import_module("stat_knowledge"), importlib.import_module("step3_stat")
    chance = random.Random(SEED)
    rows = [made(chance) for _ in range(ROWS)]
    for number, row in enumerate(rows):
        row["read"] = reading.parse_output_to_checklist(str(number), row["answer"], row["elements"], row["dependencies"])
        del row["read"]["key"]
    for row, scores in zip(rows, published(scoring, rows), strict=True):
        row |= scores
    commit = subprocess.run(["git", "-C", checkout, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    head = {"scorer": "MMMGBench/MMMG, mmmg_eval/utils/stat_knowledge.py and step3_stat.py", "commit": commit}
    head |= {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in ("networkx", "scipy")}
    head |= {"how": f"benchmarks/official_mmmg.py; graphs and answers are made up, seed {SEED}"}
    OUT.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in [head, *rows]), encoding="utf-8")


def published(scoring: Any, rows: list[dict[str, Any]]) -> list[dict[str, float]]:
    """What the published code makes of each row: fidelity, Jaccard overlaps and the MMMG-Score."""
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        verdicts = {f"level{number}": {f"{number}_Any": {"result": row["read"]}} for number, row in enumerate(rows)}
        counts = {f"{number}_Any": {"region_count": row["regions"]} for number, row in enumerate(rows) if row["regions"] is not None}
        for name, held in (("verdicts", verdicts), ("counts", counts)):
            Path(folder, f"{name}.json").write_text(json.dumps(held), encoding="utf-8")
        scoring.process_data(f"{folder}/counts.json", f"{folder}/verdicts.json", None)
        said = json.loads(Path(folder, "verdicts_recaptioned.json").read_text(encoding="utf-8"))["Details"]
    each = [said[f"level{number}"]["Any"] for number in range(len(rows))]
    return [{"ged": one["GED"], "score": one["K-score(w)"]} for one in each]


def made(chance: random.Random) -> dict[str, Any]:
    """A graph, an answer about it in one of the ways that judges answer, and how many regions the picture has."""
    elements: list[str] = chance.sample(NAMES, chance.randint(2, 10))
    dependencies = list(dict.fromkeys(dependency(chance, elements) for _ in range(chance.randint(0, 9))))
    regions = chance.choice([None, 0, 12, 69, 70, 71, 88, 115, 159, 160, 161, 400])
    return {"elements": elements, "dependencies": dependencies, "answer": answer(chance, elements, dependencies), "regions": regions}


def dependency(chance: random.Random, elements: list[str]) -> str:
    """Mostly well written; some with an end that is only nearly an element or none, `change(...)`, or a bracket lost.

    The ends are two names: of a lone element that causes itself networkx 3.4 loses the edge, and later ones do not.
    """

    def end(name: str) -> str:
        name = chance.choice([name, name, name, name.upper(), name.split()[0], f"the {name}"])
        return f"change({name})" if chance.random() < 0.15 else name

    one, other, third = chance.sample(list(dict.fromkeys([*elements, *chance.sample(NAMES, 3)])), 3)
    text = f"{chance.choice(RELATIONS)}({end(one)}, {end(other)})"
    return text[:-1] if chance.random() < 0.04 else f"{text[:-1]}, {end(third)})" if chance.random() < 0.04 else text


def answer(chance: random.Random, elements: list[str], dependencies: list[str]) -> str:
    """One in ten is no list at all; the rest leave lines out, say things twice, and decorate them in many ways."""
    if chance.random() < 0.1:
        return chance.choice(
            [
                "",
                "I am sorry, I cannot judge this picture.",
                '{"description": "a wh',
                f"The picture shows {elements[0]}, yes.",
                "yes\nno\nyes",
            ]
        )
    kind, share = chance.randrange(9), chance.choice([0.1, 0.5, 0.7, 0.9, 1.0])
    lines = ["**Image Description:**", f"A diagram with the words {chance.choice(NAMES)}: yes", "** Element Evaluation: **"]
    items = [*elements, *dependencies]
    if chance.random() < 0.3:
        chance.shuffle(items)
    for number, item in enumerate(items, 1):
        if chance.random() < 0.08:
            continue
        item = chance.choice([item] * 8 + [item.lower(), item.upper(), chance.choice(NAMES)])
        said = chance.choice([YES[0], *YES] if chance.random() < share else [NO[0], *NO, "n", "unclear"])
        reason = chance.choice(["", "", " Clearly drawn.", " - there is an arrow", f" because {chance.choice(NAMES)}: no"])
        decorated = {
            0: f"*   {item}: {said}{reason}", 1: f"* **{item}**: {said}{reason}", 2: f"{number}. {item}: {said}", 3: f"- `{item}`: {said}",
            4: f"• {item}\uff1a{said}", 5: f"  {item} : {said}{reason}", 6: f"*   [{item}]: {said}", 7: f"* **{item}: {said}**",
            8: f"* {item} - {said}",
        }  # fmt: skip
        lines.append(decorated[kind if chance.random() < 0.9 else chance.randrange(9)])
        if chance.random() < 0.05:
            lines.append(f"* {item}: {chance.choice(['yes', 'no'])}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
