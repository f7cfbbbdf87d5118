"""The stages, one file each: a declaration, ``STAGE``, and ``run``. A file in this package is a stage."""

# Without `from __future__ import annotations`: the name would hide the stage `annotations` of this package.
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, cast

from paco_core.io.messages import did_you_mean

if TYPE_CHECKING:
    from paco_core.runtime.launch import StageFile
    from paco_core.runtime.stage import Stage

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Stages that exist, by their files."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")


def stage_file(name: str) -> "StageFile":
    """The module of a stage; in rounds (``round_NAME``) it is the same one.

    Raises:
        ParamsError: when there is none of that name.
        DataError: when it declares nothing.
    """
    from paco_core.config.params import ParamsError
    from paco_core.io import paths
    from paco_core.io.files import DataError
    from paco_core.runtime.stage import Stage

    name = paths.in_round(name) or name
    if name not in names():
        raise ParamsError(f"no stage {name!r}; {did_you_mean(name, names())}stages: {', '.join(names())}")
    module = importlib.import_module(f"{__name__}.{name}")
    if not isinstance(getattr(module, "STAGE", None), Stage):
        raise DataError(
            f"{FOLDER / name}.py: declares no stage; write STAGE = Stage(...), with import of Stage from "
            "paco_core.runtime.stage"
        )
    return cast("StageFile", module)


def declared(root: Path) -> "dict[str, Stage]":
    """Stage -> its declaration, for the stages of a project in the order of its ``dvc.yaml``.

    Entries of ``dvc.yaml`` that have no file here, such as a command of the project's own, are left out.

    Raises:
        DataError: when ``dvc.yaml`` or a declaration is invalid.
    """
    from dvc_project.project import stages_of

    stage_names = set(names())
    groups = dict.fromkeys(stage.group for stage in stages_of(root).values())
    return {name: stage_file(name).STAGE for name in groups if name in stage_names}


def declaration(name: str) -> "Stage":
    """What a stage of ``dvc.yaml`` says of itself; the defaults for one that has no file here.

    Raises:
        DataError: when the declaration is invalid.
    """
    from paco_core.io import paths
    from paco_core.runtime.stage import Stage

    return stage_file(name).STAGE if (paths.in_round(name) or name) in names() else Stage()


def run_stage(name: str, item: str | None, root: Path) -> None:
    """Run a stage, or one item of it.

    Raises:
        ParamsError: for an unknown stage, item or launcher, or invalid parameters.
        DataError: when an input is missing or malformed, or another process runs this stage, or an out
            cannot be written.
    """
    from paco_core.runtime import launch

    launch.launch_stage(name, stage_file(name), item, root)
