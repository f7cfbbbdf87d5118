"""`paco score`: several pictures or a folder as a matrix, tables of sets, and a table that goes on after a kill."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from paco_core.api.judge import Judge
from paco_core.cli import main, score_table
from paco_core.cli.score import ScoreOptions
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.io.pictures import list_pictures
from tests.support import reward_tiny, tiny_vlm


@pytest.fixture
def folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny_vlm.build(project / paths.REWARD_MERGED)
    (project / "set").mkdir()
    for number in (1, 2, 10):
        reward_tiny.picture(number).save(project / "set" / f"{number}.png")
    (project / "set" / "notes.txt").touch()
    monkeypatch.chdir(project)
    return project


@pytest.mark.slow
def test_pictures_are_compared_each_with_each(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [file.name for file in list_pictures(folder / "set")] == ["1.png", "2.png", "10.png"]
    main(["score", "set", "--out", "matrix.csv"])
    lines = capsys.readouterr().out.splitlines()
    matrix = Judge().matrix(list_pictures(folder / "set"))
    assert lines[2].split() == ["1", "1.png", f"{matrix[0, 1]:.4f}", f"{matrix[0, 2]:.4f}"]
    assert lines[-2].startswith("mean of 3 pairs: 0.") and lines[-1] == "wrote matrix.csv"
    with (folder / "matrix.csv").open(newline="") as stream:
        head, *rows = csv.reader(stream)
    assert head == ["", "1.png", "2.png", "10.png"]
    assert float(rows[2][1]) == float(rows[0][3]) == matrix[0, 2] and rows[1][2] == ""
    main(["score", *(f"set/{n}.png" for n in (1, 2, 10)), "--json"])
    assert json.loads(capsys.readouterr().out)["scores"][0][2] == matrix[0, 2]
    (folder / "empty").mkdir()
    with pytest.raises(SystemExit):
        main(["score", "empty"])
    assert "empty: holds no picture (.png, .jpg" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_table_of_sets_gets_the_mean_of_each(folder: Path, suffix: str) -> None:
    names_of_set = ["set/1.png", "set/2.png"]
    rows = [{"pictures": "set"}, {"pictures": "; ".join(names_of_set) if suffix == ".csv" else names_of_set}]
    table = folder / f"sets{suffix}"
    frame = pd.DataFrame(rows)
    if suffix == ".csv":
        frame.to_csv(table, index=False)
    elif suffix == ".jsonl":
        frame.to_json(table, orient="records", lines=True)
    else:  # one type a column there
        pd.DataFrame([{"pictures": [f"set/{n}.png" for n in (1, 2, 10)]}, rows[1]]).to_parquet(table)
    line = score_table.score_table(folder, table, ScoreOptions())
    assert ": 2 sets, 0 without a score, mean score 0." in line
    read: Any = {".csv": pd.read_csv, ".parquet": pd.read_parquet, ".jsonl": lambda f: pd.read_json(f, lines=True)}
    judge = Judge()
    expected = [judge.consistency(list_pictures(folder / "set")), judge.score(*names_of_set)]
    assert list(read[suffix](folder / f"sets.scored{suffix}")["score"]) == pytest.approx(expected)


def test_tables_of_sets_that_are_none_are_named(folder: Path) -> None:
    for rows, names in (
        ([{"pictures": "set/1.png"}], r"sets\.jsonl:1: pictures"),
        ([{"pictures": 3}], r"sets\.jsonl:1: pictures is '3'"),
        ([{"pictures": ["set/1.png", "lost.png"]}], r"sets\.jsonl:1: lost.png"),
        ([{"pictures": "set", "first": "set/1.png"}], "pictures and first"),
        ([{"first": "set/1.png"}], "second"),
    ):
        (folder / "sets.jsonl").write_text("\n".join(map(json.dumps, rows)))
        with pytest.raises(DataError, match=names):
            score_table.score_table(folder, folder / "sets.jsonl", ScoreOptions())


def test_places_are_the_lines_of_the_file(folder: Path) -> None:
    good = "set/1.png,set/2.png"
    (folder / "pairs.csv").write_text(f"first,second\n{good}\n\n{good}\nset/1.png,lost.png\n")
    with pytest.raises(DataError, match=r"pairs\.csv:5: lost\.png: no such picture"):
        score_table.score_table(folder, folder / "pairs.csv", ScoreOptions())
    frame = pd.DataFrame([{"first": "set/1.png", "second": name} for name in ("set/2.png", "lost.png")])
    frame.to_parquet(folder / "pairs.parquet")
    with pytest.raises(DataError, match=r"pairs\.parquet: row 1: lost\.png: no such picture"):
        score_table.score_table(folder, folder / "pairs.parquet", ScoreOptions())


@pytest.mark.slow
def test_rows_that_are_done_are_not_scored_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"set/{n}.png" for n in (1, 2, 10)]
    rows = [{"first": a, "second": b} for a in names for b in names]
    table = folder / "pairs.csv"
    pd.DataFrame(rows).to_csv(table, index=False)
    monkeypatch.setattr(score_table, "PAIRS", 2)
    score_table.score_table(folder, table, ScoreOptions(), folder / "whole.csv")
    batches: list[int] = []
    scores = Judge.scores

    def dies(self: Judge, pairs: Any, **options: Any) -> Any:
        if len(batches) == 3:
            raise KeyboardInterrupt
        batches.append(len(pairs))
        return scores(self, pairs, **options)

    monkeypatch.setattr(Judge, "scores", dies)
    with pytest.raises(KeyboardInterrupt):
        score_table.score_table(folder, table, ScoreOptions())
    assert batches == [2, 2, 2] and not (folder / "pairs.scored.csv").exists()
    assert (folder / "pairs.scored.csv.unfinished").is_file()
    rescored: list[int] = []
    monkeypatch.setattr(
        Judge, "scores", lambda self, pairs, **options: rescored.append(len(pairs)) or scores(self, pairs, **options)
    )
    reward_tiny.picture(7).save(folder / "set" / "10.png")  # of the six rows that are done one shows it
    lines: list[str] = []
    score_table.score_table(folder, table, ScoreOptions(), log=lines.append)
    assert "pairs.csv: 4 of 9 rows were scored before, and are not scored again" in lines and sum(rescored) == 5
    assert not (folder / "pairs.scored.csv.unfinished").exists()
    before, after = (pd.read_csv(folder / name) for name in ("whole.csv", "pairs.scored.csv"))
    unchanged = [row for row in range(9) if "set/10.png" not in rows[row].values()]
    assert list(before["score"][unchanged]) == list(after["score"][unchanged])
    assert list(before["score"]) != list(after["score"])
    score_table.score_table(folder, table, ScoreOptions(), log=lines.append)  # whole tables are scored anew
    assert sum(rescored) == 14
