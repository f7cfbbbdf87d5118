"""What the stage ``code`` would write now, for whoever asks which stages are out of date."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from dvc_project.derived import Derived
from paco_core.config.params import ParamsError
from paco_core.io.files import DataError, md5_of
from paco_core.runtime.code.stage_code import StageCodes, recorded


def present_code(root: Path) -> Derived:
    """The code files of all stages; none where ``params.yaml`` or a source file is invalid, which a run reports."""
    try:
        return valid_code(root)
    except (DataError, ParamsError):
        return Derived()


def valid_code(root: Path) -> Derived:
    """The code files of all stages.

    Raises:
        ParamsError: when ``params.yaml`` is invalid.
        DataError: when ``dvc.yaml`` or a source file is.
    """
    files = StageCodes.present(root).files()

    @cache  # the items of a stage have one recorded version
    def changes(path: str, md5: str) -> list[str]:
        return files[path].changes(recorded(root, path, md5))

    return Derived({path: md5_of(code.text.encode()) for path, code in files.items()}, changes)
