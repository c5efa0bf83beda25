"""A prompt and what a policy made of it: the rewritten text, its quality in five points, and what it may have cheated with."""

from __future__ import annotations

import re
import unicodedata

from qwen_vl_grpo.answers import without_end

QUALITY_WORDS = (
    "high quality", "best quality", "detailed", "intricate", "4k", "8k", "hd", "hdr", "high resolution", "professional", "masterpiece",
    "photorealistic", "realistic", "cinematic", "sharp focus", "award-winning", "studio lighting",
)  # fmt: skip
FEW = 5
"""Words that a rewritten prompt has at least, and that it adds at least."""
LONGEST_WORD = 20
"""Letters beyond which a run of letters counts as more than one word: "word" a hundred times without a space is no short prompt."""
_LOOK_ALIKES = str.maketrans("аеорсухіјѕԁԛԝһκνορτυ", "aeopcyxijsdqwhkvoptu")
STOP_WORDS = frozenset(
    (
        "a", "an", "the", "of", "in", "on", "at", "to", "for", "with", "and", "or", "as", "by", "from", "into", "over", "under", "is",
        "are", "was", "be", "been", "it", "its", "that", "this", "these", "those", "his", "her", "their", "my", "your", "one",
    )
)  # fmt: skip
_PREAMBLE = re.compile(
    r"""^[\s*#>"'-]*
        (?:(?:sure|certainly|of\ course|okay|ok|absolutely|great)\b[^:\n]{0,20}?[!,.:]\s*)?
        (?:here(?:\ is|['\u2019]s|\ are)\b[^:\n]{0,100}:
          |(?:an?\ |the\ |your\ )?(?:enhanced|improved|rewritten|refined|revised|new)\b[^:\n]{0,20}\b(?:prompt|version)\b[^:\n]{0,40}:)
        [\s*]*""",
    re.IGNORECASE | re.VERBOSE,
)
_GREETING = re.compile(r"^\s*(?:sure|certainly|of course|okay|ok|absolutely)[!.:]\s*", re.IGNORECASE)
_WRITTEN = re.compile(
    r"\b(?:text|texts|words?|captions?|captioned|lettering|letters|inscription|inscribed|written|typography|subtitles?|label(?:led|ed)|"
    r"sa(?:ys|ying)|reads|reading|spells|spelled|spelling|watermark|title[ds]?|writing|handwrit(?:ing|ten)|calligraphy|graffiti|fonts?|"
    r'typeface|speech bubbles?)\b|["\u201c\u201e\u00ab\u300c\u2018][^"\u201c\u201d\u00bb\u300d]{2,}["\u201c\u201d\u00bb\u300d\u2019]'
    r"|(?<!\w)'[^']{2,60}'(?!\w)",
    re.IGNORECASE,
)


def enhanced(completion: str) -> str:
    """The rewritten prompt alone: without end-of-turn tokens, a preamble ("Sure! Here is …:") and quotes around the whole."""
    text = without_end(completion).strip()
    text = _PREAMBLE.sub("", text, count=1)
    text = _GREETING.sub("", text, count=1).strip()
    while len(text) > 1 and text[0] + text[-1] in ('""', "''", "“”", "``", "**"):
        text = text[1:-1].strip()
    return text


def words(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return re.findall(r"[^\W_]+(?:['\u2019-][^\W_]+)*", text.lower())


def folded(text: str) -> str:
    """A text in lower case as a reader sees it: without characters that show nothing, and letters of other alphabets as the Latin ones
    that they look like."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return "".join(letter for letter in plain if unicodedata.category(letter) != "Cf").translate(_LOOK_ALIKES)


def pieces(text: str) -> list[str]:
    """The words of a folded text, apart where a hyphen joins them."""
    return re.findall(r"[^\W_]+", folded(text))


def quality(original: str, rewritten: str) -> float:
    """The five-point score: longer, the original's keywords kept, at least 5 new words, a quality word, at least 5 words."""
    before, after = words(original), words(rewritten)
    keywords = set(before) - STOP_WORDS
    spoken = f" {' '.join(after)} "
    points = (
        len(rewritten) > len(original),
        bool(after) and keywords <= set(after),
        len(set(after) - set(before)) >= FEW,
        any(f" {word} " in spoken for word in QUALITY_WORDS),
        len(after) >= FEW,
    )
    return float(sum(points))


def copying(original: str, rewritten: str) -> float:
    """1 for a rewriting that adds no word, 0 for one that adds 5 or more; stop words, numbers and single letters are none."""
    added = {word for word in pieces(rewritten) if sum(map(str.isalpha, word)) > 1} - {*pieces(original)} - STOP_WORDS
    return 1 - min(len(added), FEW) / FEW


def overlength(rewritten: str, longest: int) -> float:
    """How many times `longest` words it is longer than that; 0 for one that is not."""
    count = sum(-(-len(piece) // LONGEST_WORD) for piece in pieces(rewritten))
    return max(0, count - longest) / longest


def asks_for_words(original: str, rewritten: str) -> float:
    """1 if it asks for writing in the picture and the original does not, else 0."""
    return float(bool(_WRITTEN.search(folded(rewritten))) and not _WRITTEN.search(folded(original)))
