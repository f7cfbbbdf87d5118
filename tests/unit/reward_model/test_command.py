"""`paco score` on files and tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from safetensors.torch import load_file, save_file

from paco_core.cli import score_table as command
from paco_core.cli.score import ScoreOptions, score_pictures
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.reward_model.golden import write_golden
from paco_core.reward_model.instructions import question
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.yes_probability import PairQuery
from tests.support import reward_tiny, tiny_vlm
from tests.support.reward_project import fill


@pytest.fixture
def folder(project: Path) -> Path:
    """A project with a reward model, and five pictures beside it."""
    tiny_vlm.build(project / paths.REWARD_MERGED)
    (project / "pictures").mkdir()
    for number in range(5):
        reward_tiny.picture(number).save(project / "pictures" / f"{number}.png")
    return project


def pairs(folder: Path, suffix: str, **changes: Any) -> Path:
    frame = pd.DataFrame(
        {
            "id": range(6),
            "first": [f"pictures/{n % 5}.png" for n in range(6)],
            "second": [f"pictures/{(n + 1) % 5}.png" for n in range(6)],
            "theme": ["the same style", None] * 3,
        }
    )
    for column, value in changes.items():
        frame.loc[4, column] = value
    table = folder / f"pairs{suffix}"
    if suffix == ".parquet":
        frame.to_parquet(table, index=False)
    elif suffix == ".csv":
        frame.to_csv(table, index=False)
    else:
        frame.to_json(table, orient="records", lines=True)
    return table


@pytest.mark.slow
def test_a_table_is_scored_in_batches_with_progress(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PAIRS", 4)
    told: list[str] = []
    tables: list[tuple[str, Callable[..., pd.DataFrame]]] = [
        (".parquet", pd.read_parquet), (".csv", pd.read_csv), (".jsonl", lambda path: pd.read_json(path, lines=True)),
    ]  # fmt: skip
    scorer = Scorer(folder / paths.REWARD_MERGED)
    for suffix, read in tables:
        line = command.score_table(folder, pairs(folder, suffix), ScoreOptions(), say=told.append)
        assert line.startswith(f"{folder / 'pairs.scored'}{suffix}: 6 pairs, 0 without a score, mean score ")
        found = read(folder / f"pairs.scored{suffix}")
        for row in found.itertuples():
            text = question("the same style" if row.id % 2 == 0 else None)
            images = [reward_tiny.picture(int(Path(name).stem)) for name in (row.first, row.second)]
            assert row.score == pytest.approx(scorer.score([PairQuery(*images, text)])[0].value, abs=1e-5)
    assert any("6/6 pairs" in line for line in told)


@pytest.mark.slow
def test_reasons_are_added_when_asked(folder: Path) -> None:
    command.score_table(folder, pairs(folder, ".parquet"), ScoreOptions(reasons=True), folder / "out.parquet")
    found = pd.read_parquet(folder / "out.parquet")
    assert list(found.columns) == ["id", "first", "second", "theme", "score", "cause", "reasons"]
    assert found["reasons"].str.len().min() > 0


@pytest.mark.slow
def test_panels_of_the_project_are_found_by_reference(project: Path) -> None:
    fill(project)
    tiny_vlm.build(project / paths.REWARD_MERGED)
    table, out = project / paths.COT_LABELS / "validation.parquet", project / "scored.parquet"
    with pytest.raises(DataError, match=r"validation.scored.parquet lies in data/cot_labels, an out of the stage"):
        command.score_table(project, table, ScoreOptions())
    line = command.score_table(project, table, ScoreOptions(), out)
    assert ": 4 pairs, 0 without a score" in line
    frame = pd.read_parquet(project / paths.COT_LABELS / "validation.parquet").reset_index(drop=True)
    frame.loc[1, "second"] = "lost#1"
    frame.to_parquet(project / "lost.parquet")
    with pytest.raises(DataError, match=r"lost.parquet: row 1: lost#1: no such grid"):
        command.score_table(project, project / "lost.parquet", ScoreOptions())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"second": "pictures/9.png"}, r"pairs.parquet: row 4: pictures/9.png: no such picture"),
        ({"first": None}, r"pairs.parquet: row 4: (None|nan): no picture is named"),
    ],
)
def test_a_missing_picture_names_its_row_before_anything_is_scored(
    folder: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(command, "Judge", lambda *_args, **_named: pytest.fail("the model was loaded"))
    with pytest.raises(DataError, match=message):
        command.score_table(folder, pairs(folder, ".parquet", **changes), ScoreOptions())
    assert not (folder / "pairs.scored.parquet").exists()


@pytest.mark.slow
def test_the_command_line_takes_pictures_or_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from paco_core.cli import commands as cli

    picture = str(folder / "pictures" / "0.png")
    cli.main(["score", picture, picture])
    assert 0.0 <= float(capsys.readouterr().out) <= 1.0
    cli.main(["score", "--table", str(pairs(folder, ".csv")), "--out", str(folder / "x.csv")])
    assert "x.csv: 6 pairs" in capsys.readouterr().out and (folder / "x.csv").is_file()
    for wrong, message in (
        (["score", picture], "give two pictures, several, a folder of pictures, or --table"),
        (["score"], "give two pictures, several, a folder of pictures, or --table"),
        (["score", picture, "--table", "x.csv"], "give pictures, or --table with a table of them, not both"),
        (["score", picture, picture, "--out", "x.csv"], "--out goes with --table, or with more than two pictures"),
        (["score", picture, picture, picture, "--reasons"], "--reasons goes with two pictures, or with --table"),
    ):
        with pytest.raises(SystemExit):
            cli.main(wrong)
        assert message in capsys.readouterr().err


def test_tables_that_are_none_are_named(folder: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        command.score_table(folder, folder / "none.parquet", ScoreOptions())
    (folder / "pairs.xlsx").touch()
    with pytest.raises(DataError, match="unknown format '.xlsx'; expected .parquet, .csv, .jsonl"):
        command.score_table(folder, folder / "pairs.xlsx", ScoreOptions())
    (folder / "broken.parquet").write_bytes(b"no table")
    with pytest.raises(DataError, match="broken.parquet: not readable as parquet"):
        command.score_table(folder, folder / "broken.parquet", ScoreOptions())
    pd.DataFrame({"first": ["a"]}).to_csv(folder / "half.csv")
    with pytest.raises(DataError, match="column second is missing"):
        command.score_table(folder, folder / "half.csv", ScoreOptions())
    with pytest.raises(DataError, match="model './elsewhere': no such folder"):
        command.score_table(folder, pairs(folder, ".csv"), ScoreOptions("./elsewhere"))


@pytest.mark.slow
def test_the_golden_pairs_of_the_folder_are_asked_first(folder: Path) -> None:
    """Weights that are whole, and yet not those that the folder was written with."""
    model = folder / paths.REWARD_MERGED
    asked = [example.query for example in reward_tiny.pairs(3)]
    write_golden(model, asked, Scorer(model).score(asked), "float32")
    first, second = (folder / "pictures" / f"{n}.png" for n in range(2))
    assert score_pictures(folder, [first, second], ScoreOptions()).startswith("0.")
    tensors = load_file(model / "model.safetensors")
    changed = {name: tensor * 1.5 if name.endswith("q_proj.weight") else tensor for name, tensor in tensors.items()}
    save_file(changed, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match="does not give the golden scores that it was written with: pair 0"):
        score_pictures(folder, [first, second], ScoreOptions())
    with pytest.raises(DataError, match="golden scores"):
        command.score_table(folder, pairs(folder, ".csv"), ScoreOptions())
