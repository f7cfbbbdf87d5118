"""Which reference pictures of an edit its instruction takes something from, by their numbers in its text."""

from __future__ import annotations

import re

_PICTURE = r"(?:images?|pictures?|photos?|figures?|references?|pics?|img)"
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
_NUMBERED = re.compile(
    rf"\b{_PICTURE}\s*(?:no\.?|number)?\s*#?\s*([1-9])\b((?:\s*(?:,|and|or|&)\s*#?[1-9]\b)*)", re.IGNORECASE
)
_COUNTED = re.compile(rf"\b({'|'.join(_ORDINALS)}|last)\s+(?:\w+\s+)?{_PICTURE}\b", re.IGNORECASE)
_CHINESE = re.compile("(?:第|图片?|圖片?)\\s*([1-9一二三四五六七八])(?:\\s*(?:张|張|幅|个|個)?\\s*(?:图|圖|参考))?")
_DIGITS = {digit: number for number, digit in enumerate("一二三四五六七八", 1)}


def asked_about(instruction: str, count: int) -> list[int]:
    """Places of the references that an edit is judged by, from 0: the one that is edited, and those that are named.

    Named by number ("image 2", "pictures 2 and 3", "the second photo", "the last image"); of an instruction that names
    none beside the first, all are: each was given for something.

    Args:
        count: of the references.
    """
    named = {int(digit) for match in _NUMBERED.finditer(instruction) for digit in re.findall("[1-9]", match.group())}
    for match in _COUNTED.finditer(instruction):
        word = match.group(1).lower()
        named.add(count if word == "last" else _ORDINALS.index(word) + 1)
    named |= {_DIGITS.get(digit) or int(digit) for digit in _CHINESE.findall(instruction)}
    others = sorted(number - 1 for number in named if 1 < number <= count)
    return [0, *(others or range(1, count))]
