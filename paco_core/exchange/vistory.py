"""Import of ViStoryBench: its published stories become prompts of stories.

    prompts_en.jsonl  prompts_ch.jsonl   one record per story, one panel per shot (``data/records/story_records.py``)
    characters/                          one PNG per reference image, named by its content
    rejected.jsonl  summary.json

The import reads ``NN/story.json`` with ``NN/image/<character>/**``, in the folder or in its ``ViStory``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ConfigDict, Field, NonNegativeInt, ValidationError

from paco_core.data.records.characters import (
    FOLDER,
    MAX_CHARACTERS,
    MAX_IMAGES,
    Character,
    named_characters,
    validate_image,
)
from paco_core.data.records.prompt_text import PANEL_MARK
from paco_core.data.records.records import PromptRecord, Text, Words, validated, write_prompts
from paco_core.data.records.story_records import CastMember, Shot, Story, story_of
from paco_core.io.atomic import atomic
from paco_core.io.decoding import MAX_SIDE
from paco_core.io.files import DataError, inside, md5_of, read_json, write_json
from paco_core.io.pictures import read_image
from paco_core.io.rejected import Rejected
from paco_core.io.shards import encode_png
from paco_core.io.text import normalize_text
from paco_core.io.validation import StrictModel, first_validation_error

Language = Literal["en", "ch"]
LANGUAGES: tuple[Language, ...] = ("en", "ch")
PICTURES = (".jpg", ".jpeg", ".png")
PANEL_PX, PIXELS_OF_SIDES = 512, 16  # size of panels, unless the image would be too wide
MOST_PANELS = 99  # that a layout can name
PANEL_IMAGES = 4  # of characters in a panel: the limit of FLUX.2 [klein]

Texts = Mapping[str, Text]  # by language


class _Shot(StrictModel):
    model_config = ConfigDict(extra="ignore")

    index: NonNegativeInt
    setting: Texts = Field(alias="Setting Description")
    plot: Texts = Field(alias="Plot Correspondence")
    action: Texts = Field(alias="Static Shot Description")
    camera: Texts = Field(alias="Shot Perspective Design")
    characters: Mapping[str, Sequence[str]] = Field(alias="Characters Appearing")


class _Character(StrictModel):
    model_config = ConfigDict(extra="ignore")

    name_en: Words
    name_ch: Text = ""
    prompt_en: Text = ""
    prompt_ch: Text = ""


class _Panel(NamedTuple):
    shot: Shot
    text: str


def import_vistory(source: Path, out: Path) -> dict[str, Any]:
    """Import the stories of ViStoryBench into ``out``, and return their counts.

    Stories, shots, characters and images that cannot be used are skipped, and their causes are listed.

    Raises:
        DataError: if ``source`` contains no story, or none that can be used.
    """
    folder = source / "ViStory" if (source / "ViStory").is_dir() else source
    story_folders = sorted((path for path in folder.glob("*") if path.name.isdigit() and path.is_dir()), key=_number)
    if not story_folders:
        raise DataError(f"{folder}: no folder NN with a story.json there; expected ViStoryBench as it is published")
    rejected, stories = Rejected(), dict[str, list[PromptRecord]]()
    with atomic(out) as part:
        (part / FOLDER).mkdir(parents=True)
        for path in story_folders:
            try:
                for record in _Reader(path, part / FOLDER, rejected).records():
                    stories.setdefault(story_of(record).language, []).append(record)
            except DataError as error:
                rejected.add(str(path / "story.json"), f"story: {error}")
        if not stories:
            raise DataError(f"{folder}: none of its {len(story_folders)} stories can be used{rejected.example}")
        for language, records in stories.items():
            write_prompts(part / f"prompts_{language}.jsonl", records)
        rejected.write(part / "rejected.jsonl")
        counts: dict[str, Any] = {f"stories.{language}": len(records) for language, records in stories.items()}
        counts |= {"pictures": len(list((part / FOLDER).iterdir())), **rejected.figures()}
        write_json(part / "summary.json", counts)
    return counts


def _number(path: Path) -> int:
    return int(path.name)


class _Reader:
    """Reader of one story. Its reference images are added to ``pictures``."""

    def __init__(self, folder: Path, pictures: Path, rejected: Rejected) -> None:
        self.folder, self.pictures, self.rejected = folder, pictures, rejected
        self.file = folder / "story.json"

    def records(self) -> list[PromptRecord]:
        """One record per language of the story.

        Raises:
            DataError: if it does not have the published format, or no shot can be used.
        """
        content = read_json(self.file)
        if not isinstance(content, dict) or not isinstance(content.get("Shots"), list):
            raise DataError("expected an object with the list Shots")
        kind = content.get("Story_type")
        characters = self._characters(content.get("Characters"))
        shots = self._shots(content["Shots"], characters)
        pictures = {key: self._pictures_of(key) for key in characters}
        records = [
            self._record(
                language, str(kind.get(language, "")) if isinstance(kind, dict) else "", characters, panels, pictures
            )
            for language in LANGUAGES
            if any(shot.action.get(language) for shot in shots)
            and (panels := [panel for shot in shots if (panel := self._panel(shot, language, characters)) is not None])
        ]
        if not records:
            raise DataError("none of its shots can be used")
        return records

    def _characters(self, value: Any) -> dict[str, _Character]:
        characters = {}
        for key, row in value.items() if isinstance(value, dict) else ():
            try:
                characters[key] = _Character.model_validate(row)
            except ValidationError as error:
                self.rejected.add(f"{self.file}: character {key}", f"character: {first_validation_error(error)}")
        return characters

    def _shots(self, values: Sequence[Any], characters: Container[str]) -> list[_Shot]:
        shots: dict[int, _Shot] = {}
        for number, row in enumerate(values):
            place = f"{self.file}: Shots[{number}]"
            try:
                shot = _Shot.model_validate(row)
            except ValidationError as error:
                self.rejected.add(place, f"shot: {first_validation_error(error)}")
                continue
            if shot.index in shots:
                self.rejected.add(place, f"duplicate: an earlier shot has the index {shot.index}")
                continue
            shots[shot.index] = shot
            for key in [key for key in _keys(shot) if key not in characters]:
                self.rejected.add(place, f"character: {key!r} appears, and is none of the story's characters")
        return [shots[index] for index in sorted(shots)]

    def _pictures_of(self, key: str) -> list[str]:
        """The readable reference images of a character, by their names in the new folder."""
        try:
            folder = inside(self.folder / "image", key)
        except DataError as error:
            self.rejected.add(f"{self.file}: character {key}", f"character: {error}")
            return []
        paths = []
        for path in sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURES):
            try:
                validate_image(str(path))
                png = encode_png(read_image(path))
            except DataError as error:
                self.rejected.add(str(path), f"picture: {error}")
                continue
            name = f"{md5_of(png)}.png"  # as `copy_images` names it
            (self.pictures / name).write_bytes(png)
            paths.append(f"{FOLDER}/{name}")
        if not paths:
            self.rejected.add(f"{folder}", f"picture: there is none of the character {key}")
        return paths

    def _panel(self, shot: _Shot, language: Language, characters: Mapping[str, _Character]) -> _Panel | None:
        """A shot in one language, with the text order of the benchmark's loader; None if a text is missing."""
        place = f"{self.file}: shot {shot.index}"
        texts = {name: getattr(shot, name).get(language, "").strip() for name in ("setting", "action", "camera")}
        if missing := [name for name, text in texts.items() if not text]:
            self.rejected.add(place, f"text: no {missing[0]} in {language!r}")
            return None
        keys = [key for key in _keys(shot) if key in characters]
        people = [f"{_name(characters[key], language)} is {_prompt(characters[key], language)}" for key in keys]
        plot = shot.plot.get(language, "").strip()
        parts = [texts["camera"], plot, texts["action"], *people, texts["setting"]]
        text = "; ".join(filter(None, parts))
        if mark := PANEL_MARK.search(text):
            self.rejected.add(place, f"text: it holds the panel mark {mark.group()}")
            return None
        return _Panel(Shot(index=shot.index, characters=keys, plot=plot, **texts), text)

    def _record(
        self,
        language: Language,
        kind: str,
        characters: Mapping[str, _Character],
        panels: Sequence[_Panel],
        pictures: Mapping[str, Sequence[str]],
    ) -> PromptRecord:
        if len(panels) > MOST_PANELS:
            raise DataError(f"it has {len(panels)} shots, a layout at most {MOST_PANELS} panels")
        side = min(PANEL_PX, MAX_SIDE // len(panels) // PIXELS_OF_SIDES * PIXELS_OF_SIDES)
        texts = " ".join(f"PANEL-{number}: {panel.text}" for number, panel in enumerate(panels, 1))
        story = Story(
            story=self.folder.name,
            language=language,
            shots=[panel.shot for panel in panels],
            cast={
                key: CastMember(
                    name=_name(character, language), description=_prompt(character, language), pictures=pictures[key]
                )
                for key, character in characters.items()
            },
        )
        name = f"vistory-{language}-{self.folder.name}"
        people = _characters([panel.text for panel in panels], story, self.pictures.parent) if len(panels) > 1 else []
        return validated(PromptRecord, {
            "idx": name, "prompt": f"A story in {len(panels)} pictures. {texts}", "height": side,
            "width": side * len(panels), "layout": f"1x{len(panels)}", "theme": f"{name}: {kind}" if kind else name,
            "category": "Story", "task_name": "ViStoryBench", "criteria": {}, **story.model_dump(),
            **({"characters": people} if people else {}),
        }, f"Story_type {kind!r}")  # fmt: skip


def _characters(panels: Sequence[str], story: Story, folder: Path) -> list[Character]:
    """The characters of a record: those with images that most panels name, and as many images as a panel can use.

    A record has at most :data:`MAX_CHARACTERS`. Each of them has the same maximum number of images, so a panel has at
    most :data:`PANEL_IMAGES`.
    """
    people: dict[str, Character] = {}
    for member in story.cast.values():
        if member.pictures:  # of two with one name, the first
            paths = tuple(str(folder / path) for path in member.pictures)
            people.setdefault(normalize_text(member.name), Character(member.name, paths))
    appearances = [named_characters(text, list(people.values())) for text in panels]
    counts = Counter(character for panel in appearances for character in panel)
    chosen = [character for character, _ in counts.most_common(MAX_CHARACTERS)]
    for most in range(MAX_IMAGES, 0, -1):
        cut = {c: Character(c.name, c.images[:most]) for c in chosen}
        needed = max((sum(len(cut[c].images) for c in panel if c in cut) for panel in appearances), default=0)
        if needed <= PANEL_IMAGES or most == 1:
            return [cut[character] for character in people.values() if character in cut]
    return []


def _keys(shot: _Shot) -> list[str]:
    """Who appears in it, each once; keys are English in both languages."""
    return list(dict.fromkeys(key.strip() for key in shot.characters.get("en", ())))


def _name(character: _Character, language: Language) -> str:
    return character.name_ch or character.name_en if language == "ch" else character.name_en


def _prompt(character: _Character, language: Language) -> str:
    return character.prompt_ch if language == "ch" else character.prompt_en
