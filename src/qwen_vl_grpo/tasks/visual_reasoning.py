"""Visual reasoning: a picture and a question, answered in reasoning and answer tags (MathVista's form).

One raw row of AI4Math/MathVista, split testmini (the pictures are in `decoded_image`; `image` is only a path):

    {"pid": "1", "question": "When a spring does work on an object, …", "image": "images/1.jpg",
     "decoded_image": <PIL.Image>, "choices": None, "unit": None, "precision": 1.0, "answer": "1.2",
     "question_type": "free_form", "answer_type": "float", "query": "Hint: Please answer …\\nQuestion: …", …}

Any other set works through `data.columns`. Of the further columns these are read, under these names or those that
`data.columns` gives, and each may be absent:

    choices        list of str      the letters A, B, … stand for them; the answer is one of them (its text, or its letter)
    precision      number           decimals to which a number must agree; without it numbers are equal to the last digit
    unit           str              unit of the answer: another unit makes an answer wrong
    question_type  str              multi_choice or free_form       } with both, MathVista's published rule is scored
    answer_type    str              text, integer, float or list    } beside ours (`official`)
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from qwen_vl_grpo import answers, mathvista
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.interfaces import Mode, Sample, Task, Verdict
from qwen_vl_grpo.quantities import plain
from qwen_vl_grpo.sections import ColumnName, DataSection

SYSTEM_PROMPT = """\
Look at the picture and answer the question. Reply in exactly this form:
<reasoning>
your reasoning
</reasoning>
<answer>
your final answer
</answer>"""

GUESSES = {
    "image": ("image", "decoded_image", "images"),
    "question": ("query", "question", "problem", "prompt"),
    "answer": ("answer", "solution"),
    "id": ("id", "pid"),
}
"""Our name -> the columns tried in this order where `data.columns` does not say; a MathVista path never counts as a picture."""


REWARDS: dict[Mode, tuple[tuple[str, float], ...]] = {
    "documented": (
        ("xmlcount_reward_func", 1.0),
        ("soft_format_reward_func", 1.0),
        ("strict_format_reward_func", 1.0),
        ("correctness_reward_func", 1.0),
    ),
    "strict": (("tags_reward", 0.5), ("well_formed_reward", 0.5), ("solved_reward", 2.0)),
}


def build(mode: Mode = "strict") -> Task:
    return Task("visual_reasoning", SYSTEM_PROMPT, REWARDS[mode], read_row, judge, examples)


def read_row(row: Mapping[str, Any], data: DataSection, system_prompt: str) -> Sample:
    """Turn one raw row into a sample; raises DataError (missing column, broken picture, answer of the wrong type)."""
    question = row[column("question", row, data)]
    if not isinstance(question, str) or not question.strip():
        raise DataError(f"column {column('question', row, data)!r} holds {question!r}; a question is text")
    gold = row[column("answer", row, data)]
    if isinstance(gold, bool) or not isinstance(gold, (str, int, float)) or not str(gold).strip():
        raise DataError(
            f"column {column('answer', row, data)!r} holds {gold!r} ({type(gold).__name__}); an answer is text or a number, "
            "so name the right column with data.columns.answer"
        )
    id_column = data.columns.get("id") or next((name for name in GUESSES["id"] if name in row), None)
    return Sample(
        id=str(row[id_column]) if id_column else "",
        prompt=[{"role": "system", "content": system_prompt}, {"role": "user", "content": question}],
        images=pictures(row, data),
        answer=str(gold),
        columns=further_columns(row, data),
    )


def judge(completion: str, sample: Sample) -> Verdict:
    columns = sample.columns
    correct = answers.solves(completion, sample.answer, columns.get("choices"), columns.get("precision"), columns.get("unit"))
    official = None
    if columns.get("question_type") and columns.get("answer_type"):
        official = mathvista.right(
            answers.parts(answers.without_end(completion))[1], sample.answer, columns["question_type"], columns["answer_type"],
            columns.get("choices") or (), columns.get("precision"),
        )  # fmt: skip
    return Verdict(answers.strict_answer(completion) is not None, correct, official)


def examples(sample: Sample) -> tuple[str, list[str]]:
    """The gold answer in the form that is asked for, and: a wrong answer of its kind, nothing, and the answer outside the form."""
    choices = sample.columns.get("choices") or []
    texts = _other_choices(sample.answer, choices) if choices else [_another(sample)]
    return _in_form(sample.answer), [*map(_in_form, [*texts, ""]), sample.answer]


def _in_form(answer: str) -> str:
    return f"<reasoning>\nIt is so.\n</reasoning>\n<answer>\n{answer}\n</answer>\n"


def _other_choices(gold: str, choices: Sequence[str]) -> list[str]:
    """One wrong choice, by its text, and by its letter unless a choice is called like a letter."""
    letters = [chr(ord("A") + place) for place in range(len(choices))]
    texts = [plain(choice) for choice in choices]
    right = plain(gold) if plain(gold) in texts else dict(zip(letters, texts, strict=True)).get(gold.strip("() .").upper())
    if right is None:
        raise DataError(f"its answer {gold!r} is none of the choices {list(choices)}")
    wrong = [(letter, choice) for letter, choice, text in zip(letters, choices, texts, strict=True) if text != right]
    lettered = any(len(text.strip("() .")) <= 1 for text in texts)
    return [text for letter, choice in wrong[:1] for text in ([choice] if lettered else [choice, f"({letter})"])]


def _another(sample: Sample) -> str:
    """A wrong answer that is as near as may be: one unit more in the last decimal that counts, one item more, or the opposite."""
    kind, precision = sample.columns.get("answer_type"), sample.columns.get("precision")
    try:
        if kind == "list":
            return str([*ast.literal_eval(sample.answer), 0])
        value = Decimal(sample.answer.replace(",", ""))
    except (ValueError, SyntaxError, TypeError, InvalidOperation):
        if kind in ("integer", "float", "list"):
            raise DataError(f"its answer {sample.answer!r} is no {kind}, as its answer_type says") from None
        return f"not {sample.answer}"
    if not value.is_finite() or (kind == "integer" and value % 1):
        raise DataError(f"its answer {sample.answer!r} is no {kind or 'number that one could give'}")
    return str(value + (Decimal(1).scaleb(-int(precision)) if precision else 1))


def further_columns(row: Mapping[str, Any], data: DataSection) -> dict[str, Any]:
    """The columns that rewards and judge read beside the answer; raises DataError for a type that they could not use."""
    given = {name: _further(name, row, data) for name in ("choices", "precision", "unit", "question_type", "answer_type")}
    choices, precision = given["choices"] or [], given["precision"]
    if not isinstance(choices, (list, tuple)):
        raise DataError(f"column {data.columns.get('choices', 'choices')!r} holds {choices!r}; choices are a list of texts")
    if precision is not None and precision not in range(16):
        name = data.columns.get("precision", "precision")
        raise DataError(f"column {name!r} holds {precision!r}; it is a number of decimals, 0 to 15, or nothing")
    texts = {name: str(given[name]) for name in ("unit", "question_type", "answer_type") if given[name]}
    return {"choices": [str(choice) for choice in choices], **({} if precision is None else {"precision": float(precision)}), **texts}


def _further(ours: ColumnName, row: Mapping[str, Any], data: DataSection) -> Any:
    asked = data.columns.get(ours)
    if asked and asked not in row:
        raise DataError(f"has no column {asked!r} for the {ours}; it has {', '.join(sorted(row))}; correct data.columns.{ours}")
    return row.get(asked or ours)


def column(ours: Literal["image", "question", "answer"], row: Mapping[str, Any], data: DataSection) -> str:
    """Name the data set's column for one of ours; raises DataError if there is none."""
    asked = data.columns.get(ours)
    for name in (asked,) if asked else GUESSES[ours]:
        if name in row and not (ours == "image" and name == "image" and "decoded_image" in row):
            return name
    tried = repr(asked) if asked else " or ".join(repr(name) for name in GUESSES[ours])
    raise DataError(f"has no column {tried} for the {ours}; it has {', '.join(sorted(row))}; map it with data.columns.{ours}")


