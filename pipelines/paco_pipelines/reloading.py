"""Reload of Dagster's code location by `make ui`, after a change of the graph, the parameters or the code digests.

Dagster compares the code version of a run with that of the loaded location, which it computes only once. Without a
reload, an asset that ran in a terminal after a change stays "Unsynced".
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from paco_core.config.params import PARAMS_FILE, ParamsError, load
from paco_core.io.files import digest, md5_of

WATCHED = ("dvc.yaml", PARAMS_FILE, "data/code/*.json")  # code versions are computed from these files
INTERVAL_S = 2.0
TIMEOUT_S = 300


def inputs_digest(root: Path) -> str:
    """Digest of the files that determine the code versions of the assets."""
    files = sorted(path for pattern in WATCHED for path in root.glob(pattern))
    return digest([[path.relative_to(root).as_posix(), md5_of(path.read_bytes())] for path in files])


def has_valid_definitions(root: Path) -> bool:
    """Whether the graph and the parameters are valid; else a reload would remove every asset from the page."""
    from dvc_project.errors import DvcProjectError  # late: with DVC
    from dvc_project.project import DvcProject

    try:
        load(root / PARAMS_FILE)
        DvcProject(root)
    except (DvcProjectError, OSError, ParamsError):
        return False
    return True


def watch(root: Path, code_server: Path, stop: threading.Event, interval_s: float = INTERVAL_S) -> None:
    """Reload the code location after each change, until ``stop`` is set.

    paco waits until the files are equal at two looks, so it does not reload in the middle of a stage that writes them.
    The webserver and the daemon notice by themselves that the code server has other definitions.

    Args:
        code_server: socket of ``dagster code-server``.
        interval_s: seconds between two looks at the files.
    """
    loaded = previous = inputs_digest(root)
    while not stop.wait(interval_s):
        try:
            present = inputs_digest(root)
        except OSError:  # a file was replaced in the meantime
            continue
        if present == previous and present != loaded and has_valid_definitions(root):
            reload_location(code_server)
            loaded = present
        previous = present


def reload_location(code_server: Path) -> None:
    """Load the definitions again. A failure is printed: the page then has a button for it."""
    from dagster._core.errors import DagsterUserCodeUnreachableError  # late: with Dagster
    from dagster._grpc.client import DagsterGrpcClient

    try:
        DagsterGrpcClient(socket=str(code_server)).reload_code(timeout=TIMEOUT_S)
    except DagsterUserCodeUnreachableError as error:
        print(f"Dagster's definitions were not reloaded, reload the code location: {error}", file=sys.stderr)
