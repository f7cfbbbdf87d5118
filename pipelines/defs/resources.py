"""What assets ask for by name, and where their stages run.

``PACO_CLUSTER`` chooses: nothing (this machine), ``slurm`` or ``kubernetes``. ``PACO_CLUSTER_CONFIG`` names the file
that says how; without it ``launch/slurm.yaml`` or ``launch/kubernetes.yaml``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_dvc import DvcResource
from dvc_project.errors import DvcProjectError
from dvc_project.reading import read_data
from pipelines.defs.graph import ROOT

VARIABLE, CONFIG = "PACO_CLUSTER", "PACO_CLUSTER_CONFIG"
CLUSTERS = ("slurm", "kubernetes")


def resources(root: Path = ROOT) -> dict[str, Any]:
    """DVC of this interpreter, in this project; a stopped stage has eight seconds to tidy up.

    Raises:
        dagster.DagsterInvalidDefinitionError: for a cluster that is none, or a file that is not its configuration.
    """
    here: dict[str, Any] = {"project_dir": str(root), "grace_seconds": 8.0}
    cluster = os.environ.get(VARIABLE, "")
    if not cluster:
        return {"dvc": DvcResource(**here)}
    if cluster not in CLUSTERS:
        valid = f"valid ones: {', '.join(CLUSTERS)}; leave it empty for this machine"
        raise dg.DagsterInvalidDefinitionError(f"{VARIABLE}={cluster}: no such cluster; {valid}")
    file = root / os.environ.get(CONFIG, f"launch/{cluster}.yaml")
    try:
        given: dict[str, Any] = read_data(file)
        kind = _kind(cluster)
        if unknown := given.keys() - kind.model_fields.keys():
            raise ValueError(f"no such setting: {', '.join(sorted(unknown))}; valid: {', '.join(kind.model_fields)}")
        return {"dvc": kind(**{**here, **given})}
    except (DvcProjectError, TypeError, ValueError) as error:
        text = " ".join(str(error).split())[:1000]
        raise dg.DagsterInvalidDefinitionError(f"{file}: no configuration for {cluster} ({text})") from None


def _kind(cluster: str) -> type[DvcResource]:
    if cluster == "slurm":
        from dagster_dvc.slurm import SlurmDvcResource

        return SlurmDvcResource
    from dagster_dvc.kubernetes import KubernetesDvcResource

    return KubernetesDvcResource
