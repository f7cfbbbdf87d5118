"""What `paco score --table` asks about each row, and what it writes back."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from paco_core.api import judge
from paco_core.cli import score_table as command
from paco_core.cli.score import ScoreOptions
from paco_core.io.files import DataError
from paco_core.reward_model.instructions import question
from paco_core.reward_model.yes_probability import PairQuery, Score
from tests.support import reward_tiny


class Recorder:
    """Stands in for the model: keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def score(self, queries: Sequence[PairQuery], advance: object = None) -> list[Score]:
        self.asked += [query.instruction for query in queries]
        return [Score(0.25) if n else Score(math.nan, "no answer") for n, _ in enumerate(queries)]

    def generate_reasons(self, queries: Sequence[PairQuery]) -> list[str]:
        return ["=1+1", *(["- style"] * (len(queries) - 1))]


@pytest.fixture
def scorer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    for number in range(2):
        reward_tiny.picture(number).save(tmp_path / f"{number}.png")
    found = Recorder()
    model = SimpleNamespace(identity="a recorder", load=lambda: found, place=nullcontext)
    for module in (judge, command):  # who asks, and who keeps what was asked
        monkeypatch.setattr(module, "judge_model", lambda *_, **__: model)
    return found


THEMES = ["None", "NA", "null", "1984", "0017", "nan", ""]


def test_a_theme_is_asked_as_it_is_spelled(tmp_path: Path, scorer: Recorder) -> None:
    rows = [{"first": "0.png", "second": "1.png", "theme": theme, "id": f"00{n}"} for n, theme in enumerate(THEMES)]
    (tmp_path / "a.csv").write_text("first,second,theme,id\n" + "".join(",".join(row.values()) + "\n" for row in rows))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for suffix in ("csv", "jsonl"):
        scorer.asked.clear()
        command.score_table(tmp_path, tmp_path / f"a.{suffix}", ScoreOptions())
        assert scorer.asked == [question(theme or None) for theme in THEMES], suffix
    before, after = ((tmp_path / name).read_text().splitlines() for name in ("a.csv", "a.scored.csv"))
    assert after == [before[0] + ",score,cause", before[1] + ",,no answer", *(f"{line},0.25," for line in before[2:])]
    back = [json.loads(line) for line in (tmp_path / "a.scored.jsonl").read_text().splitlines()]
    assert [{key: row[key] for key in rows[0]} for row in back] == rows
    assert (back[0]["score"], back[0]["cause"], back[1]["score"]) == (None, "no answer", 0.25)


def test_an_excel_table_comes_back_as_it_was_and_no_reason_is_a_formula(tmp_path: Path, scorer: Recorder) -> None:
    lines = ["\ufefffirst;second;theme;id", '0.png;1.png;"a bear; ""brown""";0017', "1.png;0.png;=A1;+5"]
    (tmp_path / "a.csv").write_bytes("\r\n".join([*lines, ""]).encode())
    command.score_table(tmp_path, tmp_path / "a.csv", ScoreOptions(reasons=True))
    told = (tmp_path / "a.scored.csv").read_bytes().decode().split("\r\n")
    assert told[:2] == [lines[0] + ";score;cause;reasons", lines[1] + ";;no answer;'=1+1"]
    assert told[2:] == ["1.png;0.png;'=A1;+5;0.25;;'- style", ""]
    asked = list(scorer.asked)
    command.score_table(tmp_path, tmp_path / "a.scored.csv", ScoreOptions(), tmp_path / "b.csv")
    assert scorer.asked[2:] == asked == [question('a bear; "brown"'), question("=A1")]


def test_a_number_that_is_no_integer_is_no_theme(tmp_path: Path, scorer: Recorder) -> None:
    string = "theme is .*, expected a string"
    for theme, cause in ((1984.5, string), (True, string), (["a"], string), (float("nan"), "not valid JSON")):
        (tmp_path / "a.jsonl").write_text(json.dumps({"first": "0.png", "second": "1.png", "theme": theme}))
        with pytest.raises(DataError, match=f"a.jsonl:1: {cause}"):
            command.score_table(tmp_path, tmp_path / "a.jsonl", ScoreOptions())
    (tmp_path / "a.jsonl").write_text('{"first": "0.png", "second": "1.png", "theme": 1984}')
    command.score_table(tmp_path, tmp_path / "a.jsonl", ScoreOptions())
    assert scorer.asked == [question("1984")]


def test_the_result_has_the_table_s_format(tmp_path: Path, scorer: Recorder) -> None:
    (tmp_path / "a.csv").write_text("first,second\n0.png,1.png\n")
    with pytest.raises(DataError, match="b.parquet: expected a name that ends in .csv"):
        command.score_table(tmp_path, tmp_path / "a.csv", ScoreOptions(), tmp_path / "b.parquet")
    (tmp_path / "a.csv").write_text("first,second\n")
    with pytest.raises(DataError, match="a.csv: holds no row"):
        command.score_table(tmp_path, tmp_path / "a.csv", ScoreOptions())
    assert not scorer.asked
