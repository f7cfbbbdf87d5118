"""Side effects of imports: importing the project changes nothing in the process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support import REPOSITORY

#: Imports every module and prints what an import has no business to change, before and after.
IMPORT_ALL = """
import json, logging, os, signal, sys, warnings
from importlib import import_module
# What libraries change at their import is not ours.
import dagster, diffusers, open_clip, peft, requests, ruamel.yaml, scipy.optimize, torch, transformers

def state():
    root = logging.getLogger()
    return {
        "root logger": [root.level, logging.root.manager.disable, [repr(h) for h in root.handlers]],
        "warnings": [repr(f) for f in warnings.filters],
        "environment": dict(os.environ),
        "signals": [repr(signal.getsignal(n)) for n in signal.valid_signals()],
        "path": sys.path,
        "folder": os.getcwd(),
    }

before = state()
for name in sys.argv[1:]:
    import_module(name)
print(json.dumps([before, state()]))
"""


@pytest.mark.thorough
def test_no_module_changes_the_process_that_imports_it() -> None:
    places = [(REPOSITORY, room) for room in ("paco_core", "zoo")]
    places += [(REPOSITORY / "pipelines", "paco_pipelines")]
    places += [(REPOSITORY / "packages" / name.replace("_", "-"), name) for name in ("dagster_dvc", "dvc_project")]
    files = [p.relative_to(place) for place, room in places for p in (place / room).rglob("*.py")]
    names = [".".join(p.with_suffix("").parts).removesuffix(".__init__") for p in files if p.stem != "__main__"]
    result = subprocess.run([sys.executable, "-c", IMPORT_ALL, *names], cwd=REPOSITORY, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    before, after = json.loads(result.stdout.splitlines()[-1])
    assert after == before
