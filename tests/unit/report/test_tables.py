"""The tables of all benchmarks: published rows apart where they were asked otherwise, and the run of each figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from paco_core.benchmarks.tables import ResultTable, read_tables, write_tables
from paco_core.cli import main
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.report import tables
from paco_core.runtime.stage import write_skipped

BENCHMARKS = ("consistency_rank", "gedit")
MEASURED = ResultTable(
    "ConsistencyRank", ["judge", "accuracy"], [["ours | <b>", "0.815 (0.771 to 0.860)"]], ["230 rankings."]
)
DETAIL = ResultTable("Paired differences", ["judges", "accuracy"], [["reward - base", "+0.165"]], detail=True)


def test_tables_come_back_as_they_were_written(tmp_path: Path) -> None:
    write_tables(tmp_path, "ConsistencyRank", [MEASURED, DETAIL])
    assert read_tables(tmp_path) == [MEASURED, DETAIL]
    (tmp_path / "tables.json").write_text('[{"colour": 1}]')
    with pytest.raises(DataError, match="tables.json: not what a benchmark writes"):
        read_tables(tmp_path)


def test_details_are_printed_on_demand_and_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / paths.CONSISTENCY_RANK).mkdir(parents=True)
    write_tables(tmp_path / paths.CONSISTENCY_RANK, "ConsistencyRank", [MEASURED, DETAIL])
    text = tables.markdown(tables.sections(tmp_path, BENCHMARKS))
    assert "| ours \\| <b> | 0.815 (0.771 to 0.860) |" in text and "Paired differences" not in text
    assert "_gedit: not measured; run `dvc repro gedit`_" in text
    assert "consistency_rank: the run that dvc.lock names is not recorded here" in text
    assert "Paired differences" in tables.markdown(tables.sections(tmp_path, BENCHMARKS, detail=True))


def test_a_benchmark_that_was_skipped_has_its_reason_in_place_of_tables(tmp_path: Path) -> None:
    write_skipped(tmp_path / paths.DATA / "gedit", "no recipe edits")
    assert "_gedit: skipped: no recipe edits_" in tables.markdown(tables.sections(tmp_path, BENCHMARKS))


def test_the_command_writes_a_page(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / paths.CONSISTENCY_RANK).mkdir(parents=True)
    write_tables(project / paths.CONSISTENCY_RANK, "ConsistencyRank", [MEASURED])
    main(["tables", "--out", "out"])
    page = (project / "out/tables.html").read_text()
    assert "ours | &lt;b&gt;" in page and "0.815<br><small>(0.771 to 0.860)</small>" in page
    assert (project / "out/tables.md").is_file() and "tables.html" in capsys.readouterr().out
    main(["tables"])
    assert "\n\nConsistencyRank\n\njudge" in capsys.readouterr().out
