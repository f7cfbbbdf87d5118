"""The code of a fetched card loads the copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from paco_core.operations.named import copy_named_files

CARD = """pipeline.load_lora_weights({place!r})  # this folder
folder = {place!r}, '{place}/golden'
project: data/policies/x
"""


@pytest.mark.parametrize(
    ("name", "place"), [("flux_t2is", "data/policies/flux_t2is/adapter"), ("reward_merged", "data/reward_merged")]
)
def test_a_fetched_card_names_the_new_folder(tmp_path: Path, name: str, place: str) -> None:
    folder = tmp_path / place
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(CARD.format(place=place))
    target = tmp_path / "copies" / "mine"
    target.parent.mkdir()
    copy_named_files(tmp_path, name, target)
    assert (target / "README.md").read_text() == CARD.format(place=str(target))
    assert (folder / "README.md").read_text() == CARD.format(place=place), "the project's own card stays"
