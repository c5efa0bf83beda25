"""Text to image: the policy thinks about what a picture must show, its completion leads a frozen diffusion model, and a judge looks for
every part of a knowledge graph in the picture.

One raw row of MMMGBench/MMMG, a test set in 59 configurations `<level>_<Discipline>` (fields that the code of its repository reads, commit
98bb915; `prompt` is by the data set's card):

    {"key": "preschool_Biology_12", "Education": "preschool", "prompt": "Draw how a frog grows up.", "Annotation": "A frog …",
     "Knowledge_Graph": '{"elements": ["egg", "tadpole", "frog"], "dependencies": ["TemporalOrder(egg, tadpole)", …]}'}

and of its training set MMMGBench/MMMG_Train, one file train.json {"0_preschool": {"Biology": [row, …], …}, …}:

    {"key": "…", "question": "Draw how a frog grows up.", "Key Knowledge": …, "Visual Components": {"elements": […], "dependencies": […]}}

Both become the same columns: original_prompt, rubric (the graph in JSON: elements, dependencies, decoys), level and discipline. Any other
set works that has a prompt and such a graph in each row: `data.columns.question` and `data.columns.graph` name their columns.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from qwen_vl_grpo import knowledge
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.interfaces import Sample, Task
from qwen_vl_grpo.sections import DISCIPLINES, LEVELS, DataSection
from qwen_vl_grpo.tasks import drawn

SYSTEM_PROMPT = """\
You prepare a picture that explains what is asked for. First think about which things must be seen, and how they hang together: what is \
part of what, what causes or comes before what. Then say precisely what the picture looks like: each thing with its place, shape and \
colour, each arrow with its two ends, and each label word for word. Show nothing that does not belong there. Be concrete and brief: at \
most 250 words."""

PROMPTS = ("prompt", "question", "text", "caption")
GRAPHS = ("Knowledge_Graph", "Visual Components", "knowledge_graph", "rubric")
"""Columns tried in this order where `data.columns` does not say."""
ABSENT = "preschool_Philosophy"
"""The one pair of level and discipline that MMMG has no questions of."""
_LEVELS, _DISCIPLINES = ({name.lower(): name for name in known} for known in (LEVELS, DISCIPLINES))
OFFERED = 64
"""Elements of other graphs that the decoys of a row are chosen from."""


def build() -> Task:
    return drawn.task("text_to_image", SYSTEM_PROMPT, "qwen_image", read_row=read_row, arrange=arrange, subsets=subsets)


def subsets(data: DataSection) -> list[str]:
    """MMMG's configurations of the levels and disciplines that are asked for; raises DataError if there is none."""
    pairs = [f"{level}_{discipline}" for level in data.levels or LEVELS for discipline in data.disciplines or DISCIPLINES]
    if pairs == [ABSENT]:
        raise DataError(f"data.levels and data.disciplines: MMMG has no {ABSENT}; ask for another level or discipline, too")
    return [pair for pair in pairs if pair != ABSENT]


def arrange(rows: Sequence[Mapping[str, Any]], data: DataSection) -> list[tuple[int, Mapping[str, Any]]]:
    """The rows of the levels and disciplines that are asked for, each with decoys; objects in them become JSON texts.

    Decoys are elements of the graphs of other disciplines where the data has others, else of any other graph; the same for the same
    data. A graph that cannot be read gets none, and is refused by read_row.
    """
    graphs, places = [_graph(row, data) for row in rows], [_place(row) for row in rows]
    foreign = _foreign(graphs, [discipline for _, discipline in places])
    arranged: list[tuple[int, Mapping[str, Any]]] = []
    for number, (row, graph, (level, discipline)) in enumerate(zip(rows, graphs, places, strict=True)):
        if (data.levels and level not in data.levels) or (data.disciplines and discipline not in data.disciplines):
            continue
        decoys = row.get("decoys") or (graph and graph.decoys)
        if graph and not decoys:
            offered = random.Random(f"{number}:{graph.elements}").sample(foreign[discipline], min(OFFERED, len(foreign[discipline])))
            decoys = knowledge.with_decoys(graph, offered, data.decoys, seed=0).decoys
        arranged.append((number, {name: _plain(value) for name, value in row.items()} | {"decoys": list(decoys or ())}))
    return arranged


def _foreign(graphs: Sequence[knowledge.KnowledgeGraph | None], disciplines: Sequence[str]) -> dict[str, list[str]]:
    """Discipline -> the elements of the others' graphs, or of its own where there are no others; in alphabetical order."""
    elements: dict[str, set[str]] = {discipline: set() for discipline in disciplines}
    for graph, discipline in zip(graphs, disciplines, strict=True):
        elements[discipline].update(graph.elements if graph else ())
    others = {own: [texts for other, texts in elements.items() if other != own] or [elements[own]] for own in elements}
    return {own: sorted(set().union(*texts)) for own, texts in others.items()}


def _plain(value: Any) -> Any:
    """An object as JSON text, since no two need have the same keys; a picture as it is."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) and "bytes" not in value else value


def _graph(row: Mapping[str, Any], data: DataSection) -> knowledge.KnowledgeGraph | None:
    try:
        return knowledge.read(row[drawn.column("graph", GRAPHS, "knowledge graph", row, data)])
    except DataError:
        return None


def _place(row: Mapping[str, Any]) -> tuple[str, str]:
    """Level and discipline of a row, by the first of its columns that names them; empty where none does."""
    held = "/".join(str(row.get(name) or "") for name in ("level", "Education", "discipline", "subset", "key"))
    words = re.split(r"[^a-z]+", held.lower())
    level, discipline = (next((known[word] for word in words if word in known), "") for known in (_LEVELS, _DISCIPLINES))
    return level, discipline


def read_row(row: Mapping[str, Any], data: DataSection, system_prompt: str) -> Sample:
    """Turn one row into a sample; raises DataError (no prompt, or a knowledge graph that is none).

    A dependency that cannot be read is no reason to leave the row out: it stays in the graph, since the published score asks for it,
    the reward does not, and it is a remark on the row.
    """
    prompt = drawn.text(drawn.column("question", PROMPTS, "prompt", row, data), "a prompt", row)
    graph = knowledge.read(row[drawn.column("graph", GRAPHS, "knowledge graph", row, data)])
    graph = dataclasses.replace(graph, decoys=tuple(row.get("decoys") or graph.decoys))
    level, discipline = _place(row)
    return Sample(
        id=str(row.get(data.columns.get("id", "id")) or row.get("key") or ""),
        prompt=drawn.chat(system_prompt, prompt),
        images=[],
        answer="",
        columns={"original_prompt": prompt, "rubric": graph.to_json(), "level": level, "discipline": discipline},
        remarks=graph.faults,
    )
