"""Which project a checkout belongs to: itself, or the one whose experiment runs in it.

``dvc exp run --temp`` and the workers of DVC's queue run a stage in a temporary checkout below
``.dvc/tmp/exps/`` of the project, and remove it afterwards. What outlives a run, the MLflow store, the journals of
figures on their way to it, caches, leases of servers, lies in the project.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

CHECKOUTS = Path(".dvc") / "tmp" / "exps"
NAME, BASELINE = "DVC_EXP_NAME", "DVC_EXP_BASELINE_REV"
EXPERIMENT_TAG, BASELINE_TAG = "dvc.experiment", "dvc.experiment.baseline"


def owner_root(root: Path) -> Path:
    """The project that a root belongs to: ``root`` itself, unless it is the checkout of an experiment.

    A checkout is known by where it lies, so that every process finds the owner. ``DVC_ROOT``, which DVC sets to the
    owner in the environment of a stage, helps where ``.dvc/tmp`` is a link to another disk; alone it proves nothing,
    for other roots are used inside a stage, too (an audit's, say).
    """
    here = root.resolve()
    named = os.environ.get("DVC_ROOT")
    for folder in (*([Path(named)] if named else []), *here.parents):
        if here.is_relative_to((folder / CHECKOUTS).resolve()):
            return folder
    return root


def experiment_tags(environment: Mapping[str, str]) -> dict[str, str]:
    """The experiment that DVC runs a stage for, and the commit that it started from; empty outside of one."""
    wanted = {EXPERIMENT_TAG: NAME, BASELINE_TAG: BASELINE}
    return {tag: environment[name] for tag, name in wanted.items() if environment.get(name)}
