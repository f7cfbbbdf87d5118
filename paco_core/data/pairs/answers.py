"""How an answer begins: "Yes." or "No." and then why, in the one spelling that is trained.

The score of a pair is the probability of the token ``Yes`` against ``No`` at the first place of the answer (PaCo-RL,
arXiv 2512.04784, section 3). In the byte pairs of Qwen ``Yes`` (9454) and `` Yes`` (7414) are two tokens, and after a
line break, a quotation mark or ``**`` the first token is another one altogether: an answer that begins so would train
a token that is never scored. So whatever takes answers in calls :func:`normalised`, and only its result is trained on.
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


def normalised(answer: str) -> str:
    """The answer with its opening as it is trained: ``Yes.`` or ``No.``, a blank, and the rest as it came.

    Taken are blanks, quotation marks and markdown around the word, any case, full-width letters, and other marks
    behind it (``yes,`` ``**No**:`` ``Yes —``, a line break). An answer that begins as it is trained only loses blanks
    at its end.

    Raises:
        DataError: when it begins with neither word, or goes on without a mark: "No two hats differ" says Yes.
    """
    if _CANONICAL.match(answer):
        return answer.rstrip()
    body = answer.lstrip(_BLANKS + _MARKUP)
    plain = _halfwidth(body[:64]) + body[64:]
    found = _OPENING.match(plain)
    if found is None:
        word = re.match(r"(yes|no)\b", plain, re.IGNORECASE)
        cause = "no mark stands between its Yes or No and what follows" if word else "begins with neither Yes nor No"
        raise DataError(f"{cause}: {answer[:40]!r}")
    rest = body[found.end() :]
    if len(body) < len(answer.lstrip(_BLANKS)):  # what was opened before the word is closed behind the mark
        rest = rest.lstrip(_MARKUP)
    return f"{found[1].capitalize()}. {rest.strip(_BLANKS)}".rstrip()


def opening(answer: str) -> str:
    """``Yes`` or ``No``, as an answer begins; an empty text where it begins with neither."""
    try:
        return normalised(answer).partition(".")[0]
    except DataError:
        return ""


def fault(answer: str, label: str) -> str | None:
    """What is wrong with an answer, or None: it must begin with its label, and contain no mark of a template."""
    if template_mark(answer):
        return "template_mark_in_answer"
    word = opening(answer)
    if not word:
        return "answer_without_yes_or_no"
    return None if word == label else "answer_contradicts_label"


def _halfwidth(text: str) -> str:
    """Full-width letters and marks as plain ones; as many characters as before."""
    return "".join(plain if len(plain := unicodedata.normalize("NFKC", letter)) == 1 else letter for letter in text)


def written_fault(answer: str, label: str) -> str | None:
    """What is wrong with an answer that was written here, or None: it must also give one to three reasons."""
    if cause := fault(answer, label):
        return cause
    reasons = SENTENCE.findall(normalised(answer).removeprefix(f"{label}."))
    return None if 1 <= len(reasons) <= MAX_REASONS else "not_one_to_three_reasons"
