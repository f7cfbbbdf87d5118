"""`paco init`: which profile a new project has, and what it prints can be pasted into a shell."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from paco_core.cli import init
from paco_core.io import shipped


def test_a_new_project_has_the_storybook_profile_whatever_the_clone_uses(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `make demo PROFILE=smoke`; a wheel that is built there has the same files."""
    files = {n: file for n, file in shipped.new_project_files().items() if n.startswith(("params.yaml", "profiles/"))}
    for name, file in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(file, tmp_path / name)
    if not (tmp_path / "profiles/storybook.yaml").exists():
        (tmp_path / "params.yaml").rename(tmp_path / "profiles/storybook.yaml")
        shutil.copyfile(repository / "profiles/smoke.yaml", tmp_path / "params.yaml")
    changed = {file.relative_to(tmp_path).as_posix(): file for file in tmp_path.rglob("*.yaml")}
    monkeypatch.setattr(init, "new_project_files", lambda: changed)
    laid_out = init._files()
    assert yaml.safe_load(laid_out["params.yaml"].read_text())["profile"] == "storybook"
    assert "profiles/storybook.yaml" not in laid_out and "profiles/smoke.yaml" in laid_out


@pytest.mark.parametrize("name", ["it's", "$HOME", "-dash", "a;echo b"])
def test_the_printed_folder_can_be_pasted_into_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(init, "_lay_out", lambda _folder: 0)
    monkeypatch.setattr(init, "_name_dagsters_home", lambda _folder: None)
    (command,) = [line.strip() for line in init.init(Path(name)).splitlines() if line.startswith("  cd ")]
    shell = subprocess.run(["sh", "-c", f"{command} && pwd -P"], capture_output=True, text=True, check=True)
    assert shell.stdout == f"{(tmp_path / name).resolve()}\n"


def test_a_project_is_created_before_dagster_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an environment with paco-rl without its extra ``pipeline``."""
    monkeypatch.setattr(init, "find_spec", lambda _name: None)
    monkeypatch.setattr(init.sys, "executable", "/nowhere")
    assert f"{tmp_path / 'new'}" in init.init(tmp_path / "new")
    assert (tmp_path / "new/dvc.yaml").is_file() and not (tmp_path / "new/.env").exists()
