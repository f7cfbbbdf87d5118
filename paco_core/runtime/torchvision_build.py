"""The build of torchvision: it loads only with the version and the build of torch that it was compiled for.

pip installs a torchvision for CUDA from PyPI next to a torch for CPUs from PyTorch's index. Every stage then ends with
``operator torchvision::nms does not exist``.
"""

from __future__ import annotations

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

#: Local versions that name what a package was compiled for: 0.28.0+cpu, 0.28.0+cu130.
_BUILD = re.compile(r"cpu|cu\d+|rocm[\d.]+|xpu")
_VERSION = re.compile(r"^__version__ = '([^'+]+)\+?([^']*)'", re.MULTILINE)
_REQUIRED_TORCH = re.compile(r"torch ?\(?==([\w.]+)\)?")


def torchvision_problem() -> str | None:
    """How torchvision does not fit torch, and how to install both; None if they fit or one is missing.

    Both are read and not imported: the import takes seconds, and fails if they do not fit.
    """
    try:
        torch, torchvision = distribution("torch"), distribution("torchvision")
    except PackageNotFoundError:
        return None
    (torch_version, torch_build), (version, build) = _version(torch), _version(torchvision)
    matches = (_REQUIRED_TORCH.fullmatch(line) for line in torchvision.requires or ())
    required = next((match[1] for match in matches if match), torch_version)
    builds = {name for name in (torch_build, build) if _BUILD.fullmatch(name)}
    if required == torch_version and len(builds) < 2:
        return None
    index = f" --index-url https://download.pytorch.org/whl/{torch_build}" if _BUILD.fullmatch(torch_build) else ""
    installed = [_label(torch_version, torch_build), _label(version, build)]
    return (
        f"torchvision {installed[1]} does not fit torch {installed[0]}; install both from the same index: "
        f"`pip install --force-reinstall torch=={required} torchvision=={version}{index}`"
    )


def _version(package: Distribution) -> tuple[str, str]:
    """Version and local version. PyPI's metadata lacks the local version, so it is read from ``version.py``."""
    file = Path(str(package.locate_file(f"{package.name}/version.py")))
    try:
        match = _VERSION.search(file.read_text(encoding="utf-8"))
    except OSError:
        match = None
    version, _, build = package.version.partition("+") if match is None else (match[1], "", match[2])
    return version, build


def _label(version: str, build: str) -> str:
    return f"{version}+{build}" if build else version
