"""The grade that an answer comes to on average: each grade that the judge might have said counts by its probability.

One answer says a whole number, so that a group often ties; the mean over the tokens that might have stood there does not (G-Eval,
arXiv 2303.16634, 3). Grades are letters: "10" is two tokens in many vocabularies, and begins as "1" does.
"""

from __future__ import annotations

import math
from itertools import accumulate

from qwen_vl_grpo.errors import JudgeError
from qwen_vl_grpo.judges.replies import Reply

LETTERS = "ABCDEFGHIJK"
"""For 0 to 10."""
TURN = "Write each number as a letter: " + ", ".join(f"{letter} for {grade}" for grade, letter in enumerate(LETTERS)) + "."


def grade(reply: Reply, name: str) -> float:
    """The expected grade, 0 to 10, in the field `name` of an answer in JSON.

    What else might have stood there is left out, and the rest renormalised. Raises JudgeError for a reply without its token probabilities.
    """
    texts = [token.text for token in reply.logprobs]
    field = "".join(texts).rfind(f'"{name}"')
    starts = accumulate(map(len, texts), initial=0)
    for start, token in zip(starts, reply.logprobs, strict=False):
        if 0 <= field <= start - len(name) and _letter(token.text):
            shares = {text: math.exp(logprob) for text, logprob in token.likely.items() if _letter(text)}
            if total := sum(shares.values()):
                return sum(share * LETTERS.index(_letter(text)) for text, share in shares.items()) / total
    raise JudgeError(f"its answer came without the probabilities of {name}; take a server that tells them, or judge.scoring: votes")


def _letter(token: str) -> str:
    """The letter in a token, which may hold the quotes around it, too; "" for any other token."""
    bare = token.strip(' ":')
    return bare if len(bare) == 1 and bare in LETTERS else ""
