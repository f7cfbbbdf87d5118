"""A password of the store is shown nowhere: not in messages, files, links, nor in the arguments of any process."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from paco_core.io.secrets import bare, redacted
from paco_core.runtime import tracking
from paco_pipelines import ui
from tests.support.loopback import Loopback, Quiet

REPOSITORY = Path(tracking.__file__).parents[3]
PASSWORD = "corr3ct-h0rse-battery"
VARIABLES = ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")


@pytest.fixture(autouse=True)
def no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what a test changes is put back
        monkeypatch.delenv(name)


TOKEN = "gh" + "p_" + "aB3" * 12
KEY = "-----BEGIN " + "RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://me:key@example.org/a", "https://example.org/a"),
        ("postgresql://me:k@y@host:5432/db?a=b@c", "postgresql://host:5432/db?a=b@c"),
        ("mysql+pymysql://me:a/b@host/db", "mysql+pymysql://host/db"),
        ("to 'http://me:key@h:80/x', see http://h:80/@docs", "to 'http://h:80/x', see http://h:80/@docs"),
        ("https://host/v1?api_key=abc&x=1", "https://host/v1?api_key=***&x=1"),
        ("https://b.s3/x?X-Amz-Signature=abc&y=d", "https://b.s3/x?X-Amz-Signature=***&y=d"),
        ("{'Authorization': 'Bearer abcdef'}", "{'Authorization': 'Bearer ***'}"),
        (f"refused {TOKEN}, {KEY}; task-{'x' * 30}", f"refused ***, ***; task-{'x' * 30}"),
        *(
            (unchanged, unchanged)
            for unchanged in ("sqlite:////tmp/x/mlflow.db", "sqlite:///a.db", "sqlite:///a@b.db", "sqlite://")
        ),
        *(
            (unchanged, unchanged)
            for unchanged in ("file:///a", "./runs", "http://host:5000/a@b", "to me@example.org: basic")
        ),
    ],
)
def test_texts_lose_their_secrets_and_nothing_else(text: str, expected: str) -> None:
    assert redacted(text) == expected


def test_values_of_variables_that_hold_a_secret_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", PASSWORD)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:s%40cret-1@host/db")
    assert redacted(f"refused {PASSWORD}, s%40cret-1 and s@cret-1") == "refused ***, *** and ***"
    monkeypatch.setenv("DAGSTER_POSTGRES_URL", "postgresql://me:another-1@host/db")
    assert redacted("refused another-1") == "refused ***"
    assert bare(f"file:///{PASSWORD}") == f"file:///{PASSWORD}", "the same in every environment"


def ends_at_once(*_args: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])


def test_what_is_tracked_holds_no_secret(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters, tags and texts, as they are in the journal and go to the store from there."""
    monkeypatch.setenv("SOME_API_KEY", PASSWORD)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr(tracking.sender, "start", ends_at_once)
    secrets = f"{PASSWORD} {TOKEN} https://me:pw-of-mine@host/v1"
    with tracking.open_run(project, "paco/x", "x", {"made": secrets}, print_line=lambda _line: None) as tracker:
        tracker.params({"engine": {"url": secrets}})
        tracker.tags({"note": secrets})
        tracker.text(secrets, "notes/said.txt")
    data = b"".join(outputs(project / ".paco").values())
    assert data.count(b"*** *** https://host/v1") == 4
    assert not [secret for secret in (PASSWORD, TOKEN, "pw-of-mine") if secret.encode() in data]


class Guarded(Quiet):
    """Notes who asks, and has nothing to say."""

    authorizations: list[str | None]

    def do_GET(self) -> None:
        self.authorizations.append(self.headers.get("Authorization"))
        self.reply(500, b"{}")

    do_POST = do_GET


@contextmanager
def arguments_of_all_processes() -> Iterator[set[str]]:
    """All that are seen while its block runs."""
    arguments, over = set[str](), threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            for process in psutil.process_iter(["cmdline"]):
                arguments.update(process.info["cmdline"] or [])

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    yield arguments
    over.set()
    thread.join()


