"""Misspelled arguments: the error suggests the probable name, and nothing heavy is imported before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paco_core.cli.arguments import parser

TYPOS = {
    "zoo build flx": "'flux'",
    "promote flux_t2si": "'flux_t2is'",
    "plan grids": "grids is a stage",
    "plan flux_t2si": "'flux_t2is'",
    "profile use smok": "'smoke'",
    "run promts": "'prompts'",
    "edit nowhere.png words": "nowhere.png",
    "reproduce --variants ful": "'full'",
    "paint theme --panels a b --policy flux_t2si": "'flux_t2is'",
    "provenance flux_t2si": "flux_t2si",
    "fetch flux_t2si folder": "'flux_t2si'",
    "statu": "'status'",
    "dataset exprt": "'export'",
    "plan flux_t2is --proceses 2": "'--processes'",
}
SCRIPT = """
import sys
from paco_core.cli.commands import main
for line in sys.argv[1:]:
    try:
        main(line.split())
    except SystemExit as end:
        assert end.code in (1, 2), line
assert not {"torch", "mlflow"} & set(sys.modules)
"""


@pytest.mark.slow
def test_a_misspelt_name_costs_no_import_of_torch(repository: Path) -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT, *TYPOS], cwd=repository, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for line, name in TYPOS.items():
        verb = "" if line == "statu" else f" {line.split()[0]}"
        assert any(
            line_out.startswith(f"paco{verb}") and name in line_out for line_out in result.stderr.splitlines()
        ), line


def test_a_tilde_in_an_argument_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the shell leaves it: in quotes, and after an equals sign."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parser().parse_args(["fetch", "reward_merged", "~/folder"]).folder == tmp_path / "folder"
    score = parser().parse_args(["score", "a.png", "b.png", "--model=~/reward"])
    assert score.model == str(tmp_path / "reward")
