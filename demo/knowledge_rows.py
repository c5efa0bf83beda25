"""Write prompts with knowledge graphs of our own, in MMMG's columns: 24 rows to train on and 12 of six configurations of the test set.

    train.json                                          {"0_preschool": {"Biology": [row, …]}, …}, as MMMG_Train keeps them
    preschool_Biology/test-00000-of-00001.parquet, …    as MMMG's repository keeps its configurations

The rows are for demonstrations and tests of the whole path; no one of them is the benchmark's.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import datasets

from qwen_vl_grpo.sections import LEVELS

TRAIN = """\
preschool Biology: how a chick hatches: egg, crack, chick: Causes(crack, chick); Contains(egg, chick)
preschool Biology: what a plant needs: seed, water, sunlight, flower: Requires(flower, water); Requires(flower, sunlight)
preschool Biology: parts of a flower: petal, stem, leaf, flower: Contains(flower, petal); Contains(flower, stem); Contains(flower, leaf)
preschool Biology: where a bird lives: nest, tree, bird: Contains(tree, nest); Contains(nest, bird)
preschool Math: two and one make three: two apples, one apple, three apples: Entails(two apples, three apples)
preschool Math: shapes with corners: triangle, square, three corners, four corners: Defines(three corners, triangle)
preschool Math: long and short: long pencil, short pencil, ruler: Requires(long pencil, ruler)
preschool Math: half of a pizza: pizza, cut, half: Causes(cut, half)
primaryschool Geography: the water cycle: sun, sea, vapour, cloud, rain: Causes(sun, vapour); TemporalOrder(cloud, rain)
primaryschool Geography: day and night: sun, earth, shadow, night side: Causes(shadow, night side); Contains(earth, night side)
primaryschool Geography: from a spring to the sea: spring, river, delta, sea: TemporalOrder(spring, river); TemporalOrder(river, delta)
primaryschool Geography: layers of the earth: crust, mantle, core: Contains(mantle, core); Contains(crust, mantle)
primaryschool Engineering: a lamp in a circuit: battery, wire, switch, lamp: Requires(lamp, battery); Contains(wire, switch)
primaryschool Engineering: how a lever lifts: lever, pivot, load, push: Causes(push, load); Requires(lever, pivot)
primaryschool Engineering: a windmill: wind, blade, axle, millstone: Causes(wind, blade); Causes(axle, millstone)
primaryschool Engineering: an arch bridge: arch, keystone, pillar, road: Contains(arch, keystone); Requires(road, arch)
highschool Chemistry: rust: iron, oxygen, moisture, rust: Causes(oxygen, rust); Requires(rust, moisture)
highschool Chemistry: an atom: nucleus, proton, neutron, electron: Contains(nucleus, proton); Contains(nucleus, neutron)
highschool Chemistry: distilling salt water: flask, flame, steam, pure water: Causes(flame, steam); TemporalOrder(steam, pure water)
highschool Chemistry: an acid meets a base: acid, base, salt, water: Causes(acid, salt); Entails(base, water)
highschool Economics: supply and demand: supply curve, demand curve, price, quantity: Defines(price, quantity); Causes(supply curve, price)
highschool Economics: the circular flow: household, firm, wage, good: TemporalOrder(firm, wage); TemporalOrder(wage, household)
highschool Economics: inflation: more money, rising price, shopping basket: Causes(more money, rising price)
highschool Economics: a loan: bank, borrower, interest, instalment: Requires(borrower, bank); Contains(instalment, interest)"""
TEST = """\
preschool Biology: how a frog grows up: spawn, tadpole, frog: TemporalOrder(spawn, tadpole); TemporalOrder(tadpole, frog)
preschool Biology: what a cow gives: cow, grass, milk: Requires(cow, grass); Causes(cow, milk)
preschool Math: counting to five: five stars, five fingers, hand: Contains(hand, five fingers); Entails(five stars, five fingers)
preschool Math: a circle and its middle: circle, middle point: Contains(circle, middle point)
primaryschool Geography: why there are seasons: sun, tilted axis, summer, winter: Causes(tilted axis, summer); Causes(tilted axis, winter)
primaryschool Geography: a volcano: magma, vent, crater, lava: Contains(vent, magma); TemporalOrder(magma, lava)
primaryschool Engineering: a pulley: rope, wheel, weight, pull: Causes(pull, weight); Requires(rope, wheel)
primaryschool Engineering: a bicycle's drive: pedal, chain, rear wheel: Causes(pedal, chain); Causes(chain, rear wheel)
highschool Chemistry: electrolysis of water: battery, electrode, hydrogen, oxygen: Causes(battery, hydrogen); Causes(battery, oxygen)
highschool Chemistry: burning a candle: wax, wick, flame, smoke: Requires(flame, wax); Contains(wax, wick)
highschool Economics: comparative advantage: two countries, wine, cloth, trade: Entails(trade, wine); Entails(trade, cloth)
highschool Economics: a tax on cigarettes: tax, price, fewer buyers: Causes(tax, price); Causes(price, fewer buyers)"""
COLUMNS = datasets.Features({name: datasets.Value("string") for name in ("key", "Education", "prompt", "Annotation", "Knowledge_Graph")})
"""Columns of MMMGBench/MMMG that its code reads (commit 98bb915), and `prompt`."""


def write(folder: Path) -> dict[str, int]:
    """Write both sets into one folder; returns rows by split."""
    folder.mkdir(parents=True, exist_ok=True)
    train: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for level, discipline, row in topics(TRAIN):
        train[f"{LEVELS.index(level)}_{level}"][discipline].append(
            {
                "key": row["key"],
                "question": row["prompt"],
                "Key Knowledge": row["Annotation"],
                "Visual Components": row["graph"],
                "img_path": f"{row['key']}.png",
            }
        )
    (folder / "train.json").write_text(json.dumps(train, indent=1), encoding="utf-8")
    test: dict[str, list[dict[str, str]]] = defaultdict(list)
    for level, discipline, row in topics(TEST):
        graph = json.dumps(row.pop("graph"))
        test[f"{level}_{discipline}"].append(row | {"Education": level, "Knowledge_Graph": graph})
    for name, held in test.items():
        (folder / name).mkdir(exist_ok=True)
        datasets.Dataset.from_list(held, features=COLUMNS).to_parquet(folder / name / "test-00000-of-00001.parquet")
    return {"train": sum(map(len, (rows for level in train.values() for rows in level.values()))), "test": sum(map(len, test.values()))}


def topics(lines: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Level, discipline, and a row with key, prompt, Annotation and graph, of each line."""
    made = []
    for number, line in enumerate(lines.splitlines()):
        place, topic, elements, dependencies = line.split(": ")
        level, discipline = place.split()
        graph = {"elements": elements.split(", "), "dependencies": dependencies.split("; ")}
        annotation = f"The picture explains {topic}: " + "; ".join(graph["dependencies"]) + "."
        row = {"key": f"{level}_{discipline}_{number}", "prompt": f"Draw a diagram that explains {topic}.", "Annotation": annotation}
        made.append((level, discipline, row | {"graph": graph}))
    return made
