"""The wheels, installed in environments that know no checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
PROJECTS = ("wheels/dvc-project", "wheels/dagster-dvc", ".")


def run(command: Sequence[str | Path], where: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PACO", "DAGSTER"))}
    return subprocess.run(
        [str(part) for part in command], cwd=where, capture_output=True, text=True, env={**bare, **environment}
    )


@pytest.fixture(scope="module")
def wheels(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("dist")
    for project in PROJECTS:
        build = [BIN / "uv", "build", "--quiet", "--wheel", "--no-build-isolation", "--python", sys.executable]
        done = run([*build, "--out-dir", folder, repository / project], repository)
        assert done.returncode == 0, done.stderr
    return {wheel.name.partition("-")[0]: wheel for wheel in folder.glob("*.whl")}


@pytest.fixture(scope="module")
def environment(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels, and what the tests' environment has of other packages: nothing that leads to this checkout.

    Other packages are read from where they lie; installing them again would take a minute and 7 GB.
    """
    folder = tmp_path_factory.mktemp("environment") / "venv"
    assert run([sys.executable, "-m", "venv", "--without-pip", folder], folder.parent).returncode == 0
    python = folder / "bin/python"
    install = [BIN / "uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--python", python]
    done = run([*install, *wheels.values()], folder.parent)
    assert done.returncode == 0, done.stderr
    here = run([python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], folder).stdout.strip()
    others = run([sys.executable, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], folder)
    # A plain path in a .pth file: the .pth files of the other folder, by which the checkout is found, are not read.
    Path(here, "others.pth").write_text(others.stdout)
    return folder


def metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("METADATA"))).decode()


def test_no_wheel_ships_a_top_level_package_of_strangers_or_demands_a_pre_release(wheels: dict[str, Path]) -> None:
    tops = {
        name: {entry.partition("/")[0] for entry in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in entry}
        for name, wheel in wheels.items()
    }
    assert tops == {"dvc_project": {"dvc_project"}, "dagster_dvc": {"dagster_dvc"}, "paco_rl": {"paco_core"}}
    for wheel in wheels.values():
        demands = re.findall(r"^Requires-Dist: (.+)$", metadata(wheel), re.MULTILINE)
        assert demands and not [one for one in demands if re.search(r"\d(a|b|rc|\.dev)\d", one)], wheel.name


def test_messages_and_pages_advise_our_distribution(repository: Path) -> None:
    files = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.toml"], cwd=repository, capture_output=True, text=True, check=True
    ).stdout.split()
    strangers = re.compile(r"(?:install (?:-\S+ )*|')paco(?:\[|'|\s|$)")
    assert not [name for name in files if strangers.search((repository / name).read_text())]


def test_a_new_project_runs_from_the_wheels_alone(environment: Path, tmp_path: Path) -> None:
    folder = environment / "bin"
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    assert run([folder / "paco", "--version"], tmp_path).stdout.startswith("paco ")
    refused = run([folder / "paco", "status"], tmp_path)
    assert refused.returncode == 1 and "paco init" in refused.stderr and not list(tmp_path.iterdir())

    laid = run([folder / "paco", "init", "project"], tmp_path)
    assert laid.returncode == 0, laid.stderr
    root = tmp_path / "project"
    again = run([folder / "paco", "init", "project"], tmp_path)
    assert again.returncode == 1 and "not empty" in again.stderr

    place = run([folder / "python", "-c", "import paco_core; print(paco_core.__file__)"], root).stdout
    assert place.startswith(str(environment)), "the library comes from the wheel"
    for command in (["paco", "profile", "use", "smoke"], ["paco", "check"], ["dvc", "repro", "edit_prompts"]):
        how = [folder / "python", "-m", *command] if command[0] == "dvc" else [folder / command[0], *command[1:]]
        done = run(how, root, PATH=path)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (root / "data/edit_prompts").is_dir()
    status = run([folder / "python", "-m", "dvc", "status", "edit_prompts"], root, PATH=path)
    assert "up to date" in status.stdout
    loaded = run(
        [folder / "python", "-c", "import pipelines, pipelines.definitions as d; print(pipelines.__file__, d.defs)"],
        root,
        DAGSTER_HOME="",
    )
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.startswith(str(root)), "the code location is the project's own"


def test_pictures_are_scored_in_an_empty_folder_that_stays_empty(
    environment: Path, repository: Path, tmp_path: Path
) -> None:
    from PIL import Image

    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for name, colour in (("a", "red"), ("b", "blue")):
        Image.new("RGB", (64, 64), colour).save(pictures / f"{name}.png")
    empty = tmp_path / "empty"
    empty.mkdir()
    model = repository / "data/zoo/qwen2_5_vl"
    done = run([environment / "bin/paco", "score", "--model", model, pictures / "a.png", pictures / "b.png"], empty)
    assert done.returncode == 0, done.stderr
    assert 0 <= float(done.stdout) <= 1 and not list(empty.iterdir())
