"""`make ui` reloads Dagster's code location after a change, and only if the project can be loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from paco_pipelines import reloading, ui


class Looks(threading.Event):
    """Waits by making the next change; is set after the last one."""

    def __init__(self, changes: list[Callable[[], object]]) -> None:
        super().__init__()
        self.changes = iter(changes)

    def wait(self, timeout: float | None = None) -> bool:
        change = next(self.changes, None)
        if change is None:
            return True
        change()
        return False


def nothing() -> None: ...


def edit(file: Path, old: str, new: str) -> Callable[[], object]:
    return lambda: file.write_text(file.read_text().replace(old, new))


def reloads(project: Path, monkeypatch: pytest.MonkeyPatch, *changes: Callable[[], object]) -> list[Path]:
    """The socket of the code server at each reload."""
    sockets: list[Path] = []
    monkeypatch.setattr(reloading, "reload_location", sockets.append)
    reloading.watch(project, project / "code.sock", Looks(list(changes)))
    return sockets


def test_a_change_of_parameters_or_code_digests_reloads_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params, code = project / "params.yaml", project / "data/code/t2is.json"
    code.parent.mkdir(parents=True)
    change = edit(params, "linger_s: 10", "linger_s: 11")
    assert reloads(project, monkeypatch, nothing, nothing) == []
    assert reloads(project, monkeypatch, change, nothing, nothing, nothing) == [project / "code.sock"]
    assert len(reloads(project, monkeypatch, lambda: code.write_text("{}"), nothing, nothing)) == 1
    assert reloads(project, monkeypatch, lambda: (project / "dvc.lock").write_text("{}"), nothing, nothing) == []


def test_files_that_still_change_and_undone_changes_reload_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = project / "params.yaml"
    change, undo = edit(params, "linger_s: 10", "linger_s: 11"), edit(params, "linger_s: 11", "linger_s: 10")
    assert reloads(project, monkeypatch, change, undo, change, undo, nothing, nothing) == []


def test_an_invalid_file_reloads_nothing_until_it_is_repaired(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = project / "params.yaml"
    broken = edit(params, "linger_s: 10", "linger_s: [")
    repaired = edit(params, "linger_s: [", "linger_s: 11")
    assert reloads(project, monkeypatch, broken, nothing, nothing) == []
    params.write_text(params.read_text().replace("linger_s: [", "linger_s: 10"))
    assert len(reloads(project, monkeypatch, broken, nothing, repaired, nothing, nothing)) == 1
    dvc_yaml = project / "dvc.yaml"
    assert reloads(project, monkeypatch, lambda: dvc_yaml.write_text("stages: ["), nothing, nothing) == []


def test_the_ui_watches_for_its_code_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[tuple[Path, Path]] = []
    looked = threading.Event()

    def watch(root: Path, code_server: Path, stop: threading.Event) -> None:
        watched.append((root, code_server))
        looked.set()

    monkeypatch.setattr(ui, "watch", watch)
    ui._watch(tmp_path, ui.servers(tmp_path, 3000, 5000, tmp_path), threading.Event())
    assert looked.wait(60) and watched == [(tmp_path, tmp_path / "code.sock")]
