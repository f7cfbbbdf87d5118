"""The import path of child processes that use helpers of the tests."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATH = os.pathsep.join(
    [
        str(ROOT),
        *(
            str(ROOT / folder)
            for folder in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"][
                "pythonpath"
            ]
        ),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
)
