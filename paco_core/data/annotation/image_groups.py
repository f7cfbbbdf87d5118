"""Image groups: images of one prompt, from any tool, which people rank.

People see the prompt. If a group has images of characters (``characters/NAME/`` in its folder), people also see these
images, in one picture next to the candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from paco_core.data.records.characters import MAX_CHARACTERS, MAX_IMAGES, Character
from paco_core.data.records.records import panel_ref, parse_ref
from paco_core.data.tables import FORMATS, parse_text, read_rows
from paco_core.io.decoding import SUFFIXES
from paco_core.io.files import DataError, digest, read_text_file
from paco_core.io.pictures import content_and_size, join_in_row, read_image
from paco_core.io.rejected import Rejected

if TYPE_CHECKING:
    from PIL.Image import Image

SMALLEST, LARGEST = 2, 6  # images of a group
ANSWERS = "annotations"  # folder next to the images: the store and the answers
PROMPT_FILE = "prompt.txt"
CHARACTERS = "characters"  # folder in a group, with one folder of images per character
NO_REFERENCE = ""
KEYS = ("image", "prompt")


@dataclass(frozen=True)
class ImageFiles:
    """Images by ``MD5#0``, with the methods of :class:`paco_core.data.records.panels.PanelStore` that a queue needs."""

    files: Mapping[str, Path]
    rows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # id -> images in one row

    def versions(self) -> dict[str, str]:
        return {name: name for name in (*self.files, *self.rows)}

    def panel(self, ref: str) -> Image:
        """The image of a reference.

        Raises:
            DataError: if it was changed or removed.
        """
        md5, _ = parse_ref(ref)
        if md5 in self.rows:
            return join_in_row([self.panel(panel_ref(name, 0)) for name in self.rows[md5]])
        if content_and_size(self.files[md5])[0] != md5:
            raise DataError(f"{self.files[md5]}: it was changed; start `paco annotate --pictures` again")
        return read_image(self.files[md5])


def answer_folder(source: Path) -> Path:
    """The folder of the answers to the images of a folder or a table."""
    return source / ANSWERS if source.is_dir() else source.with_name(f"{source.stem}.{ANSWERS}")


def read_image_groups(source: Path, rejected: Rejected) -> tuple[pd.DataFrame, ImageFiles]:
    """Ranking instances and their images.

    Args:
        source: a folder whose subfolders are the groups, or a table with the columns ``image`` (path relative to the
            table) and ``prompt``. The prompt of a subfolder is its file ``prompt.txt``, or else its name.
        rejected: collects groups that cannot be ranked.

    Returns:
        Columns ``instance_id``, ``prompt``, ``reference`` (the row of the characters' images, or empty), ``candidates``
        and ``characters`` (tuple of :class:`Character`). An instance id is a digest of the prompt and all images, so
        changed images are a new instance.

    Raises:
        DataError: if the source is missing, or none of its groups can be ranked.
    """
    if not source.exists():
        raise DataError(f"{source}: no such folder or table")
    if source.is_file() and source.suffix.lower() not in FORMATS:
        raise DataError(f"{source}: expected a folder, or a table ({', '.join(FORMATS)})")
    rows, files, image_rows = [], dict[str, Path](), dict[str, tuple[str, ...]]()
    for place, prompt, images in _folders(source) if source.is_dir() else _table(source, rejected):
        try:
            md5s = _contents(images)
            characters = _characters(images[0].parent) if source.is_dir() else ()
            character_files = {content_and_size(Path(path))[0]: Path(path) for c in characters for path in c.images}
        except DataError as error:
            rejected.add(place, f"group: {error}")
            continue
        files |= character_files | dict(zip(md5s, images, strict=True))
        refs, reference = [panel_ref(md5, 0) for md5 in md5s], NO_REFERENCE
        if character_files:
            row = digest([[c.name for c in characters], *character_files], 32)
            image_rows[row], reference = tuple(character_files), panel_ref(row, 0)
        instance_id = digest([prompt, *refs, *([reference] if reference else [])], 16)
        rows.append((instance_id, prompt, reference, refs, characters))
    if not rows:
        hint = f"put {SMALLEST} to {LARGEST} images of one prompt into each subfolder"
        raise DataError(f"{source}: contains no group of images that can be ranked{rejected.example}; {hint}")
    table = pd.DataFrame(rows, columns=["instance_id", "prompt", "reference", "candidates", "characters"])
    return table.drop_duplicates("instance_id", ignore_index=True), ImageFiles(files, image_rows)


def _characters(group: Path) -> tuple[Character, ...]:
    """The characters of a group by the names of their folders; empty if it has none."""
    folder = group / CHARACTERS
    names = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if len(names) > MAX_CHARACTERS:
        raise DataError(f"{folder} has {len(names)} characters, expected at most {MAX_CHARACTERS}")
    characters = []
    for path in names:
        images = _images_in(path)
        if not 1 <= len(images) <= MAX_IMAGES:
            raise DataError(f"{path} has {len(images)} images, expected 1 to {MAX_IMAGES}")
        characters.append(Character(path.name, tuple(map(str, images))))
    return tuple(characters)


def _images_in(folder: Path) -> list[Path]:
    """The images in a folder, without hidden files."""
    images = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in SUFFIXES and path.is_file()]
    return [path for path in images if not path.name.startswith(".")]


def _contents(images: list[Path]) -> list[str]:
    if not SMALLEST <= len(images) <= LARGEST:
        raise DataError(f"{len(images)} images, expected {SMALLEST} to {LARGEST}")
    md5s = [content_and_size(image)[0] for image in images]
    for number, md5 in enumerate(md5s):
        if md5 in md5s[:number]:
            raise DataError(f"{images[number]} and {images[md5s.index(md5)]} are the same image")
    return md5s


def _folders(source: Path) -> Iterator[tuple[str, str, list[Path]]]:
    """(place, prompt, images) of each folder that contains images; hidden files do not count."""
    for folder in sorted([source, *(path for path in source.rglob("*") if path.is_dir())]):
        inner = folder.relative_to(source)
        if any(part.startswith(".") or part == CHARACTERS for part in inner.parts):
            continue
        if images := _images_in(folder):
            file = folder / PROMPT_FILE
            prompt = read_text_file(file).strip() if file.is_file() else ""
            yield str(folder), prompt or str(inner if inner.parts else folder.resolve().name), images


def _table(source: Path, rejected: Rejected) -> Iterator[tuple[str, str, list[Path]]]:
    groups: dict[str, list[Path]] = {}
    for place, row in read_rows(source, rejected, KEYS):
        try:
            if missing := [key for key in KEYS if row.get(key) in (None, "")]:
                raise DataError(f"key {missing[0]!r} is missing")
            image, prompt = (parse_text(row[key], key) for key in KEYS)
        except DataError as error:
            rejected.add(place, f"record: {error}")
            continue
        groups.setdefault(prompt, []).append(source.parent / image)
    for prompt, images in groups.items():
        yield f"{source}: {prompt}", prompt, images
