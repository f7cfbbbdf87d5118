"""Characters of a prompt: who appears in its panels by name, with reference images of each.

A record has ``characters: [{"name": ..., "images": [path, ...]}]``. Paths are relative to the folder of the records'
file. In memory an image is an absolute path or a data URL. :func:`dump_characters` names each image by its content, and
:func:`copy_images` puts it there, so records in a stage's output depend on no other folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from paco_core.io.atomic import atomic
from paco_core.io.files import DataError, inside, md5_of
from paco_core.io.pictures import bytes_of_url, content_and_size, is_data_url, is_invisible, picture_of
from paco_core.io.text import normalize_text, not_blank, validate_marks
from paco_core.io.validation import StrictModel, validation_errors

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_CHARACTERS = 4  # of a prompt
MAX_IMAGES = 3  # of a character
MIN_SIDE = 16  # shorter side of an image in pixels
FOLDER = "characters"  # of the images, next to a file of records that paco writes
CACHED_IMAGES = 64  # decoded images in memory

#: A letter or digit of a script that puts blanks between words. Chinese, Japanese, Korean and Thai names have no blanks
#: around them.
_LETTER = r"[^\W\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"


@dataclass(frozen=True)
class Character:
    """Who appears in panels: the name by which their texts call the character, and sources of one to three images."""

    name: str
    images: tuple[str, ...]


class _Row(StrictModel):
    name: Annotated[str, AfterValidator(validate_marks), AfterValidator(not_blank)]
    images: Annotated[list[str], Field(min_length=1, max_length=MAX_IMAGES)]


def named_characters(text: str, characters: Sequence[Character]) -> list[Character]:
    """The characters that a text names, in the order of ``characters``.

    A name matches as a whole word in any case, and the longest name first. For example, "Mia" is not in "Miami", and
    "Fox Mulder runs" does not name the character "Fox". A name may have several words.
    """
    remaining, matches = normalize_text(text), set[str]()
    for name in sorted({normalize_text(character.name) for character in characters}, key=len, reverse=True):
        remaining, count = _pattern(name).subn("\n", remaining)
        if count:
            matches.add(name)
    return [character for character in characters if normalize_text(character.name) in matches]


@lru_cache(maxsize=1024)
def _pattern(name: str) -> re.Pattern[str]:
    before, after = (f"(?<!{_LETTER})", f"(?!{_LETTER})")
    first, last = re.match(_LETTER, name[:1]), re.match(_LETTER, name[-1:])
    return re.compile(f"{before if first else ''}{re.escape(name)}{after if last else ''}")


def load_images(character: Character) -> list[Image]:
    """The images of a character. The most recently used images of all characters stay in memory.

    Raises:
        DataError: if a file is missing or damaged.
    """
    return [_load(source, *_state(source)) for source in character.images]


@lru_cache(maxsize=CACHED_IMAGES)
def _load(source: str, *_state: int) -> Image:
    return picture_of(source)


@lru_cache(maxsize=1 << 12)
def _is_invisible(source: str, *_state: int) -> bool:
    return is_invisible(source)


def _state(source: str) -> tuple[int, ...]:
    """Values that change when a file is replaced; empty for a data URL.

    Raises:
        DataError: if there is no such file.
    """
    if is_data_url(source):
        return ()
    if not Path(source).is_file():
        raise DataError(
            f"{source}: no such picture; put the image there, or correct its path (in a prompt file, it is relative to "
            "the folder of the file)"
        )
    state = Path(source).stat()
    return state.st_ino, state.st_size, state.st_mtime_ns


def image_digests(characters: Iterable[Character]) -> list[list[str]]:
    """Name and digests of the images of each character, which identify it independent of paths.

    Raises:
        DataError: if a file is missing or damaged.
    """
    return [[c.name, *(_content(source)[0] for source in c.images)] for c in characters]


def image_sizes(character: Character) -> list[tuple[int, int]]:
    """(width, height) of each image of a character.

    Raises:
        DataError: if a file is missing or damaged.
    """
    return [_content(source)[1] for source in character.images]


def _content(source: str) -> tuple[str, tuple[int, int]]:
    """MD5 of an image file and (width, height) of its upright image."""
    if not _state(source):
        return md5_of(bytes_of_url(source)), _load(source).size
    return content_and_size(Path(source))


def read_characters(value: Any, folder: Path | None, panels: Sequence[str]) -> tuple[Character, ...]:
    """The characters of a record, with checked images.

    Args:
        value: rows of a file, or characters in memory.
        folder: folder of the records' file, to which image paths are relative; None = sources as they are in memory.
        panels: the text of each panel, which must name each character; empty if the prompt is not valid.

    Raises:
        ValueError: with all problems, each with its key and remedy.
    """
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_CHARACTERS:
        count = f", not {len(value)}" if isinstance(value, list | tuple) else ""
        again = "; if the record is a story of ViStoryBench, run `paco dataset import vistory` again"
        raise ValueError(
            f"expected a list of one to {MAX_CHARACTERS} characters {{name, images}}{count}; change it, or leave out "
            f"the key{again if isinstance(value, dict) else ''}"
        )
    characters, problems = dict[int, Character](), list[str]()
    for number, row in enumerate(value):
        try:
            entry = {"name": row.name, "images": list(row.images)} if isinstance(row, Character) else row
            valid = _Row.model_validate(entry)
        except ValidationError as error:
            problems += [
                f"{number}.{text}; a character has a name and one to {MAX_IMAGES} images"
                for text in validation_errors(error)
            ]
            continue
        sources = list[str]()
        for position, source in enumerate(valid.images):
            try:
                sources.append(_checked_source(source, folder))
            except DataError as error:
                problems.append(f"{number}.images.{position} of {valid.name}: {error}")
        characters[number] = Character(valid.name, tuple(sources))
    names = {number: normalize_text(character.name) for number, character in characters.items()}
    problems += [
        f"{number}.name: two characters have the name {character.name!r}; give each a separate name"
        for number, character in characters.items()
        if names[number] in [name for other, name in names.items() if other < number]
    ]
    problems += _naming_problems(panels, characters)
    if problems:
        raise ValueError("; ".join(problems))
    return tuple(characters.values())


def _checked_source(source: str, folder: Path | None) -> str:
    resolved = source if folder is None else str(inside(folder, source).absolute())
    validate_image(resolved)
    return resolved


def validate_image(resolved: str) -> None:
    """Check that an image can show a character.

    Args:
        resolved: an absolute path or a data URL.

    Raises:
        DataError: if it is missing, damaged, too large or too small, or all of its pixels are transparent.
    """
    width, height = _content(resolved)[1]
    place = "" if is_data_url(resolved) else f"{resolved}: "
    if min(width, height) < MIN_SIDE:
        raise DataError(
            f"{place}an image of {width} x {height} px does not show a character; choose one of at least {MIN_SIDE} px "
            "per side"
        )
    if is_invisible(resolved) if is_data_url(resolved) else _is_invisible(resolved, *_state(resolved)):
        raise DataError(f"{place}all of its pixels are transparent; choose an image that shows the character")


def _naming_problems(panels: Sequence[str], characters: Mapping[int, Character]) -> list[str]:
    """Problems of a prompt with characters (by their position) that is no story, or does not name each of them."""
    if len(panels) == 1:
        return [
            "the prompt has one panel, and characters belong to a story of several; add panels, or leave out the key"
        ]
    used_names = {character.name for text in panels for character in named_characters(text, [*characters.values()])}
    return [
        f"{number}.name: no panel text names {character.name!r}; use the name in a panel, or remove the character"
        for number, character in characters.items()
        if panels and character.name not in used_names
    ]


def dump_characters(characters: Sequence[Character]) -> list[dict[str, Any]]:
    """The characters as a file has them. An image is named by its content, as :func:`copy_images` writes it."""
    return [{"name": c.name, "images": [_name(source) for source in c.images]} for c in characters]


def _name(source: str) -> str:
    suffix = ".png" if is_data_url(source) else Path(source).suffix.lower()
    return f"{FOLDER}/{_content(source)[0]}{suffix}"


def copy_images(characters: Iterable[Character], folder: Path) -> None:
    """Copy the images of characters to their names in ``folder`` (:func:`dump_characters`)."""
    for source in {source for character in characters for source in character.images}:
        target = folder / _name(source)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with atomic(target) as part:
                part.write_bytes(bytes_of_url(source) if is_data_url(source) else Path(source).read_bytes())
