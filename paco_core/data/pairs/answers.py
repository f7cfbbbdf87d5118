"""Answers: "Yes." or "No." and the reasons, in the only spelling that is used for training.

The score of a pair is the probability of the token ``Yes`` against ``No`` at the first position of the answer (PaCo-RL,
arXiv 2512.04784, section 3). In Qwen's byte-pair encoding, ``Yes`` (9454) and `` Yes`` (7414) are different tokens.
After a line break, a quotation mark or ``**`` the first token differs, too. An answer that starts with such a token
would train a token that is never scored. Therefore all code that reads answers calls :func:`normalize_answer`.
"""

from __future__ import annotations

import re
import unicodedata

from paco_core.io.files import DataError
from paco_core.io.text import template_mark

YES, NO = "Yes", "No"
MAX_REASONS = 3
SENTENCE = re.compile(r"\S.*?(?:[.!?](?=\s|$)|[。！？])", re.DOTALL)
_CANONICAL = re.compile(r"(Yes|No)\.(?=\s|\Z)")
_BLANKS = " \t\r\n\v\f\xa0\u3000\u200b\ufeff"
_MARKUP = "\"'`*_~#>«»“”„‘’「」『』《》()[]-•"  # quotation marks, markdown, brackets, bullets
_OPENING = re.compile(  # a word, what closes the markup around it, and what divides it from the reasons
    rf"(yes|no)(?P<close>[{re.escape(_MARKUP)}]*)"
    r"(?P<stop>[^\S\r\n]*(?:[.,:;!…。、]+|[–—]+|-+(?=\s)|[\r\n]|\Z)|(?<=\W)(?=\s)|(?<=_)(?=\s))",
    re.IGNORECASE,
)


def normalize_answer(answer: str) -> str:
    """Normalize the start of an answer to ``Yes.`` or ``No.`` and a blank; the reasons are unchanged.

    Accepted are blanks, quotation marks and markdown around the word, any case, full-width letters, and other marks
    after it. For example: ``yes,`` ``**No**:`` ``Yes —``. An answer in the right form only loses blanks at its end.

    Raises:
        DataError: if it starts with neither word, or no mark follows the word. For example, "No two hats differ" means
            Yes.
    """
    if _CANONICAL.match(answer):
        return answer.rstrip()
    body = answer.lstrip(_BLANKS + _MARKUP)
    plain = _halfwidth(body[:64]) + body[64:]
    match = _OPENING.match(plain)
    if match is None:
        word = re.match(r"(yes|no)\b", plain, re.IGNORECASE)
        cause = "expected a punctuation mark after Yes or No" if word else "it starts with neither Yes nor No"
        raise DataError(f"{cause}: {answer[:40]!r}")
    reasons = body[match.end() :]
    if len(body) < len(answer.lstrip(_BLANKS)):  # markup that was opened before the word is closed after it
        reasons = reasons.lstrip(_MARKUP)
    return f"{match[1].capitalize()}. {reasons.strip(_BLANKS)}".rstrip()


def leading_verdict(answer: str) -> str:
    """The first word of an answer: ``Yes``, ``No``, or an empty text if it is neither."""
    try:
        return normalize_answer(answer).partition(".")[0]
    except DataError:
        return ""


def validation_error(answer: str, label: str) -> str | None:
    """The error of an answer, or None. It must start with its label and contain no template marks."""
    if template_mark(answer):
        return "template_mark_in_answer"
    word = leading_verdict(answer)
    if not word:
        return "answer_without_yes_or_no"
    return None if word == label else "answer_contradicts_label"


def _halfwidth(text: str) -> str:
    """Replace full-width letters and marks by plain ones; the length is unchanged."""
    return "".join(plain if len(plain := unicodedata.normalize("NFKC", letter)) == 1 else letter for letter in text)


def written_validation_error(answer: str, label: str) -> str | None:
    """The error of a newly written answer, or None. It must also contain one to three reasons."""
    if cause := validation_error(answer, label):
        return cause
    reasons = SENTENCE.findall(normalize_answer(answer).removeprefix(f"{label}."))
    return None if 1 <= len(reasons) <= MAX_REASONS else "not_one_to_three_reasons"
