"""Stories with characters that a person brings: the prompt record, the policy, and how well each panel keeps them."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.data.records.characters import Character
from paco_core.data.records.prompt_text import prompt_from_theme
from paco_core.data.records.records import PromptRecord, validated
from paco_core.grpo.panel_references import validate_panel_references
from paco_core.io import paths
from paco_core.io.files import DataError, digest
from paco_core.io.pictures import Picture, is_data_url, picture_of
from paco_core.io.shards import encode_png
from paco_core.operations.painters import BASE, NamedPolicy, painter
from paco_core.policies.families import FAMILIES, family_of
from paco_core.tasks.sets import SETS
from paco_core.tasks.table import recipes_of

if TYPE_CHECKING:
    from paco_core.config.params import Params, PolicyRecipe

CharacterImages = Mapping[str, Picture | Sequence[Picture]]  # by name


def parse_characters(values: Sequence[str]) -> dict[str, list[Path]]:
    """The image files of each character from texts such as ``mia=front.png,side.png``.

    Raises:
        DataError: if a text has another form, or two have one name.
    """
    files: dict[str, list[Path]] = {}
    for value in values:
        name, equals, images = value.partition("=")
        if not equals or not name.strip() or not all(images.split(",")):
            raise DataError(f"--character {value!r}: expected NAME=IMAGE or NAME=IMAGE,IMAGE, for example fox=fox.png")
        if name.strip() in files:
            raise DataError(
                f"--character {value!r}: there is a character {name.strip()!r} already; join its images by commas"
            )
        files[name.strip()] = [Path(image).expanduser() for image in images.split(",")]
    return files


def story_policy(root: Path, params: Params, name: str | None) -> NamedPolicy:
    """The policy that generates stories, with ``panels: one_by_one``.

    Args:
        name: as of :func:`paco_core.operations.painters.painter`. None = the first recipe with ``panels: one_by_one``,
            else the first whose family accepts reference images. If it is not trained, the model before training.

    Raises:
        DataError: if no recipe, or not that of the name, can generate panels one by one.
    """
    limited = story_params(params)
    first = next(iter(limited.policies.recipes))
    if name in (None, BASE):
        is_trained = name is None and (root / paths.POLICIES / first).is_dir()
        return painter(root, limited, first if is_trained else BASE, SETS)
    by = painter(root, params, name, SETS)
    if not _can_refer(by.recipe):
        raise DataError(
            f"{name}: the family {by.recipe.family} cannot use reference images of characters; choose a policy of "
            f"one of the families {_story_families()}, for example {first}"
        )
    return replace(by, recipe=_one_by_one(by.recipe))


def story_params(params: Params) -> Params:
    """The parameters with only the recipes that can generate stories, with ``panels: one_by_one``.

    Recipes that have ``panels: one_by_one`` already come first.

    Raises:
        DataError: if there is none.
    """
    recipes = [(key, recipe) for key, recipe in recipes_of(SETS, params.policies).items() if _can_refer(recipe)]
    if not recipes:
        raise DataError(
            "no recipe of policies.recipes can use reference images of characters; add a recipe with panels: "
            f"one_by_one and one of the families {_story_families()}"
        )
    recipes.sort(key=lambda item: item[1].panels != "one_by_one")
    policies = params.policies.model_copy(update={"recipes": {key: _one_by_one(recipe) for key, recipe in recipes}})
    return params.model_copy(update={"policies": policies})


def _one_by_one(recipe: PolicyRecipe) -> PolicyRecipe:
    return recipe.model_copy(update={"panels": "one_by_one"})


def _story_families() -> str:
    return ", ".join(key for key, family in FAMILIES.items() if family.references[1] and not family.references[0])


def _can_refer(recipe: PolicyRecipe) -> bool:
    fewest, most = family_of(recipe.family).references
    return most > 0 and not fewest


def story_record(
    panels: Sequence[str], images: CharacterImages, recipe: PolicyRecipe, theme: str | None = None
) -> PromptRecord:
    """A story in one row of panels.

    Args:
        panels: the text of each panel.
        images: one to three images of each character, by its name.
        recipe: with ``panels: one_by_one``. Its family limits the reference images of a panel.
        theme: as of :func:`paco_core.operations.prompt_records.set_record`. For example, "a day in the wood. All images
            show watercolor". None = the names of the characters.

    Raises:
        DataError: if a character or an image cannot be used, or a panel names characters with too many images.
    """
    characters = [Character(name, _sources(value)) for name, value in images.items()]
    layout, theme = f"1x{len(panels)}", theme or f"a story about {' and '.join(images)}"
    text = str(prompt_from_theme(theme, panels, layout))
    record = validated(PromptRecord, {
        "idx": digest([text, layout]), "prompt": text, "height": 1, "width": max(1, len(panels)), "layout": layout,
        "theme": theme, "category": "Story", "task_name": "", "criteria": {}, "characters": characters,
    }, "this story")  # fmt: skip
    validate_panel_references(recipe, record)
    return record


def _sources(images: Picture | Sequence[Picture]) -> tuple[str, ...]:
    """The sources of images in :class:`Character`: paths and data URLs."""
    several: Sequence[Picture] = images if isinstance(images, list | tuple) else [images]  # type: ignore[list-item]
    return tuple(map(_source, several))


def _source(image: Picture) -> str:
    """The source of an image in :class:`Character`: a path or a data URL."""
    if isinstance(image, str | os.PathLike):
        return str(image) if is_data_url(image) else str(Path(image).absolute())
    return f"data:image/png;base64,{base64.b64encode(encode_png(picture_of(image))).decode()}"
