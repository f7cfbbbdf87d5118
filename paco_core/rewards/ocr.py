"""OCR reward: the share of the quoted text of a prompt that is legible in the image."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from paco_core.rewards.base import RewardBatch
from paco_core.rewards.needs import require_rapidocr

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import RewardTerm
    from paco_core.rewards.sources import Sources

_MARKS = '"“”„‟«»‹›「」『』〝〞〟＂`'
_TEXT = rf"([^{_MARKS}]*[^\s{_MARKS}][^{_MARKS}]*)"
#: A quotation from its opening to its closing mark; a straight mark opens no quotation behind a letter or a digit.
QUOTED = re.compile(
    rf'(?<![A-Za-z0-9])"(?!\s){_TEXT}(?<!\s)"(?![A-Za-z0-9])|“{_TEXT}”|„{_TEXT}[“”]|«{_TEXT}»|「{_TEXT}」|『{_TEXT}』'
)
_SINGLE = re.compile(r"(?<!\w)['‘]\S.*?['’](?!\w)", re.DOTALL)
NOTHING_QUOTED = "prompt quotes no text"
UNCLEAR = "prompt has quotation marks that do not pair up, are nested, or are single"


def quoted(prompt: str) -> str | None:
    """All texts that a prompt puts in double quotes, one after the other; empty when it quotes nothing.

    None if another mark may belong to a quotation: inches (a 5" screen), nested, single or unbalanced quotes.
    """
    unquoted = QUOTED.sub(" ", prompt)
    if any(mark in unquoted for mark in _MARKS) or _SINGLE.search(unquoted):
        return None
    return " ".join(next(filter(None, texts)) for texts in QUOTED.findall(prompt))


def _plain(text: str) -> str:
    return "".join(text.lower().split())


def edit_distance(first: str, second: str) -> int:
    """Levenshtein distance: insertions, deletions and replacements of single characters."""
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, start=1):
        before, row[0] = row[0], i
        for j, b in enumerate(second, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


class Ocr:
    """1 - edit distance / length of the quoted text, at least 0; case and blanks do not count (Flow-GRPO's rule).

    Read by RapidOCR, which carries its weights. A prompt that quotes nothing, or not clearly, cannot be scored: NaN,
    counted.

    Raises:
        DataError: when rapidocr is not installed.
    """

    name = "ocr"

    def __init__(self) -> None:
        require_rapidocr()
        from rapidocr import RapidOCR

        self.engine = RapidOCR(params={"Global.log_level": "error"})
        self.causes: dict[str, int] = {}

    def _read(self, picture: Image) -> str:
        output = self.engine(np.asarray(picture)[:, :, ::-1])
        return _plain("".join(output.txts or ()))

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        values = np.full(len(batch), np.nan)
        for row, (record, picture) in enumerate(zip(batch.records, batch.whole, strict=True)):
            text = quoted(record.prompt)
            if not text:
                cause = UNCLEAR if text is None else NOTHING_QUOTED
                self.causes[cause] = self.causes.get(cause, 0) + 1
                continue
            target = _plain(text)
            values[row] = max(0.0, 1.0 - edit_distance(target, self._read(picture)) / len(target))
        return values


def build(_term: RewardTerm, _sources: Sources) -> Ocr:
    """The reward of a term."""
    return Ocr()
