"""Actions of a person on Dagster's page, through the GraphQL API that the page uses."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

PATIENCE = 300.0

LAUNCH = """
mutation($p: ExecutionParams!) {
  launchPipelineExecution(executionParams: $p) { ... on LaunchRunSuccess { run { runId } } }
}
"""
STATUS = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"


def until(true: Callable[[], Any]) -> Any:
    """The first truthy answer; fails after some minutes."""
    deadline = time.monotonic() + PATIENCE
    while not (value := true()):
        assert time.monotonic() < deadline, true
        time.sleep(0.1)
    return value


@dataclass(frozen=True)
class Ui:
    """Both servers over one project."""

    root: Path
    dagster: str
    mlflow: str

    def ask(self, query: str, **variables: Any) -> Any:
        answer = httpx.post(f"{self.dagster}/graphql", json={"query": query, "variables": variables}, timeout=PATIENCE)
        result = answer.json()
        assert "errors" not in result, result
        return result["data"]

    def launch(self, asset: str, **tags: str) -> str:
        """Materialise an asset, as the button does; the run's id."""
        params = {
            "selector": {
                "repositoryName": "__repository__",
                "repositoryLocationName": "paco",
                "pipelineName": "__ASSET_JOB",
                "assetSelection": [{"path": [asset]}],
                "assetCheckSelection": [],
            },
            "mode": "default",
            "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in tags.items()]},
        }
        return str(self.ask(LAUNCH, p=params)["launchPipelineExecution"]["run"]["runId"])

    def status(self, run: str) -> str:
        return str(self.ask(STATUS, id=run)["runOrError"]["status"])


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=30).status_code == 200
    except httpx.HTTPError:
        return False
