"""Resources of assets by name, and where their stages run.

``PACO_CLUSTER`` chooses: empty (this machine) or ``slurm``. ``PACO_CLUSTER_CONFIG`` names the file with the options of
the jobs, by default ``launch/slurm.yaml``: the project's own, or the one that paco ships.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_dvc import DvcResource
from dvc_project.errors import DvcProjectError
from dvc_project.reading import read_data
from paco_core.io.shipped import shipped_file
from paco_pipelines.defs.graph import ROOT

VARIABLE, CONFIG = "PACO_CLUSTER", "PACO_CLUSTER_CONFIG"
SLURM = "slurm"


def resources(root: Path = ROOT) -> dict[str, Any]:
    """DVC of this interpreter, in this project; a stopped stage has eight seconds to tidy up.

    Raises:
        dagster.DagsterInvalidDefinitionError: for a cluster that is none, or a file that is not its configuration.
    """
    here: dict[str, Any] = {"project_dir": str(root), "grace_seconds": 8.0}
    cluster = os.environ.get(VARIABLE, "")
    if not cluster:
        return {"dvc": DvcResource(**here)}
    if cluster != SLURM:
        raise dg.DagsterInvalidDefinitionError(
            f"{VARIABLE}={cluster}: no such cluster; set it to {SLURM}, or leave it empty for this machine"
        )
    from dagster_dvc.slurm import SlurmDvcResource  # late: only then

    file = shipped_file(root, os.environ.get(CONFIG, "launch/slurm.yaml"))
    try:
        settings: dict[str, Any] = read_data(file)
        valid = SlurmDvcResource.model_fields
        if unknown := settings.keys() - valid.keys():
            raise ValueError(f"no such setting: {', '.join(sorted(unknown))}; valid: {', '.join(valid)}")
        return {"dvc": SlurmDvcResource(**{**here, **settings})}
    except (DvcProjectError, TypeError, ValueError) as error:
        text = " ".join(str(error).split())[:1000]
        raise dg.DagsterInvalidDefinitionError(f"{file}: no configuration for {cluster} ({text})") from None
