"""Image editing: the policy sees a picture and an instruction, and its completion leads a frozen editing model, whose picture is judged.

One raw row of UCSC-VLAA/Complex-Edit, split test_real or test_syn (fields as build_dataset/generate_edits.py of its repository, commit
3502eaa, writes them; the reasonings are left out here):

    {"image": <PIL.Image>,
     "edit": {"original_sequence": [{"name": "Change Color", "instruction": "Paint the red door blue."}, …],
              "sequence": [{"name": "Change Color", "instruction": "Make the door blue."}, …],
              "compound": [{"compound_instruction": "Make the door blue."},
                           {"compound_instruction": "Make the door blue and put a lantern above it."}, …]}}

`compound[c - 1]` is the instruction of complexity c, from 1 to 8, so a row asks as many questions as `data.complexity` names. They share
the picture, and with it the side of the split that they stand on (splits.py).

Any other set works that has a picture and an instruction in each row: `data.columns.image` and `data.columns.question` name their columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.interfaces import Sample, Task
from qwen_vl_grpo.sections import DataSection
from qwen_vl_grpo.tasks import drawn
from qwen_vl_grpo.tasks.visual_reasoning import pictures

SYSTEM_PROMPT = """\
You prepare an edit of the picture. First name what the instruction changes, and what must stay as it is: people, objects, text, style, \
light and composition. Then say precisely what the edited picture looks like: each changed object with its place, size, colour and \
material, and how it fits into the light and perspective of the rest. Change nothing that the instruction does not ask for. Be concrete \
and brief: at most 200 words."""

LEVELS = range(1, 9)
GUESSES = ("instruction", "edit_instruction", "prompt", "question")
"""Columns tried in this order where `data.columns.question` does not say."""


def build() -> Task:
    return drawn.task("image_edit", SYSTEM_PROMPT, "qwen_image_edit", read_row=read_row, arrange=arrange)


def arrange(rows: Sequence[Mapping[str, Any]], data: DataSection) -> list[tuple[int, Mapping[str, Any]]]:
    """Complex-Edit's rows, one for each instruction that `data.complexity` asks for; other rows as they are.

    Of rows that have a complexity of their own those that are asked for are taken.
    """
    arranged: list[tuple[int, Mapping[str, Any]]] = []
    for number, row in enumerate(rows):
        edit = row.get("edit")
        if isinstance(edit, Mapping) and "question" not in data.columns:
            about = {name: value for name, value in row.items() if name != "edit"}
            about["image_id"] = str(row.get(data.columns.get("id", "id")) or number)
            arranged += [
                (number, about | {"instruction": _compound(edit, level), "complexity": level}) for level in data.complexity or LEVELS
            ]
        elif not data.complexity or row.get("complexity") in data.complexity:
            arranged.append((number, row))
    return arranged


def _compound(edit: Mapping[str, Any], level: int) -> Any:
    """The instruction of one complexity as the row has it, whatever that is; None where it has none."""
    compound = edit.get("compound")
    step = compound[level - 1] if isinstance(compound, list) and level <= len(compound) else None
    return step.get("compound_instruction") if isinstance(step, Mapping) else None


def read_row(row: Mapping[str, Any], data: DataSection, system_prompt: str) -> Sample:
    """Turn one row into a sample; raises DataError (no picture, no instruction)."""
    level = row.get("complexity")
    if level is not None and row.get("instruction", "") is None:
        raise DataError(
            f"has no edit.compound[{level - 1}].compound_instruction; leave complexity {level} out of data.complexity, or the row"
        )
    name = drawn.column("question", GUESSES, "instruction", row, data)
    instruction = drawn.text(name, "an instruction" + f" (of complexity {level})" * (level is not None), row)
    sources = pictures(row, data)
    if not sources:
        raise DataError("holds no picture; give it one or remove the row")
    own = str(row.get(data.columns.get("id", "id")) or "")
    picture = str(row.get("image_id") or own)
    return Sample(
        id=f"{picture}-c{level}" if "image_id" in row and level is not None else own,
        prompt=drawn.chat(system_prompt, instruction),
        images=sources,
        answer="",
        columns={"original_prompt": instruction, "complexity": None if level is None else int(level), "image_id": picture},
    )
