"""A store that does not answer costs seconds and one line, with its address and the remedy."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import environment_variables

from paco_core import cli
from paco_core.cli.status import status
from paco_core.io.files import DataError
from paco_core.runtime.tracking import connect, count_journals, database


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address, HOST:PORT, of a server that accepts connections and never answers."""
    monkeypatch.setattr(database, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("kind", ["server", "silent server", "database"])
def test_a_store_that_is_down_is_named_with_the_remedy(silent: str, kind: str) -> None:
    address = silent if kind == "silent server" else "127.0.0.1:9"
    uri = f"postgresql://user:hidden@{address}/runs" if kind == "database" else f"http://{address}"
    with pytest.raises(DataError, match=re.escape(address)) as raised:
        connect(uri)
    assert "MLFLOW_TRACKING_URI" in str(raised.value) and "hidden" not in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_requests_give_up_soon_unless_the_environment_says_how_long_to_try(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(f"sqlite:///{project / 'mlflow.db'}")
    retries, timeout = (
        environment_variables.MLFLOW_HTTP_REQUEST_MAX_RETRIES, environment_variables.MLFLOW_HTTP_REQUEST_TIMEOUT
    )  # fmt: skip
    assert (retries.get(), timeout.get()) == (1, 20)
    monkeypatch.setenv(timeout.name, "60")
    with pytest.raises(DataError):
        connect("http://127.0.0.1:9")
    assert (retries.get(), timeout.get()) == (1, 60)


@pytest.mark.parametrize("verb", [["promote", "reward"], ["compare", "a"]])
def test_a_verb_that_needs_the_store_ends_with_one_line(
    project: Path, silent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{silent}")
    with pytest.raises(SystemExit) as exit_info:
        cli.main(verb)
    lines = capsys.readouterr().err.splitlines()
    assert exit_info.value.code == 1 and len(lines) == 1 and silent in lines[0]
    assert count_journals(project) == 0, "no run was opened, which would wait for the store"


@pytest.mark.slow
def test_a_status_goes_on_without_the_store(project: Path, silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{silent}")
    report = status(project)
    assert report.stages and silent in report.champions