def outputs(root: Path) -> dict[str, bytes]:
    """Every file below a folder, by name; the name counts, too."""
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["server", "database", "unknown"])
def test_a_stage_shows_the_password_nowhere(project: Path, kind: str) -> None:
    handler = type("Handler", (Guarded,), {"authorizations": []})
    with Loopback(handler) as server, arguments_of_all_processes() as arguments:
        uri = {
            "server": server.url.replace("://", f"://me:{PASSWORD}@"),
            "database": f"postgresql+nodriver://me:{PASSWORD}@127.0.0.1:9/db",
            "unknown": f"postgrel://me:{PASSWORD}@127.0.0.1:9/db",
        }[kind]
        output = run(project, uri, "-m", "paco_core", "run", "prompts", fails=False)
        assert "events of this run wait in" in output and "127.0.0.1" in output, "the store is named"
        for words in ("sync", "provenance prompts", "compare prompts"):
            output += run(project, uri, "-m", "paco_core", *words.split())
    assert PASSWORD not in output
    assert any("paco_core.runtime.tracking.sender" in argument for argument in arguments)
    assert not [argument for argument in arguments if PASSWORD in argument]
    files = outputs(project)
    assert any(name.endswith("events.jsonl") for name in files), "the journal waits for its store"
    assert not [name for name, data in files.items() if PASSWORD.encode() in data or PASSWORD in name]
    if kind == "server":
        expected = "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()
        assert handler.authorizations and set(handler.authorizations) == {expected}


def run(project: Path, uri: str, *arguments: str, fails: bool = True) -> str:
    """What a process of the project prints."""
    variables = {"MLFLOW_TRACKING_URI": uri, "PYTHONPATH": str(REPOSITORY), "PACO_SENDER_IDLE_S": "0.5"}
    command, environment = [sys.executable, *arguments], {**os.environ, **variables}
    result = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=200)
    assert bool(result.returncode) == fails, result.stderr
    return result.stdout + result.stderr


def test_what_ends_a_command_is_printed_without_secrets(project: Path) -> None:
    code = f"""
from paco_core.cli import acts
from paco_core.cli import commands as cli
def broken(_args): raise RuntimeError("API request to http://me:{PASSWORD}@host/x failed")
acts.tour = broken
cli.main(["tour"])
"""
    assert "RuntimeError: API request to http://host/x failed" in run(project, "", "-c", code)


def test_a_journal_is_brought_to_a_database_once_its_password_is_known(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite takes no user, but a query; what has one waits for who names the same store with its secret."""
    store = f"sqlite:///{project / 'mlflow.db'}?token="
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{store}{PASSWORD}")
    monkeypatch.setattr(tracking.sender, "start", ends_at_once)
    with tracking.open_run(project, "paco/x", "x", {}, print_line=lambda _line: None):
        pass
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    sync_result = tracking.send_left_over(project)
    assert sync_result.waiting > 0 and "whose password no journal keeps" in sync_result.text()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{store}{PASSWORD}")
    assert tracking.send_left_over(project).waiting == 0


def test_the_servers_of_the_pages_get_the_store_by_their_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"postgresql://me:{PASSWORD}@db.example.org/mlflow"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    servers = {server.name: server for server in ui.servers(tmp_path, 3000, 5000, tmp_path)}
    words = [word for server in servers.values() for word in (*server.command, *server.before)]
    assert not [word for word in words if PASSWORD in word]
    assert servers["MLflow"].environment["MLFLOW_BACKEND_STORE_URI"] == uri
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"https://me:{PASSWORD}@mlflow.example.org")
    assert "MLflow" not in [server.name for server in ui.servers(tmp_path, 3000, 5000, tmp_path)]
    assert os.environ["MLFLOW_TRACKING_URI"] == "https://mlflow.example.org"
    assert (os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"]) == ("me", PASSWORD)
