"""Environments that hold the wheels of this project and know no checkout.

Other packages are read from where the tests' own environment has them: installing them again would take a minute and
7 GB. So are their programs (`dagster`, `dvc`), which are written anew for the other Python.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

HERE = Path(sysconfig.get_paths()["purelib"])
# As pip writes it: a process that Python's multiprocessing starts imports it again, and must not run it.
SCRIPT = """#!{python}
import sys
from {module} import {name}
if __name__ == "__main__":
    sys.exit({attr}())
"""
OURS = ("paco-rl", "dvc-project", "dagster-dvc")


def with_everything(folder: Path, wheels: Sequence[Path]) -> Path:
    """The wheels, and all that is installed here, as after `pip install 'paco-rl[pipeline]'`."""
    packages = _environment(folder, wheels)
    # A plain path in a .pth file: the .pth files of the other folder, by which the checkout is found, are not read.
    (packages / "others.pth").write_text(f"{HERE}\n")
    for script in metadata.entry_points(group="console_scripts"):
        place = folder / "bin" / script.name
        if script.dist is not None and script.dist.name not in OURS and not place.exists():
            text = SCRIPT.format(
                python=folder / "bin/python", module=script.module, attr=script.attr, name=script.attr.split(".")[0]
            )
            place.write_text(text)
            place.chmod(0o755)
    return folder


def with_what_it_asks_for(folder: Path, wheels: Sequence[Path], name: str) -> Path:
    """The wheels, and what the distribution ``name`` asks for without extras, as after `pip install NAME`."""
    packages = _environment(folder, wheels)
    for top in {top for distribution in _asked_for(name, packages) for top in _tops(distribution)}:
        if not (packages / top).exists():
            (packages / top).symlink_to(HERE / top)
    return folder


def _environment(folder: Path, wheels: Sequence[Path]) -> Path:
    """A new environment with the wheels only; its folder of packages."""
    python = folder / "bin/python"
    uv = [Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", "--offline", "--no-deps", "--python"]
    for command in ([sys.executable, "-m", "venv", "--without-pip", folder], [*uv, python, *wheels]):
        subprocess.run([str(word) for word in command], cwd=folder.parent, check=True, capture_output=True)
    result = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return Path(result.stdout.strip())


def _asked_for(name: str, packages: Path) -> list[metadata.Distribution]:
    """The distributions that one asks for, itself among them: as the wheels say, else as installed here."""
    distributions: dict[str, metadata.Distribution] = {}
    waiting, visited = [(name, "")], set[tuple[str, str]]()
    while waiting:
        if (requirement := waiting.pop()) in visited:
            continue
        visited.add(requirement)
        matches = metadata.Distribution.discover(name=requirement[0], path=[str(packages), str(HERE)])
        if (distribution := next(iter(matches), None)) is None:  # left out where there is no GPU
            continue
        distributions[requirement[0]] = distribution
        for demand in map(Requirement, distribution.requires or []):
            if demand.marker is None or demand.marker.evaluate({"extra": requirement[1]}):
                waiting += [(demand.name, extra) for extra in ("", *demand.extras)]
    return [*distributions.values()]


def _tops(distribution: metadata.Distribution) -> Iterator[str]:
    """What a distribution has in the folder of packages."""
    for file in distribution.files or []:
        top = file.parts[0]
        if top not in ("..", "__pycache__") and not top.endswith(".pth"):
            yield top
