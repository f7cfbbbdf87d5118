"""The wheels, installed in environments that know no checkout."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
import pytest

from tests.support.dagster_page import PATIENCE, Ui, answers, until
from tests.support.ranks import free_port
from tests.support.wheel_environments import with_everything, with_what_it_asks_for

pytestmark = pytest.mark.thorough

BIN = Path(sys.executable).parent
PROJECTS = ("packages/dvc-project", "packages/dagster-dvc", ".")


def run(
    command: Sequence[str | Path], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, env=dict(environment))


@pytest.fixture(scope="module")
def wheels(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("dist")
    for project in PROJECTS:
        build = [BIN / "uv", "build", "--quiet", "--wheel", "--no-build-isolation", "--python", sys.executable]
        result = run([*build, "--out-dir", folder, repository / project], repository, os.environ)
        assert result.returncode == 0, result.stderr
    return {wheel.name.partition("-")[0]: wheel for wheel in folder.glob("*.whl")}


@pytest.fixture(scope="module")
def environment(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As after `pip install 'paco-rl[pipeline]'`."""
    return with_everything(tmp_path_factory.mktemp("environment") / "venv", [*wheels.values()])


@pytest.fixture(scope="module")
def clean_environment(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What `env -i` leaves, and `source venv/bin/activate` adds."""
    home = tmp_path_factory.mktemp("home")
    path = os.pathsep.join([str(environment / "bin"), "/usr/local/bin", "/usr/bin", "/bin"])
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8"}


@pytest.fixture(scope="module")
def project(environment: Path, clean_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new project at the profile smoke."""
    above = tmp_path_factory.mktemp("outside")
    paco = environment / "bin/paco"
    assert run([paco, "--version"], above, clean_environment).stdout.startswith("paco ")
    rejected = run([paco, "status"], above, clean_environment)
    assert rejected.returncode == 1 and "paco init" in rejected.stderr and not list(above.iterdir())
    laid = run([paco, "init", "project"], above, clean_environment)
    assert laid.returncode == 0, laid.stderr
    repeated = run([paco, "init", "project"], above, clean_environment)
    assert repeated.returncode == 1 and "not empty" in repeated.stderr
    used = run([paco, "profile", "use", "smoke"], above / "project", clean_environment)
    assert used.returncode == 0, used.stderr
    return above / "project"


@pytest.fixture(scope="module")
def scorer(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As after `pip install paco-rl`."""
    chosen = [wheels["paco_rl"], wheels["dvc_project"]]
    return with_what_it_asks_for(tmp_path_factory.mktemp("scorer") / "venv", chosen, "paco-rl")


def metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("METADATA"))).decode()


def test_no_wheel_ships_a_top_level_package_of_strangers_or_demands_a_pre_release(wheels: dict[str, Path]) -> None:
    tops = {
        name: {entry.partition("/")[0] for entry in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in entry}
        for name, wheel in wheels.items()
    }
    assert tops == {
        "dvc_project": {"dvc_project"},
        "dagster_dvc": {"dagster_dvc"},
        "paco_rl": {"paco_core", "paco_pipelines"},
    }
    for wheel in wheels.values():
        demands = re.findall(r"^Requires-Dist: (.+)$", metadata(wheel), re.MULTILINE)
        assert demands and not [demand for demand in demands if re.search(r"\d(a|b|rc|\.dev)\d", demand)], wheel.name


def test_the_commands_of_dagster_work_before_anything_has_run(project: Path, clean_environment: dict[str, str]) -> None:
    started = run(["dagster", "schedule", "start", "nightly_reevaluation"], project, clean_environment)
    assert started.returncode == 0, started.stdout + started.stderr
    assert "Started schedule nightly_reevaluation" in started.stdout


def test_a_project_has_28_files_beside_the_small_models_and_no_code_but_its_location(project: Path) -> None:
    git_files = subprocess.run(
        ["git", "ls-files", "--others", "--cached", "--exclude-standard"],
        cwd=project, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    project_files = {name for name in git_files if not name.startswith("data/zoo/")} - {
        "profiles/storybook.yaml"
    }  # by `profile use`
    assert len(project_files) == 28
    assert {name for name in project_files if name.endswith(".py")} == {
        "pipelines/__init__.py",
        "pipelines/definitions.py",
    }


def test_the_graph_runs_from_the_wheels(project: Path, environment: Path, clean_environment: dict[str, str]) -> None:
    place = run(["python", "-c", "import paco_core; print(paco_core.__file__)"], project, clean_environment).stdout
    assert place.startswith(str(environment)), "the library comes from the wheel"
    validate = ["dagster", "definitions", "validate"]
    for command in (["paco", "check"], ["dvc", "repro", "edit_prompts"], ["dg", "list", "defs"], validate):
        result = run(command, project, clean_environment)
        assert result.returncode == 0, result.stdout + result.stderr
    assert (project / "data/edit_prompts").is_dir()
    assert "up to date" in run(["dvc", "status", "edit_prompts"], project, clean_environment).stdout


def test_the_pages_open_an_asset_is_made_there_and_its_run_is_in_mlflow(
    project: Path, clean_environment: dict[str, str]
) -> None:
    ports, log = (free_port(), free_port()), project.parent / "ui.log"
    with log.open("wb") as out:
        command = ["make", "ui", f"DAGSTER_PORT={ports[0]}", f"MLFLOW_PORT={ports[1]}"]
        servers = subprocess.Popen(
            command, cwd=project, env=clean_environment, stdout=out, stderr=out, start_new_session=True
        )
    ui = Ui(project, *(f"http://127.0.0.1:{port}" for port in ports))
    try:
        until(lambda: servers.poll() is not None or "Dagster on" in log.read_text())
        assert servers.poll() is None, log.read_text()[-3000:]
        assert answers(f"{ui.dagster}/server_info") and answers(ui.mlflow)
        run_id = ui.launch("prompts")
        until(lambda: ui.status(run_id) in ("SUCCESS", "FAILURE", "CANCELED"))
        assert ui.status(run_id) == "SUCCESS", log.read_text()[-3000:]
        assert (project / "data/prompts").is_dir()
        api = f"{ui.mlflow}/api/2.0/mlflow"
        ids = [
            experiment["experiment_id"]
            for experiment in httpx.get(f"{api}/experiments/search", params={"max_results": 100}).json()["experiments"]
        ]
        runs = httpx.post(f"{api}/runs/search", json={"experiment_ids": ids}).json()["runs"]
        assert {"key": "dagster.run_id", "value": run_id} in [
            tag for mlflow_run in runs for tag in mlflow_run["data"]["tags"]
        ]
    finally:
        os.killpg(servers.pid, signal.SIGINT)
        servers.wait(PATIENCE)


def test_pictures_and_tables_are_scored_in_an_empty_folder_that_stays_empty(
    scorer: Path, repository: Path, tmp_path: Path
) -> None:
    """With nothing installed but what the distribution asks for."""
    import pyarrow
    from PIL import Image
    from pyarrow import parquet

    pictures = tmp_path / "pictures"
    pictures.mkdir()
    names = {"first": ["a.png"], "second": ["b.png"]}
    for name, colour in (("a", "red"), ("b", "blue")):
        Image.new("RGB", (64, 64), colour).save(pictures / f"{name}.png")
    (pictures / "pairs.csv").write_text("first,second\na.png,b.png\n")
    parquet.write_table(pyarrow.table(names), pictures / "pairs.parquet")
    empty = tmp_path / "empty"
    empty.mkdir()
    score = [scorer / "bin/paco", "score", "--model", repository / "data/zoo/qwen2_5_vl"]
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    result = run([*score, pictures / "a.png", pictures / "b.png"], empty, bare)
    assert result.returncode == 0, result.stderr
    assert 0 <= float(result.stdout) <= 1 and not list(empty.iterdir())
    for table in ("pairs.csv", "pairs.parquet"):
        table_result = run([*score, "--table", pictures / table], empty, bare)
        assert table_result.returncode == 0 and "1 pairs, 0 without a score" in table_result.stdout, table_result.stderr
    assert "No module named" in run([scorer / "bin/python", "-c", "import pandas"], empty, bare).stderr
    assert not list(empty.iterdir())
