"""Knowledge graphs of MMMG: what a picture must show, and what a judge's yes and no about it come to.

A graph is elements ("water vapour") and dependencies between two of them ("Causes(heat, water vapour)"). The reward is the Dice overlap
of what was seen with what was asked for. The benchmark's own fidelity stands beside it (MMMGBench/MMMG, commit 98bb915,
mmmg_eval/step3_stat.py; arXiv 2506.10963) and is no reward: it compares graphs without their labels, by the first guess of a search that
depends on the order of the nodes. tests/fixtures/mmmg_scores.jsonl holds numbers of the published code.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qwen_vl_grpo.errors import DataError

MADE_UP = ("accordion", "bowling pin", "chess clock", "deckchair", "fire hydrant", "garden gnome", "harmonica", "roller skate", "teapot")
"""Decoys where no other graph offers any: things that no diagram of school knowledge shows by accident."""
WHOLE, UNREADABLE = 70, 160
"""Regions of a picture up to which it is wholly readable, and from which on it is not at all (step3_stat.py)."""


@dataclass(frozen=True)
class Dependency:
    """One dependency as the data set writes it; `ends` are its two elements, None where it has a `fault`."""

    text: str
    ends: tuple[str, str] | None = None
    fault: str = ""


@dataclass(frozen=True)
class KnowledgeGraph:
    """What a picture must show, and decoys that it must not; all as the data set spells them, each once."""

    elements: tuple[str, ...]
    dependencies: tuple[Dependency, ...] = ()
    decoys: tuple[str, ...] = ()

    @property
    def faults(self) -> list[str]:
        """What is wrong with dependencies that cannot be earned, a sentence each."""
        return [dependency.fault for dependency in self.dependencies if dependency.fault]

    @property
    def sound(self) -> list[Dependency]:
        """The dependencies whose two ends are elements of the graph: the ones that can be earned."""
        return [dependency for dependency in self.dependencies if dependency.ends]

    def to_json(self) -> str:
        """The graph as `read` takes it."""
        texts = [dependency.text for dependency in self.dependencies]
        return json.dumps({"elements": self.elements, "dependencies": texts, "decoys": self.decoys}, ensure_ascii=False)


def read(graph: str | Mapping[str, Any]) -> KnowledgeGraph:
    """Read {"elements": [text], "dependencies": ["Relation(a, b)"], "decoys": [text]}, or the same in JSON.

    A dependency that cannot be read stays in the graph with its fault, for the published score asks for it, too. Raises DataError for
    what is no such object, or has no element.
    """
    try:
        held = json.loads(graph) if isinstance(graph, str) else graph
    except ValueError as error:
        raise DataError(f"its knowledge graph is no JSON ({error}): {str(graph)[:80]!r}") from None
    if not isinstance(held, Mapping):
        raise DataError(f"its knowledge graph is {str(held)[:80]!r}; it must be an object with elements and dependencies")
    elements = _texts(held, "elements")
    if not elements:
        raise DataError("its knowledge graph has no elements; there is nothing that a picture must show")
    known = {element.lower() for element in elements}
    decoys = [decoy for decoy in _texts(held, "decoys") if decoy.lower() not in known]
    dependencies = [_dependency(text, elements) for text in _texts(held, "dependencies")]
    return KnowledgeGraph(tuple(elements), tuple(dependencies), tuple(decoys))


def with_decoys(graph: KnowledgeGraph, others: Iterable[str], count: int, seed: int) -> KnowledgeGraph:
    """The graph with `count` decoys: elements of other graphs that share no word with it, then made-up ones; the same for a seed."""
    words = {word for text in (*graph.elements, *(item.text for item in graph.dependencies)) for word in _words(text)}
    chance = random.Random(f"{seed}:{graph.elements}")
    foreign = sorted({text for text in others if not _words(text) & words})
    made_up = [text for text in MADE_UP if not _words(text) & words and text not in foreign]
    drawn = chance.sample(foreign, min(count, len(foreign)))
    drawn += chance.sample(made_up, min(count - len(drawn), len(made_up)))
    return replace(graph, decoys=tuple(drawn))


def dice(graph: KnowledgeGraph, seen: Mapping[str, bool]) -> float:
    """2 |seen| / (|seen| + |asked for|) over elements and dependencies; `seen` says yes or no of each text.

    A dependency counts as seen only if both of its ends are. One with a fault cannot be seen, and is not asked for.
    """
    elements = sum(seen[element] for element in graph.elements)
    dependencies = sum(seen[item.text] and all(seen[end] for end in item.ends or ()) for item in graph.sound)
    asked = len(graph.elements) + len(graph.sound)
    return 2 * (elements + dependencies) / (elements + dependencies + asked)


def fidelity(elements: Mapping[str, bool], dependencies: Mapping[str, bool]) -> float:
    """MMMG's knowledge fidelity, 1 - GED / (nodes and edges of both graphs), from 0 to 1, as the published code computes it.

    GED is the first value of networkx.optimize_graph_edit_distance between the whole graph and the one that was seen: an upper bound
    of the distance between graphs without labels.
    """
    import networkx  # 0.3 s, and reading rows needs none of it

    whole = _published_graph(dict.fromkeys(elements, True), dict.fromkeys(dependencies, True))
    drawn = _published_graph(elements, dependencies)
    size = sum(graph.number_of_nodes() + graph.number_of_edges() for graph in (whole, drawn))
    if not size:
        return 0.0
    return 1 - next(networkx.optimize_graph_edit_distance(whole, drawn), 0) / size


def readability(regions: int | None) -> float | None:
    """MMMG's readability of a picture with so many regions: 1 up to 70, 0 from 160 on, a line between them.

    None for no count. The published code takes a missing count for 0 regions, and so for a perfectly readable picture.
    """
    return None if regions is None else min(1.0, max(0.0, (UNREADABLE - regions) / (UNREADABLE - WHOLE)))


def _texts(held: Mapping[str, Any], name: str) -> list[str]:
    """The texts under a name, each once whatever its case; raises DataError for anything else."""
    texts = held.get(name) or []
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) and text.strip() for text in texts):
        raise DataError(f"its knowledge graph holds {name} {str(texts)[:80]!r}; give a list of texts")
    kept: dict[str, str] = {}
    for text in texts:
        kept.setdefault(text.strip().lower(), text.strip())
    return list(kept.values())


def _words(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text.lower()) if len(word) > 2}


def _dependency(text: str, elements: Sequence[str]) -> Dependency:
    """Read "Relation(a, b)", the closing bracket or the space after the comma lost, an end wrapped as change(a), or with commas in it."""
    call = re.fullmatch(r"\s*[\w ]+\((.*?)\)?\s*", text, re.DOTALL)
    if not call:
        return Dependency(text, fault=f"dependency {text!r} is not written as Relation(a, b)")
    commas = [match.start() for match in re.finditer(",", call[1])]
    if not commas:
        return Dependency(text, fault=f"dependency {text!r} has one end, and not two")
    names = {element.lower(): element for element in elements}
    pairs = [(_bare(call[1][:comma]), _bare(call[1][comma + 1 :])) for comma in commas]
    for exact in (True, False):
        for pair in pairs:
            start, end = (_node(name, names) if name in names or (name and not exact) else None for name in pair)
            if start and end and start != end:
                return Dependency(text, (names[start], names[end]))
    unknown = [name for name in pairs[0] if not name or not _node(name, names)]
    fault = (
        f"the end {unknown[0]!r}, which is no element of the graph, or could be several" if unknown else "one element for both of its ends"
    )
    return Dependency(text, fault=f"dependency {text!r} has {fault}")


def _bare(end: str) -> str:
    end = end.strip().lower()
    wrapped = re.fullmatch(r"change\s*\((.*?)\)?", end)
    return (wrapped[1] if wrapped else end).strip()


def _node(name: str, nodes: Iterable[str]) -> str | None:
    """The node of that name, else the only one that it is a part of or that, being of several words, it contains (MMMG's rule)."""
    nodes = list(nodes)
    if name in nodes:
        return name
    near = [node for node in nodes if name in node] + [node for node in nodes if node in name and " " in name]
    return near[0] if len(near) == 1 else None


def _published_graph(elements: Mapping[str, bool], dependencies: Mapping[str, bool]) -> Any:
    """The networkx.DiGraph of what was seen, by MMMG's rules: an edge needs two ends that were seen, Requires points backwards and
    Defines both ways. The order of nodes and edges decides the first guess, so it is theirs."""
    import networkx

    graph = networkx.DiGraph()
    graph.add_nodes_from(element.lower() for element, seen in elements.items() if seen)
    for text, seen in dependencies.items():
        relation, opened, ends = text.partition("(")
        source, comma, target = ends.removesuffix(")").partition(", ")
        if not comma:  # here the published code breaks off
            source, comma, target = ends.removesuffix(")").partition(",")
        if not seen or not opened or not comma:
            continue
        source, target = (end.strip(")").split("change(")[-1] if "change(" in end else end for end in (source.lower(), target.lower()))
        edges = {"requires": [(target, source)], "defines": [(source, target), (target, source)]}
        for start, end in edges.get(relation.lower(), [(source, target)]):
            nodes = _node(start, graph), _node(end, graph)
            if nodes[0] and nodes[1]:
                graph.add_edge(*nodes)
    return graph
