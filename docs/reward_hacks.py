"""docs/reward_hacks.md: completions that try to be paid for nothing, and what they earn. Called by generate.py."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from docs import reward_logic, reward_logic_video
from qwen_vl_grpo import enhancement, knowledge, rewards, tasks
from qwen_vl_grpo.interfaces import Mode
from qwen_vl_grpo.judges import editing, mmmg
from qwen_vl_grpo.rendered_sections import PenaltiesSection
from qwen_vl_grpo.sections import TaskSection
from qwen_vl_grpo.tasks import prompt_enhancement

DOCS = Path(__file__).parent
OF_WORDS = ("visual_reasoning", "video_actions", "video_grounding")
ALL_PENALTIES = PenaltiesSection(copying=1, length=1, painted_text=1)

PAGE = """\
# Hacks of the rewards
{notice}
{count} completions that try to be paid for nothing, beside the {others} among the completions of [reward_logic.md](reward_logic.md) and
[reward_logic_video.md](reward_logic_video.md). `earned` is what each earns in strict mode, the default, and tests/unit/test_reward_hacks.py
holds every score; `documented` is what the published rewards pay for it, where the task has some.

- Of completions of words it is the weighted reward. A right answer in its form earns 3 in `visual_reasoning` and 1 in the tasks on
  clips. What a hack still earns is for its form alone.
- Of rewritten prompts it is what is left of a judge's score of 1 after the penalties (each set to 1); none where nothing is drawn.
- `text_to_image` and `image_edit` are judged by their pictures alone, and the judge never sees the completion. What can be hacked is the
  judge's reply, by words in the picture: it is the score of that reply, or none where the reply is no answer.

What no rule on words can see is for `grpo audit` ([audit.md](audit.md)) and for your eyes: a right answer by a guess, reasoning that is
not what led to the answer, gibberish that a judge happens to like, and a renderer that writes unasked.

A line break is written ⏎, GOOD is the form or reply of the question, and `answer:` stands in its place ANSWER.
{tables}
"""


def page(notice: str) -> str:
    """Score every hack."""
    questions = load()
    others = [
        case for logic in (reward_logic, reward_logic_video) for question in logic.load() for case in question["cases"] if "hack" in case
    ]
    return PAGE.format(
        notice=notice,
        count=sum(len(question["hacks"]) for question in questions),
        others=len(others),
        tables="\n".join(line for question in questions for line in table(question)),
    )


@cache
def load() -> list[dict[str, Any]]:
    """The questions with their hacks; `earns` is a number or "none"."""
    return yaml.safe_load((DOCS / "reward_hacks.yaml").read_text(encoding="utf-8"))


def completion(case: dict[str, Any], question: dict[str, Any]) -> str:
    """The text that a case stands for."""
    text = question["good"].replace("ANSWER", case["answer"]) if "answer" in case else case["text"].replace("GOOD", question["good"])
    return reward_logic.letters(text)


def earned(case: dict[str, Any], question: dict[str, Any], mode: Mode = "strict") -> float | None:
    """What a hack earns; None for what is not drawn or no answer of a judge."""
    text, task, gold = completion(case, question), question["task"], question["gold"]
    if task in OF_WORDS:
        columns = {key: [value] for key, value in gold.items()}
        listed = tasks.build(TaskSection(name=task, mode=mode)).rewards
        return sum((rewards.REWARDS[name](completions=[text], **columns)[0] or 0.0) * weight for name, weight in listed)
    if task == "prompt_enhancement":
        drawn = enhancement.enhanced(text)
        return 1 - prompt_enhancement.penalty(ALL_PENALTIES, gold["original_prompt"], drawn) if drawn else None
    try:
        if task == "text_to_image":
            graph = knowledge.read(gold)
            return knowledge.dice(graph, mmmg.seen_of(graph, text))
        said = editing.Alignment.model_validate_json(text)
        grades = float(said.instruction_following), float(said.identity_preservation)
        return editing.scores([grades], [0.0])["official"] / 10
    except ValueError:
        return None


def table(question: dict[str, Any]) -> list[str]:
    documented = question["task"] in tasks.PUBLISHED
    lines = ["", f"### {question['task']}: {question['question']}", ""]
    lines += [f"GOOD: `{reward_logic.escaped(question['good'])}`", "", "| hack | completion | earned |" + " documented |" * documented]
    lines.append("|---" * (3 + documented) + "|")
    for case in question["hacks"]:
        shown = f"answer: {case['answer']}" if "answer" in case else case["text"]
        cells = [written(earned(case, question)), *([written(earned(case, question, "documented"))] if documented else [])]
        lines.append(f"| {case['hack']} | `{visible(shown)}` | {' | '.join(cells)} |")
    return lines


def visible(text: str) -> str:
    return reward_logic.escaped(text).replace("\u200b", "[U+200B]").replace("`", "'")


def written(score: float | None) -> str:
    return "none" if score is None else f"{score:.4g}"
