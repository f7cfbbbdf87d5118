"""The example that validates a reward model on characters."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import ImageChops, ImageStat

from examples import character_auc
from paco_core.config import profiles
from paco_core.data.pairs.characters import NEGATIVES
from paco_core.io.files import digest, read_json
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.yes_probability import PairQuery, Score
from paco_core.storybook import drawing
from tests.support import REPOSITORY

PARAMS = profiles.read(REPOSITORY, "characters_storybook")


class _RejectsCopies:
    """Says Yes to each panel that differs from the image of the character."""

    def score(self, queries: Sequence[PairQuery]) -> list[Score]:
        distances = (ImageStat.Stat(ImageChops.difference(query.first, query.second)).mean for query in queries)
        return [Score(float(max(distance) > 0)) for distance in distances]


def test_panels_show_held_out_characters_with_each_number_of_images() -> None:
    held_out = {f"character-{digest(name)}" for name in ("a red cat", "a blue frog with a hat", "a white bear")}
    characters = character_auc.draw_panels(held_out, 48, 1, PARAMS)
    assert {case.prompt_id for case in characters.cases} == held_out
    counts = Counter((case.kind, len(case.references)) for case in characters.cases)
    assert {counts["positive", number] for number in (1, 2, 3)} == {8}
    assert {counts[kind, number] for kind in NEGATIVES for number in (1, 2, 3)} == {2}


def test_the_command_writes_the_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for color in drawing.BODY:  # the command changes the colors of the process
        monkeypatch.setitem(drawing.BODY, color, drawing.BODY[color])
    params = PARAMS.model_copy(
        update={"consistency_rank": PARAMS.consistency_rank.model_copy(update={"clip": None, "bootstrap": 50})}
    )
    monkeypatch.setattr(character_auc.configuration, "load", lambda _path: params)
    monkeypatch.setattr(Scorer, "configured", lambda _folder, _reward: _RejectsCopies())
    output = tmp_path / "metrics.json"
    arguments = ["--new-colors", "--panels", "96", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["character_auc.py", *arguments])
    character_auc.main()
    metrics = read_json(output)
    assert 0.5 < metrics["characters.copy.1.reward"] <= 1.0, "half of the copies have equal pixels"
    assert metrics["characters.absent.3.reward"] == 0.5
    assert "other_character" in capsys.readouterr().out
    assert drawing.BODY == character_auc.NEW_COLORS


def test_the_held_out_characters_of_the_profile_can_be_drawn() -> None:
    names = character_auc.drawn_characters()
    assert len(set(names)) == 144 and "a red cat" in names and "a blue frog with a hat" in names
