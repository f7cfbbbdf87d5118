"""Contents of the page ``paco play``: its policies, its reward model and its example prompts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.data.records import prompt_text
from paco_core.data.records.edit_records import of_part, read_edit_prompts
from paco_core.data.records.prompt_content import contents_of_all, without_contents
from paco_core.data.records.records import read_prompts
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.io.secrets import redacted
from paco_core.operations.painters import BASE
from paco_core.operations.promotion.champions import ALIASES, Champions
from paco_core.operations.stories import story_params
from paco_core.tasks.edits import EDITS
from paco_core.tasks.sets import SETS
from paco_core.tasks.table import recipes_of

if TYPE_CHECKING:
    from paco_core.config.params import Params
    from paco_core.operations.play.gallery import Gallery
    from paco_core.tasks.base import Task

log = logging.getLogger("paco.play")
EXAMPLES = 4


def about(root: Path, params: Params, gallery: Gallery) -> dict[str, Any]:
    """Read anew each time: a training may end while the page is open."""
    aliases = _aliases(root)
    return {
        "project": root.resolve().name,
        "judge": (root / paths.REWARD_MERGED).is_dir(),
        "usual_panels": [prod(prompt_text.parse_layout(name)) for name in params.prompts.layouts]
        if params.world == "storybook"
        else None,
        "sets": painters(root, params, SETS, aliases),
        "edits": painters(root, params, EDITS, aliases),
        **_stories(root, params, aliases),
        "set_examples": _sets(root),
        "edit_examples": _edits(root, gallery),
    }


def painters(root: Path, params: Params, task: Task, aliases: Mapping[str, list[str]]) -> list[dict[str, Any]]:
    """The policies of a task that were trained, their champions and challengers, and the model before training.

    Args:
        aliases: of the versions of each policy, by its name.
    """
    recipes = recipes_of(task, params.policies)
    policies = []
    for name, recipe in recipes.items():
        sizes = sorted(recipe.eval_sizes)
        if (root / paths.POLICIES / name).is_dir():
            policies.append({"name": name, "trained": True, "sizes": sizes})
        policies += [{"name": f"{name}@{alias}", "trained": True, "sizes": sizes} for alias in aliases.get(name, ())]
    if recipes:
        sizes = sorted(next(iter(recipes.values())).eval_sizes)
        policies.append({"name": BASE, "trained": False, "sizes": sizes})
    return policies


def _stories(root: Path, params: Params, aliases: Mapping[str, list[str]]) -> dict[str, Any]:
    """The policies that generate stories, or else the reason why there are none, which says what to add."""
    try:
        return {"stories": painters(root, story_params(params), SETS, aliases), "stories_need": None}
    except DataError as error:
        return {"stories": [], "stories_need": str(error)}


def _aliases(root: Path) -> dict[str, list[str]]:
    """The aliases that the versions of each policy have; the registry is asked once for the whole page."""
    try:
        registry = Champions.from_store(root)
        if registry is None:
            return {}
        return {name: [a for a in ALIASES if registry.at(name, a) is not None] for name in registry.names()}
    except Exception as error:  # MLflow raises much, and the page does without its champions  # noqa: BLE001
        log.warning("the registry does not answer (%s)", redacted(str(error).splitlines()[0]))
        return {}


def _sets(root: Path) -> list[dict[str, Any]]:
    """The project's own prompts in parts: what they are about, and the panels; of themes that no policy was trained on,
    where there are any. Put together again each is the prompt that it was, to the letter.
    """
    try:
        records = read_prompts(root / paths.PROMPTS / "prompts.jsonl")
        trained = contents_of_all(read_prompts(root / paths.DIVERSE_PROMPTS / "prompts.jsonl"))
        fresh = without_contents(records, trained) or records
        parts = {record.theme: prompt_text.parse_prompt(record.prompt, record.layout) for record in fresh}
    except DataError:  # not made yet
        return []
    several = {
        theme: prompt
        for theme, prompt in parts.items()
        if len({panel.text for panel in prompt.panels}) == len(prompt.panels)
    }
    return [
        {"name": theme, "theme": prompt.theme, "panels": [panel.text for panel in prompt.panels]}
        for theme, prompt in list((several or parts).items())[:EXAMPLES]
    ]


def _edits(root: Path, gallery: Gallery) -> list[dict[str, Any]]:
    """Instructions that no policy was trained on, and their pictures."""
    try:
        records, reference = read_edit_prompts(root / paths.EDIT_PROMPTS, none_allowed=True)
        chosen = (of_part(records, "unseen") or records)[:EXAMPLES]
        return [{"instruction": edit.prompt, "pictures": [gallery.add(p) for p in reference(edit)]} for edit in chosen]
    except DataError:  # not made yet
        return []
