"""The stories with characters that the profile *characters_storybook* is trained on and measured by."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from examples import character_stories
from paco_core.config import profiles
from paco_core.data.records.records import characters_of_panels
from paco_core.storybook.prompts import parse_storybook_prompt
from paco_core.storybook.world import IDENTITY
from paco_core.tasks.base import Read
from paco_core.tasks.sets import SETS
from tests.support import REPOSITORY


def test_the_recipe_of_the_profile_accepts_the_stories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = profiles.read(REPOSITORY, "characters_storybook").policies.recipes["flux_t2is"]
    assert recipe.prompts is not None
    folder = tmp_path / Path(recipe.prompts.train).parent
    monkeypatch.setattr(sys, "argv", ["character_stories.py", str(folder), "--train", "30", "--test", "20"])
    character_stories.main()
    read: Read = tmp_path.joinpath
    split = SETS.split(recipe, read)
    assert len(split.trained) == 30 and split.unseen
    identities = []
    for records in (split.trained, split.unseen):
        SETS.validate_truth(records)
        part = set()
        for record in records:
            panels = characters_of_panels(record)
            assert all(len(names) == 1 for names in panels), "each panel names one character"
            assert {names[0] for names in panels} == set(record.characters)
            part |= {tuple(getattr(panel, t) for t in IDENTITY) for panel in parse_storybook_prompt(record.prompt)}
        identities.append(part)
    assert not identities[0] & identities[1]