def pictures(row: Mapping[str, Any], data: DataSection) -> list[Image.Image]:
    """Open the pictures of one row: PIL pictures, paths, or the {bytes, path} form of the data set library."""
    asked = data.columns.get("images")
    value = row[asked] if asked and asked in row else row[column("image", row, data)]
    return [open_picture(item) for item in (value if isinstance(value, list) else [value])]


def open_picture(value: Any) -> Image.Image:
    """Decode one picture fully and convert it to RGB; raises DataError if that cannot be done."""
    import io

    from PIL import ImageOps

    try:
        if isinstance(value, Mapping):
            value = io.BytesIO(value["bytes"]) if value.get("bytes") else value["path"]
        image = value if isinstance(value, Image.Image) else Image.open(value)
        image.load()
    except (OSError, ValueError, SyntaxError, TypeError, AttributeError, Image.DecompressionBombError) as error:
        if value is None:
            raise DataError("holds no picture; give it one or remove the row") from None
        shown = Path(value).name if isinstance(value, str) else type(value).__name__
        raise DataError(
            f"holds a picture that cannot be opened ({shown}: {' '.join(str(error).split())[:160]}); replace it or remove the row"
        ) from None
    turned = ImageOps.exif_transpose(image)
    if turned.mode.startswith("I;16"):
        turned = turned.point(lambda value: value / 257).convert("L")
    if turned.mode in ("RGBA", "LA", "PA") or "transparency" in turned.info:
        turned = Image.alpha_composite(Image.new("RGBA", turned.size, "white"), turned.convert("RGBA"))
    return turned.convert("RGB")
