"""What is misspelt is found before anything heavy is imported, and answered with what was probably meant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
ASK = """
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
    done = subprocess.run([sys.executable, "-c", ASK, *TYPOS], cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line, name in TYPOS.items():
        verb = "" if line == "statu" else f" {line.split()[0]}"
        assert any(said.startswith(f"paco{verb}") and name in said for said in done.stderr.splitlines()), line
