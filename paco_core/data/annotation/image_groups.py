"""Image groups: images of one prompt, from any tool, which people rank without a reference image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from paco_core.data.records.records import panel_ref, parse_ref
from paco_core.data.tables import FORMATS, parse_text, read_rows
from paco_core.io.decoding import SUFFIXES
from paco_core.io.files import DataError, digest, read_text_file
from paco_core.io.pictures import content_and_size, read_image
from paco_core.io.rejected import Rejected

if TYPE_CHECKING:
    from PIL.Image import Image

SMALLEST, LARGEST = 2, 6  # images of a group
ANSWERS = "annotations"  # folder next to the images: the store and the answers
PROMPT_FILE = "prompt.txt"
NO_REFERENCE = ""
KEYS = ("image", "prompt")


@dataclass(frozen=True)
class ImageFiles:
    """Images by ``MD5#0``, with the methods of :class:`paco_core.data.records.panels.PanelStore` that a queue needs."""

    files: Mapping[str, Path]

    def versions(self) -> dict[str, str]:
        return {md5: md5 for md5 in self.files}

    def panel(self, ref: str) -> Image:
        """The image of a reference.

        Raises:
            DataError: if it was changed or removed.
        """
        md5, _ = parse_ref(ref)
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
        Columns ``instance_id``, ``prompt``, ``reference`` (empty) and ``candidates``. An instance id is a digest of the
        prompt and the images, so changed images are a new instance.

    Raises:
        DataError: if the source is missing, or none of its groups can be ranked.
    """
    if not source.exists():
        raise DataError(f"{source}: no such folder or table")
    if source.is_file() and source.suffix.lower() not in FORMATS:
        raise DataError(f"{source}: expected a folder, or a table ({', '.join(FORMATS)})")
    rows, files = [], dict[str, Path]()
    for place, prompt, images in _folders(source) if source.is_dir() else _table(source, rejected):
        try:
            md5s = _contents(images)
        except DataError as error:
            rejected.add(place, f"group: {error}")
            continue
        files |= dict(zip(md5s, images, strict=True))
        refs = [panel_ref(md5, 0) for md5 in md5s]
        rows.append((digest([prompt, *refs], 16), prompt, NO_REFERENCE, refs))
    if not rows:
        hint = f"put {SMALLEST} to {LARGEST} images of one prompt into each subfolder"
        raise DataError(f"{source}: contains no group of images that can be ranked{rejected.example}; {hint}")
    table = pd.DataFrame(rows, columns=["instance_id", "prompt", "reference", "candidates"])
    return table.drop_duplicates("instance_id", ignore_index=True), ImageFiles(files)


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
        if any(part.startswith(".") for part in inner.parts):
            continue
        images = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in SUFFIXES and path.is_file()]
        images = [path for path in images if not path.name.startswith(".")]
        if images:
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
