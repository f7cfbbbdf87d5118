"""Files of a project that an earlier version laid out and that differ from those of this version."""

from __future__ import annotations

import filecmp
import shlex
from collections.abc import Iterator
from pathlib import Path

from paco_core.config.params import PARAMS_FILE
from paco_core.io.shipped import IN_WHEEL, new_project_files

#: What was part of a project up to version 0.2.0, and is part of the wheel now.
NOW_SHIPPED = (
    "dagster.yaml",
    "launch",
    "locks",
    *(f"pipelines/{name}" for name in ("defs", "instance", "previews", "progress", "webserver")),
    *(f"pipelines/{name}.py" for name in ("antlr", "links", "mlflow_app", "repro", "ui")),
    "profiles/params.schema.json",
)
_USERS_OWN = (".gitignore", "README.md", PARAMS_FILE)


def replacements(root: Path) -> Iterator[str]:
    """Lines with the commands that bring a project to this version; none in a clone, which git updates."""
    if not IN_WHEEL:
        return
    if gone := [name for name in NOW_SHIPPED if (root / name).exists()]:
        yield "paco ships these files now; remove them, unless you edited them:"
        yield f"  rm -r {shlex.join(gone)}"
    files = {name: file for name, file in new_project_files().items() if name not in _USERS_OWN}
    if different := [name for name, file in files.items() if not _is_equal(root / name, file)]:
        yield "these files differ from those of this version; replace them, unless you edited them:"
        yield from (f"  cp {shlex.quote(str(files[name]))} {shlex.quote(name)}" for name in different)


def _is_equal(place: Path, file: Path) -> bool:
    return place.is_file() and filecmp.cmp(place, file, shallow=False)
