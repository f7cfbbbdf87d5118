"""`paco score` on files and tables."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from safetensors.torch import load_file, save_file

from paco_core.api import judge
from paco_core.cli import score_table as command
from paco_core.cli.score import ScoreOptions, score_pictures
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.reward_model.golden import write_golden
from paco_core.reward_model.instructions import question
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.yes_probability import PairQuery, Score
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


def pairs(folder: Path, **changes: Any) -> Path:
    files = [f"pictures/{n % 5}.png" for n in range(7)]
    frame = pd.DataFrame({"first": files[:6], "second": files[1:], "theme": ["the same style", None] * 3})
    for column, value in changes.items():
        frame.loc[4, column] = value
    frame.to_parquet(folder / "pairs.parquet", index=False)
    return folder / "pairs.parquet"


@pytest.mark.slow
def test_a_table_is_scored_in_batches_with_progress(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PAIRS", 4)
    lines: list[str] = []
    scorer = Scorer(folder / paths.REWARD_MERGED)
    line = command.score_table(folder, pairs(folder), ScoreOptions(), log=lines.append)
    assert line.startswith(f"{folder / 'pairs.scored.parquet'}: 6 pairs, 0 without")
    for row in pd.read_parquet(folder / "pairs.scored.parquet").itertuples():
        images = [reward_tiny.picture(int(Path(name).stem)) for name in (row.first, row.second)]
        query = PairQuery(*images, question("the same style" if row.Index % 2 == 0 else None))
        assert row.score == pytest.approx(scorer.score([query])[0].value, abs=1e-5)
    assert any("6/6 pairs" in line for line in lines)


@pytest.mark.slow
def test_panels_of_the_project_are_found_by_reference(project: Path) -> None:
    fill(project)
    tiny_vlm.build(project / paths.REWARD_MERGED)
    table, out = project / paths.COT_LABELS / "validation.parquet", project / "scored.parquet"
    with pytest.raises(DataError, match="data/cot_labels"):
        command.score_table(project, table, ScoreOptions())
    line = command.score_table(project, table, ScoreOptions(), out)
    assert ": 4 pairs, 0 without a score" in line
    frame = pd.read_parquet(project / paths.COT_LABELS / "validation.parquet").reset_index(drop=True)
    frame.loc[1, "second"] = "lost#1"
    frame.to_parquet(project / "lost.parquet")
    with pytest.raises(DataError, match="lost.parquet: row 1: lost#1"):
        command.score_table(project, project / "lost.parquet", ScoreOptions())


def test_a_missing_picture_names_its_row_before_anything_is_scored(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "Judge", lambda *_args, **_options: pytest.fail("the model was loaded"))
    for changes, message in (({"second": "pictures/9.png"}, "row 4: pictures/9.png"), ({"first": None}, "row 4: ")):
        with pytest.raises(DataError, match=message):
            command.score_table(folder, pairs(folder, **changes), ScoreOptions())
    assert not (folder / "pairs.scored.parquet").exists()


def test_tables_that_are_none_are_named(folder: Path) -> None:
    (folder / "pairs.xlsx").touch()
    (folder / "broken.parquet").write_bytes(b"no table")
    pd.DataFrame({"first": ["a"]}).to_csv(folder / "half.csv")
    for name, part in (("none.parquet", ""), ("pairs.xlsx", "'.xlsx'"), ("broken.parquet", ""), ("half.csv", "second")):
        with pytest.raises(DataError, match=f"{name}.*{part}"):
            command.score_table(folder, folder / name, ScoreOptions())
    with pytest.raises(DataError, match="'./elsewhere'"):
        command.score_table(folder, pairs(folder), ScoreOptions("./elsewhere"))


@pytest.mark.slow
def test_the_golden_pairs_of_the_folder_are_asked_first(folder: Path) -> None:
    """Weights that are whole, and yet not those that the folder was written with."""
    model = folder / paths.REWARD_MERGED
    queries = [example.query for example in reward_tiny.pairs(3)]
    write_golden(model, queries, Scorer(model).score(queries), "float32")
    first, second = (folder / "pictures" / f"{n}.png" for n in range(2))
    assert score_pictures(folder, [first, second], ScoreOptions()).startswith("0.")
    tensors = load_file(model / "model.safetensors")
    changed = {name: tensor * 1.5 if name.endswith("q_proj.weight") else tensor for name, tensor in tensors.items()}
    save_file(changed, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match="golden scores.*pair 0"):
        score_pictures(folder, [first, second], ScoreOptions())
    with pytest.raises(DataError, match="golden scores"):
        command.score_table(folder, pairs(folder), ScoreOptions())


class Recorder:
    """Stands in for the model: keeps what it was asked."""

    def __init__(self) -> None:
        self.instructions: list[str] = []

    def score(self, queries: Sequence[PairQuery], advance: object = None) -> list[Score]:
        self.instructions += [query.instruction for query in queries]
        return [Score(0.25) if n else Score(math.nan, "no answer") for n, _ in enumerate(queries)]

    def generate_reasons(self, queries: Sequence[PairQuery]) -> list[str]:
        return ["=1+1", *(["- style"] * (len(queries) - 1))]


@pytest.fixture
def scorer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    for number in range(2):
        reward_tiny.picture(number).save(tmp_path / f"{number}.png")
    recorder = Recorder()
    model = SimpleNamespace(identity="a recorder", load=lambda: recorder, place=nullcontext)
    for module in (judge, command):  # who asks, and who keeps what was asked
        monkeypatch.setattr(module, "judge_model", lambda *_, **__: model)
    return recorder


THEMES = ["None", "NA", "null", "1984", "0017", "nan", ""]


def test_a_theme_is_asked_as_it_is_spelled(tmp_path: Path, scorer: Recorder) -> None:
    rows = [{"first": "0.png", "second": "1.png", "theme": theme, "id": f"00{n}"} for n, theme in enumerate(THEMES)]
    (tmp_path / "a.csv").write_text("first,second,theme,id\n" + "".join(",".join(row.values()) + "\n" for row in rows))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for suffix in ("csv", "jsonl"):
        scorer.instructions.clear()
        command.score_table(tmp_path, tmp_path / f"a.{suffix}", ScoreOptions())
        assert scorer.instructions == [question(theme or None) for theme in THEMES], suffix
    before, after = ((tmp_path / name).read_text().splitlines() for name in ("a.csv", "a.scored.csv"))
    assert after == [before[0] + ",score,cause", before[1] + ",,no answer", *(f"{line},0.25," for line in before[2:])]
    back = [json.loads(line) for line in (tmp_path / "a.scored.jsonl").read_text().splitlines()]
    assert [{key: row[key] for key in rows[0]} for row in back] == rows
    assert (back[0]["score"], back[0]["cause"], back[1]["score"]) == (None, "no answer", 0.25)


def test_an_excel_table_comes_back_as_it_was_and_no_reason_is_a_formula(tmp_path: Path, scorer: Recorder) -> None:
    lines = ["\ufefffirst;second;theme;id", '0.png;1.png;"a bear; ""brown""";0017', "1.png;0.png;=A1;+5"]
    (tmp_path / "a.csv").write_bytes("\r\n".join([*lines, ""]).encode())
    command.score_table(tmp_path, tmp_path / "a.csv", ScoreOptions(reasons=True))
    scored = (tmp_path / "a.scored.csv").read_bytes().decode().split("\r\n")
    assert scored[:2] == [lines[0] + ";score;cause;reasons", lines[1] + ";;no answer;'=1+1"]
    assert scored[2:] == ["1.png;0.png;'=A1;+5;0.25;;'- style", ""]
    instructions = list(scorer.instructions)
    command.score_table(tmp_path, tmp_path / "a.scored.csv", ScoreOptions(), tmp_path / "b.csv")
    assert scorer.instructions[2:] == instructions == [question('a bear; "brown"'), question("=A1")]


def test_a_number_that_is_no_integer_is_no_theme(tmp_path: Path, scorer: Recorder) -> None:
    for theme in (1984.5, True, ["a"], float("nan")):
        (tmp_path / "a.jsonl").write_text(json.dumps({"first": "0.png", "second": "1.png", "theme": theme}))
        with pytest.raises(DataError, match="a.jsonl:1"):
            command.score_table(tmp_path, tmp_path / "a.jsonl", ScoreOptions())
    (tmp_path / "a.jsonl").write_text('{"first": "0.png", "second": "1.png", "theme": 1984}')
    command.score_table(tmp_path, tmp_path / "a.jsonl", ScoreOptions())
    assert scorer.instructions == [question("1984")]
