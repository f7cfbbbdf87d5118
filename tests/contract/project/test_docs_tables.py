"""docs/reference/tables.md holds the published rows, each figure of them, as the code has them."""

from __future__ import annotations

from pathlib import Path

import pytest
import tables

from paco_core.benchmarks import published


def test_the_page_is_what_the_code_has(repository: Path) -> None:
    assert (repository / tables.PAGE).read_text() == tables.page(), "run `python tools/docs/tables.py`"


def test_every_row_and_figure_is_on_the_page(repository: Path) -> None:
    lines = (repository / tables.PAGE).read_text().splitlines()
    for row in (*published.CONSISTENCY_RANK, *published.EDIT_REWARD, *published.T2IS_BENCH, *published.GEDIT):
        shown = [line for line in lines if line.startswith(f"| {row.model} |")]
        assert any(all(f" {value:.3f} |" in line for value in row.figures.values()) for line in shown), row.model


def test_a_table_without_a_place_on_the_page_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "NEW_BENCH", (), raising=False)
    with pytest.raises(SystemExit, match="NEW_BENCH"):
        tables.page()
