"""Reference images of an edit that its instruction names by their numbers.

Only spellings that leave no doubt are read. If anything else of the sentence may name an image, all references count.
"""

from __future__ import annotations

import re
import unicodedata

_IMAGE = r"(?:image|picture|photo|figure|reference|pic|img)"
_KIND = r"(?:(?:reference|input|source)\s+)?"  # as in "reference image 2"
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
_CHINESE_DIGITS = {digit: number for number, digit in enumerate("一二三四五六七八", 1)}
_CHINESE_IMAGE = "(?:参考|參考)?(?:图片?|圖片?|照片)"

_NUMBERED = re.compile(
    rf"\b{_KIND}{_IMAGE}s?\s*(?:no\.?|number)?\s*#?\s*[1-9]\b(?:\s*(?:,\s*and\b|,\s*or\b|,|\band\b|\bor\b|&)\s*#?[1-9]\b)*",
    re.IGNORECASE,
)
_ORDINAL = re.compile(
    rf"\b({'|'.join(_ORDINALS)}|last)\s+{_KIND}{_IMAGE}\b(?!\s+(?:from|before|after|but)\b)", re.IGNORECASE
)
_CHINESE = re.compile(
    f"(?:{_CHINESE_IMAGE}\\s*([1-9一二三四五六七八])(?![0-9十])|"
    f"第\\s*([1-9一二三四五六七八])\\s*(?:张|張|幅|个|個){_CHINESE_IMAGE})"
)
#: Signs that the rest of a sentence may name an image, too: a digit, a letter of a language that is not read here, a
#: word for an image, a numeral, an ordinal, and a word for several or other images.
_DOUBT = re.compile(
    r"\d|[^\W\d_\u0000-\u007f\u3400-\u9fff]"
    r"|\b(?:imag|pic|photo|figur|referenc|img|bild|foto|immag|afbeeld|obraz)"
    r"|\b(?:two|three|four|five|six|seven|eight|nine|ten|first|second|third|fourth|fifth|sixth|seventh|eighth|ninth"
    r"|tenth|both|each|every|all|others?|another|rest|remaining|last|previous|preceding|following|former|latter|ones"
    r"|next one|(?:the|this|that|each) one|several|neighbou?rs?|successors?|predecessors?"
    r"|(?:subject|person|object) [b-h])\b"
    "|[二三四五六七八九十两兩几幾第张張幅图圖]|照片|[参參]考|最[后後前]|其[他它余餘]|另|所有|全部|每|各|[前后後]者|剩下|余下",
    re.IGNORECASE,
)


def asked_about(instruction: str, count: int) -> list[int]:
    """Places of the references that an edit is judged by, from 0: the edited image, and those that are named.

    For example "image 2", "pictures 2, 3 and 4", "the second photo", "the last image", "图2" and "第二张图" name
    images. All references count if the instruction names none beside the first, or may name more than is read here.

    Args:
        count: of the references.
    """
    rest = unicodedata.normalize("NFKC", instruction)
    numbers = set[int]()
    for match in _NUMBERED.finditer(rest):
        numbers |= {int(digit) for digit in re.findall("[1-9]", match.group())}
    rest = _NUMBERED.sub(" ; ", rest)
    for match in _ORDINAL.finditer(rest):
        word = match.group(1).lower()
        numbers.add(count if word == "last" else _ORDINALS.index(word) + 1)
    rest = _ORDINAL.sub(" ; ", rest)
    for digit in (match.group(1) or match.group(2) for match in _CHINESE.finditer(rest)):
        numbers.add(_CHINESE_DIGITS.get(digit) or int(digit))
    rest = _CHINESE.sub(" ; ", rest)
    others = sorted(number - 1 for number in numbers if number > 1)
    certain = others and others[-1] < count and not _DOUBT.search(rest)
    return [0, *(others if certain else range(1, count))]
