"""A grid's cells are experiments of the real DVC: each trains once, whatever else changes, and leaves the workspace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paco_core.experiments.grid import Cell, Grid, Variant
from paco_core.io.files import DataError
from tests.support.reproduced import commit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
GRAPH = """
stages:
  trained:
    cmd: >-
      test ! -e ${broken} && mkdir -p data/trained data/metrics && cp params.yaml data/trained
      && echo '{"score":0.5}' > data/metrics/trained.json && echo trained >> ${count}
    params: [reward]
    outs: [data/trained]
    metrics: [data/metrics/trained.json: {cache: false}]
"""


def test_a_cell_trains_once_and_its_files_are_read_from_the_cache(tmp_path: Path) -> None:
    root, count, broken = tmp_path / "project", tmp_path / "count", tmp_path / "broken"
    root.mkdir()
    (root / "dvc.yaml").write_text(GRAPH)
    (root / "params.yaml").write_text(f"count: {count}\nbroken: {broken}\nreward:\n  alpha: 0.1\n")
    (root / ".gitignore").write_text("/data/*/\n!/data/metrics/\n")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    for command in (["init", "-q"], ["repro", "-q"]):
        subprocess.run([sys.executable, "-m", "dvc", *command], cwd=root, check=True)
    commit(root)
    cell = Cell(Variant("1/n"), 3, "trained", {"reward.alpha": 0.5, "reward.words": ["a b"], "reward.base": None})

    broken.touch()
    with pytest.raises(DataError, match=r"the experiment try-1-over-n-3-\w+ failed"):
        Grid(root, root / "data/try").run([cell])
    broken.unlink()
    (result,) = Grid(root, root / "data/try").run([cell])
    text = (result.folder(Path("data/trained")) / "params.yaml").read_text()
    assert "alpha: 0.5" in text and "- a b" in text and "base:" in text
    assert result.metrics("trained") == {"score": 0.5}
    assert "alpha: 0.1" in (root / "data/trained/params.yaml").read_text(), "the workspace stays as it is"
    with pytest.raises(DataError, match=r"did not make data/other; remove it with `dvc exp remove try-1-over-n-3-"):
        result.folder(Path("data/other"))

    with (root / "params.yaml").open("a") as params:
        params.write("other: 1\n")
    grid = Grid(root, root / "data/try")
    assert grid.results([cell]) == [] and grid.seeds(cell.variant) == [3], "files in git changed"
    grid.run([cell])
    assert count.read_text().splitlines() == ["trained"] * 2, "DVC's run cache had it: the stage did not run again"
