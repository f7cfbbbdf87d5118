"""The import path of child processes that use helpers of the tests."""

from __future__ import annotations

import os
import tomllib

from tests.support import REPOSITORY

PATH = os.pathsep.join(
    [
        str(REPOSITORY),
        *(
            str(REPOSITORY / folder)
            for folder in tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"][
                "pythonpath"
            ]
        ),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
)
