"""The tables of all benchmarks: published rows apart where they were asked otherwise, and the run of each figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from paco_core.benchmarks.tables import ResultTable, read_tables, write_result_tables
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
    write_result_tables(tmp_path, "ConsistencyRank", [MEASURED, DETAIL])
    assert read_tables(tmp_path) == [MEASURED, DETAIL]
    (tmp_path / "tables.json").write_text('[{"colour": 1}]')
    with pytest.raises(DataError, match=r"tables\.json"):
        read_tables(tmp_path)


def test_details_are_printed_on_demand_and_what_is_missing_is_named(project: Path) -> None:
    (project / paths.CONSISTENCY_RANK).mkdir(parents=True)
    write_result_tables(project / paths.CONSISTENCY_RANK, "ConsistencyRank", [MEASURED, DETAIL])
    text = tables.render_markdown(tables.sections(project, BENCHMARKS))
    assert "| ours \\| <b> | 0.815 (0.771 to 0.860) |" in text and "Paired differences" not in text
    assert "_gedit: not measured; run `dvc repro gedit`_" in text
    assert "Paired differences" in tables.render_markdown(tables.sections(project, BENCHMARKS, detail=True))
    main(["tables", "--out", "out"])
    assert "ours | &lt;b&gt;" in (project / "out/tables.html").read_text()
    write_skipped(project / paths.DATA / "gedit", "no recipe edits")
    assert "no recipe edits" in tables.render_markdown(tables.sections(project, BENCHMARKS))
