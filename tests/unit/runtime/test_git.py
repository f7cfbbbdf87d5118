"""Git's answers: a commit, none, or a refusal that is told from none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from paco_core.cli import doctor
from paco_core.io.files import DataError
from paco_core.runtime.git import git_output
from paco_core.runtime.tracking import git_state


def test_outside_a_checkout_and_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git_state(tmp_path) == {}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_output(tmp_path, "status") is None


def test_doctor_tells_a_new_repository_from_none(tmp_path: Path) -> None:
    assert doctor._commit(tmp_path) == "no git checkout"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    assert "git commit" in doctor._commit(tmp_path) and "cannot read" not in doctor._commit(tmp_path)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "first"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    word, _, name = doctor._commit(tmp_path).partition(" ")
    assert word == "commit" and name and commit.startswith(name)


def test_a_checkout_that_git_refuses_is_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for a folder of another user, which is mounted into a container."""
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    assert git_output(tmp_path, "rev-parse", "--verify", "--quiet", "HEAD") is None, "no commit yet"
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("HOME", str(tmp_path))  # no safe.directory
    with pytest.raises(DataError, match=f"{tmp_path}.*safe.directory"):
        git_output(tmp_path, "rev-parse", "HEAD")
    assert git_state(tmp_path) == {} and "safe.directory" in capsys.readouterr().err
    assert "safe.directory" in doctor._commit(tmp_path)
