"""torchvision of another version or build than torch is a problem of the installation, with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from paco_core.cli import doctor
from paco_core.planning.preflight import check_project
from paco_core.runtime.torchvision_build import torchvision_problem
from paco_core.stages import declared


def install(folder: Path, package: str, version: str, requires: str = "numpy") -> None:
    """A package as pip installs it from PyPI: its metadata lacks the build."""
    (folder / package).mkdir(parents=True)
    (folder / package / "version.py").write_text(f"__all__ = ['cuda']\n__version__ = '{version}'\ncuda = None\n")
    info = folder / f"{package}-{version.partition('+')[0]}.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {package}\nVersion: {version.partition('+')[0]}\nRequires-Dist: {requires}\n"
    )


def test_the_installed_packages_fit() -> None:
    assert torchvision_problem() is None


@pytest.mark.parametrize(
    ("torch", "torchvision", "requires", "index"),
    [
        ("2.13.0+cpu", "0.28.0+cu130", "torch==2.13.0", "https://download.pytorch.org/whl/cpu"),
        ("2.13.0+cu130", "0.28.0+cpu", "torch (==2.13.0)", "https://download.pytorch.org/whl/cu130"),
        ("2.12.0+cpu", "0.28.0+cpu", "torch==2.13.0", "https://download.pytorch.org/whl/cpu"),
        ("2.12.0", "0.28.0", "torch==2.13.0", None),
    ],
)
def test_another_version_or_build_is_a_problem(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    torch: str,
    torchvision: str,
    requires: str,
    index: str | None,
) -> None:
    install(tmp_path, "torch", torch)
    install(tmp_path, "torchvision", torchvision, requires)
    monkeypatch.syspath_prepend(tmp_path)
    problem = torchvision_problem()
    assert problem is not None and torch in problem and torchvision in problem
    assert "torch==2.13.0 torchvision==0.28.0" in problem and ("--index-url" in problem) == (index is not None)
    assert index is None or index in problem


def test_doctor_and_check_report_the_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    install(tmp_path / "site", "torch", "2.13.0+cpu")
    install(tmp_path / "site", "torchvision", "0.28.0+cu130", "torch==2.13.0")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(doctor, "_torch", lambda: "nothing")
    problem = torchvision_problem()
    assert problem is not None and doctor.report(project).figures["torchvision"] == problem  # type: ignore[index]
    result = check_project(project, declared(project))
    assert not result.passed and [problem in line for line in result.problems] == [True]


@pytest.mark.parametrize(
    ("torch", "torchvision"),
    [("2.13.0+cpu", "0.28.0"), ("2.13.0", "0.28.0"), ("2.13.0+cu130", "0.28.0+cu130"), ("2.13.0+git12", "0.28.0+cpu")],
)
def test_builds_that_may_fit_are_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str, torchvision: str
) -> None:
    """PyPI's packages for ARM have a build of torch and none of torchvision; a build from source has another name."""
    install(tmp_path, "torch", torch)
    install(tmp_path, "torchvision", torchvision, "torch==2.13.0")
    monkeypatch.syspath_prepend(tmp_path)
    assert torchvision_problem() is None
