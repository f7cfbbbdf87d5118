"""The project of a checkout: the checkout itself, or the project whose experiment runs in it.

``dvc exp run --temp`` and the workers of DVC's queue run a stage in a temporary checkout below
``.dvc/tmp/exps/`` of the project, and remove it afterwards. Files that must outlive a run are therefore in the project:
the MLflow store, the journals of metrics that are not sent yet, caches, and leases of servers.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from pathlib import Path

from paco_core.io.files import DataError

CHECKOUTS = Path(".dvc") / "tmp" / "exps"
NAME, BASELINE = "DVC_EXP_NAME", "DVC_EXP_BASELINE_REV"
EXPERIMENT_TAG, BASELINE_TAG = "dvc.experiment", "dvc.experiment.baseline"


def owner_root(root: Path) -> Path:
    """The project that a root belongs to: ``root`` itself, unless it is the checkout of a DVC experiment.

    The location of a checkout identifies it, so every process finds the owner. DVC sets ``DVC_ROOT`` to the owner in
    the environment of a stage. It helps if ``.dvc/tmp`` is a link to another disk. It is not sufficient, because a
    stage also uses other roots, for example that of an audit.
    """
    here = root.resolve()
    dvc_root = os.environ.get("DVC_ROOT")
    for folder in (*([Path(dvc_root)] if dvc_root else []), *here.parents):
        if here.is_relative_to((folder / CHECKOUTS).resolve()):
            return folder
    return root


def experiment_tags(environment: Mapping[str, str]) -> dict[str, str]:
    """The experiment that DVC runs a stage for, and the commit that it started from; empty outside of one."""
    variables = {EXPERIMENT_TAG: NAME, BASELINE_TAG: BASELINE}
    return {tag: environment[name] for tag, name in variables.items() if environment.get(name)}


def ensure_user() -> None:
    """Give the user of a container, who may have neither a home nor a name, ``HOME=/`` (as Docker does) and ``USER``.

    MLflow, DVC and Dagster do not start without.
    """
    try:
        has_home = Path.home().is_absolute()
    except RuntimeError:
        has_home = False
    if not has_home:
        os.environ["HOME"] = "/"
    try:
        getpass.getuser()
    except (KeyError, OSError):  # the latter from Python 3.13 on
        os.environ["USER"] = str(os.getuid())


def working_folder() -> Path:
    """The working directory of this process.

    Raises:
        DataError: if the directory was removed.
    """
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise DataError("the folder that this runs in was removed; change to another one") from None


def find_root() -> Path | None:
    """The nearest parent folder with ``dvc.yaml``, and with ``params.yaml`` or profiles to write it from."""
    here = working_folder()
    for folder in (here, *here.parents):
        if (folder / "dvc.yaml").is_file() and ((folder / "params.yaml").is_file() or (folder / "profiles").is_dir()):
            return folder
    return None


def read_declared_outs(folder: Path) -> list[Path]:
    """The outputs that ``dvc.yaml`` declares strictly below a folder of its project; empty outside of projects.

    Raises:
        DataError: if ``dvc.yaml`` is malformed.
    """
    from dvc_project.project import GRAPH_FILE, stages_of

    here = folder.absolute()
    root = next((parent for parent in here.parents if (parent / GRAPH_FILE).is_file()), None)
    if root is None:
        return []
    outs = (root / out for stage in stages_of(root).values() for out in stage.data)
    return [out for out in outs if here in out.parents]


def validate_code_origin(root: Path) -> None:
    """Check that a clone (a folder with ``paco_core``) uses its own code, because stages record this code.

    Raises:
        DataError: if the environment of another folder is active, for example in a git worktree or a copy.
    """
    running, here = Path(__file__).resolve().parents[1], root / "paco_core"
    if (here / "__init__.py").is_file() and here.resolve() != running:
        raise DataError(
            f"{root} has its own paco_core, but this is the command of {running.parent}: run `make setup` here, and "
            "use .venv/bin/paco or `python -m paco_core`"
        )


def project_root() -> Path:
    """The project that a verb works on. No other folder is read or written.

    Raises:
        DataError: if the working directory is not in a project.
    """
    root = find_root()
    if root is None:
        raise DataError(
            f"{working_folder()} lies in no paco project (dvc.yaml and params.yaml); change to one, or run `paco init`"
        )
    return root
