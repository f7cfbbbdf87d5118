"""Dagster's web application, guarded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dagster._core.workspace.context import IWorkspaceProcessContext
from dagster_webserver.app import create_app_from_workspace_process_context
from starlette.applications import Starlette

from paco_pipelines.webserver.guard import Guard

POLL_MILLISECONDS = 2000  # how often pages ask for what is new


def guarded_app(context: IWorkspaceProcessContext[Any], hosts: Iterable[str] = (), prefix: str = "") -> Starlette:
    """The application of ``dagster-webserver`` with the guard as its outermost layer.

    In one process and not a proxy before it: nothing then listens that is not guarded.
    """
    app = create_app_from_workspace_process_context(context, prefix, POLL_MILLISECONDS)
    app.add_middleware(Guard, hosts=hosts)
    return app
