"""``python -m paco_pipelines.instance.prepare``: what Dagster's pages need before they are opened.

Makes the instance's databases where they are missing, and mirrors ``dvc.lock`` once, so that the first page already
shows what a ``dvc repro`` in a terminal made. The sensor ``dvc_lock`` does it from then on.
"""

from __future__ import annotations

import sys

import dagster as dg

from dagster_dvc import DvcProjectError
from dagster_dvc.sensor import mirror_lock
from paco_pipelines.definitions import build_definitions
from paco_pipelines.defs.graph import PROJECT, TRANSLATOR


def main() -> None:
    with dg.DagsterInstance.get() as instance:
        try:
            mirror_lock(PROJECT, instance, build_definitions().get_repository_def(), TRANSLATOR)
        except (DvcProjectError, OSError) as error:  # the pages open all the same; the sensor goes on trying
            print(f"dvc.lock could not be mirrored: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
