"""``python -m paco_pipelines.webserver``: what ``dagster-webserver`` does, with the guard before it."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Sequence

import dagster as dg
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster_webserver.cli import (
    DEFAULT_DB_STATEMENT_TIMEOUT,
    DEFAULT_POOL_MAX_OVERFLOW,
    DEFAULT_POOL_RECYCLE,
)
from dagster_webserver.version import __version__

from paco_core.io import local_server
from paco_core.io.numbers import PORTS, whole_number
from paco_pipelines.webserver.guard import guarded_app

HOSTS = "PACO_DAGSTER_HOSTS"
GRACE_SECONDS = 3  # open pages hold a websocket each


def serve_dagster(workspace: str, host: str, port: int, allowed: Sequence[str], prefix: str, read_only: bool) -> None:
    """Serve the instance of ``DAGSTER_HOME`` until a signal.

    Raises:
        SystemExit: naming the address, when it cannot be listened on.
    """
    with dg.DagsterInstance.get() as instance:
        instance.optimize_for_webserver(DEFAULT_DB_STATEMENT_TIMEOUT, DEFAULT_POOL_RECYCLE, DEFAULT_POOL_MAX_OVERFLOW)
        target = WorkspaceFileTarget([workspace])
        with WorkspaceProcessContext(instance, target, version=__version__, read_only=read_only) as context:
            app = guarded_app(context, allowed, prefix)
            with _listening(host, port) as bound:
                local_server.run_server(app, bound, websockets=True, grace_s=GRACE_SECONDS)


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SystemExit(f"webserver: {host}:{port} cannot be listened on ({error.strerror}); name another") from None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m paco_pipelines.webserver", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine only)")
    parser.add_argument("--port", type=whole_number(*PORTS), default=3000)
    parser.add_argument("--workspace", default="workspace.yaml", help="file that lists the code locations")
    parser.add_argument("--path-prefix", default="", help="such as /dagster, behind a proxy")
    parser.add_argument("--read-only", action="store_true", help="read-only: pages cannot start anything")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[name.strip() for name in os.environ.get(HOSTS, "").split(",") if name.strip()],
        metavar="NAME",
        help=f"a name, without port, under which people reach this server; may be repeated (also: {HOSTS}=a,b)",
    )
    arguments = parser.parse_args()
    serve_dagster(
        arguments.workspace,
        arguments.host,
        arguments.port,
        arguments.allow_host,
        arguments.path_prefix,
        arguments.read_only,
    )


if __name__ == "__main__":
    main()
