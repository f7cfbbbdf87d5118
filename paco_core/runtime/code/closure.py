"""The code that a module runs: its import closure below the project's root, and the libraries at its edge."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import sys
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from paco_core.io.files import DataError, digest
from paco_core.runtime.code.source import Source, SourceCache, bytes_digest

PACKAGE = Path(__file__).parents[2]
#: Modules that start a stage or a server, show its progress or track it. They do not change its output. The modules
#: that describe parameters are here, too, because parameters are compared by value.
PLUMBING = frozenset(
    {
        "paco_core",
        "paco_core.__main__",
        "paco_core.io.check_report",
        "paco_core.io.local_server",
        "paco_core.io.imports",
        "paco_core.io.paths",
        "paco_core.io.progress",
        "paco_core.io.project",
        "paco_core.io.secret_shapes",
        "paco_core.io.secrets",
        "paco_core.serving.http_server",
        "paco_core.serving.servers.gateway",
        "paco_core.serving.servers.process",
        "paco_core.serving.servers.registry",
        "paco_core.serving.servers.supervisor",
        "paco_core.stages",
    }
)
PLUMBING_ROOMS = ("paco_core.cli.", "paco_core.config.", "paco_core.runtime.", "dvc_project.")
#: Libraries of the plumbing kind: validation, protocols, processes and progress bars.
NOT_COMPUTING = frozenset(
    {"certifi", "cv2", "dagster_pipes", "fastapi", "httpx", "mlflow", "pathspec", "prometheus_client", "psutil",
     "pydantic", "ray", "requests", "rich", "ruamel", "starlette", "tqdm", "uvicorn", "yaml"}
)  # fmt: skip

#: Libraries that another library uses to compute. Our code may import only the latter: the text encoders, tokenizers
#: and image processors of a pipeline come with the pipeline.
COMPUTES_WITH = {
    "diffusers": ("PIL", "transformers"),
    "open_clip": ("PIL", "timm", "torchvision"),
    "transformers": ("PIL", "tokenizers", "torchvision"),
}
#: Distributions of modules with another name. To list all installed packages takes half a second.
_OTHER_NAMES = {"PIL": "pillow", "open_clip": "open_clip_torch", "sklearn": "scikit-learn"}


@dataclass(frozen=True)
class Closure:
    """The code that modules run.

    Attributes:
        modules: digests of modules and of the data files next to them, by path below the root. An entry of a registry
            has the path ``PATH#NAME``.
        libraries: versions of distributions.
    """

    modules: dict[str, str] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)


class Code:
    """The Python code below the root of a project. Each file is read once.

    Args:
        cache: file of the :class:`SourceCache`, with which the next process parses changed files only.
    """

    def __init__(self, root: Path, cache: Path | None = None) -> None:
        self.root = root.resolve()
        self.sources = SourceCache(cache)
        self._files: dict[str, Path | None] = {}
        self._data_digests: dict[Path, dict[str, str]] = {}
        self._libraries: dict[str, bool] = {}
        self._paths: dict[Path, str] = {}
        has_own_library = (self.root / "paco_core" / "__init__.py").is_file()
        # Top-level name -> folder; all other modules are below the root.
        self._places = {"paco_core": self.root if has_own_library else PACKAGE.parent}

    def locate(self, module: str) -> bool:
        """Find a module that parameters name, below the root or on Python's path; whether it exists."""
        name = module.partition(".")[0]
        if self.file(module) is not None or name in self._places:
            return self.file(module) is not None
        spec = importlib.util.find_spec(name) if _installed(name) else None
        if spec is None or spec.origin is None or spec.origin in ("built-in", "frozen"):
            return False
        package = Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
        self._places[name] = package.parent
        self._files.clear()
        self._libraries.clear()
        self._paths.clear()
        return self.file(module) is not None

    def closure(self, modules: Iterable[str], words: Set[str] = frozenset()) -> Closure:
        """The code that these modules run.

        Args:
            words: strings that may be names of registry entries. Only the entries with these names count; if a registry
                has none of these names, all its entries count.

        Raises:
            DataError: when a file is not valid Python, or one of ``modules`` does not exist.
        """
        todo = list(modules)
        for name in todo:
            if self.file(name) is None:
                raise DataError(f"module {name}: no file below {self.root} defines it")
        visited: set[str] = set()
        digests: dict[str, str] = {}
        libraries: set[str] = set()
        while todo:
            name = todo.pop()
            if name in visited or name in PLUMBING or f"{name}.".startswith(PLUMBING_ROOMS):
                continue
            visited.add(name)
            file = self.file(name)
            if file is None:
                library = name.partition(".")[0]
                libraries.add(library)
                todo += [other for other in COMPUTES_WITH.get(library, ()) if self._is_library(other)]
                continue
            source = self.sources.read(file, name if file.name == "__init__.py" else name.rpartition(".")[0])
            if source.digest:
                digests[self._path(file)] = source.digest
            digests |= self._data_files(file, source)
            entries = _entries(source, words)
            digests |= {f"{self._path(file)}#{entry}": target for entry, target in entries.items()}
            todo += self._needed(name, source, entries)
        self.sources.save()
        return Closure(dict(sorted(digests.items())), _versions(libraries))

    def digest(self, path: str) -> str | None:
        """The present digest of a path of :class:`Closure`; None if the file or entry no longer exists."""
        path, _, entry = path.partition("#")
        file = next((base / path for base in (self.root, *self._places.values()) if (base / path).is_file()), None)
        if file is None:
            return None
        if entry:
            return next((t[entry] for t in self.sources.read(file, "").registries if entry in t), None)
        return self.sources.read(file, "").digest if file.suffix == ".py" else bytes_digest(file)

    def file(self, module: str) -> Path | None:
        """The file of a module below the root; None for a module of a library and for other names."""
        if module not in self._files:
            self._files[module] = self._find(module)
        return self._files[module]

    def _find(self, module: str) -> Path | None:
        names = module.split(".")
        place = self._places.get(names[0], self.root).joinpath(*names)
        for candidate in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
            if candidate.is_file():
                return candidate
        return None

    def _needed(self, name: str, source: Source, entries: Mapping[str, str]) -> list[str]:
        parts = name.split(".")
        needed = [".".join(parts[:end]) for end in range(1, len(parts))]  # a package runs before its modules
        needed += [other for other in source.imports if self.file(other) or self._is_library(other)]
        needed += [other for other in source.module_names if self.file(other)]
        return needed + [target.partition(":")[0] for target in entries.values()]

    def _is_library(self, module: str) -> bool:
        """Whether a dotted name begins with an installed third-party package that computes."""
        name = module.partition(".")[0]
        if name not in self._libraries:
            self._libraries[name] = self._computes(name)
        return self._libraries[name]

    def _computes(self, name: str) -> bool:
        if name in NOT_COMPUTING or name in sys.stdlib_module_names or name in self._places:
            return False
        return not (self.root / name).is_dir() and _installed(name)

    def _data_files(self, file: Path, source: Source) -> dict[str, str]:
        """Digests of the data files, for example templates, that a module names."""
        if file not in self._data_digests:
            self._data_digests[file] = self._hash_data_files(file, source)
        return self._data_digests[file]

    def _hash_data_files(self, file: Path, source: Source) -> dict[str, str]:
        digests: dict[str, str] = {}
        for name in source.file_names:
            place = file.parent / name
            if place.is_dir() and not any(place.glob("*.py")):
                files = sorted(path for path in place.rglob("*") if path.is_file())
            else:
                files = [place] if place.is_file() and place.suffix != ".py" else []
            digests |= {self._path(path): bytes_digest(path) for path in files}
        return digests

    def _path(self, file: Path) -> str:
        """The path relative to the folder in which the module was found."""
        if file not in self._paths:
            base = next((place for place in self._places.values() if file.is_relative_to(place)), self.root)
            self._paths[file] = file.relative_to(base).as_posix()
        return self._paths[file]


def _entries(source: Source, words: Set[str]) -> dict[str, str]:
    """The registry entries of a module that count: those with a name in ``words``, or all entries of a registry."""
    matches: dict[str, str] = {}
    for table in source.registries:
        selected = table.keys() & words
        matches |= {entry: target for entry, target in table.items() if not selected or entry in selected}
    return matches


@cache
def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _versions(names: Iterable[str]) -> dict[str, str]:
    """Distribution -> version, for these top-level packages."""
    versions: dict[str, str] = {}
    for name in sorted(names):
        for distribution in _distributions(name):
            versions[distribution] = _version(distribution)
    return dict(sorted(versions.items()))


def installed_version(distribution: str) -> str | None:
    """The version of a distribution, None if it is not installed."""
    try:
        return _version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def _version(distribution: str) -> str:
    return importlib.metadata.version(distribution)


@cache
def _distributions(name: str) -> tuple[str, ...]:
    """The distributions that provide ``import name``."""
    for distribution in (name, _OTHER_NAMES.get(name)):
        try:
            if distribution:
                _version(distribution)
                return (distribution,)
        except importlib.metadata.PackageNotFoundError:
            pass
    return tuple(sorted({d.lower() for d in importlib.metadata.packages_distributions().get(name, ())}))


def environment_digest(python: str | Path) -> str:
    """Digest of the packages, with versions, in the environment of an interpreter; "" if none are found.

    They are read from the names of their ``.dist-info`` folders, without starting a process.
    """
    place = shutil.which(python)
    if place is None:
        return ""
    folders = Path(place).parent.parent.glob("lib/python*/site-packages/*.dist-info")
    names = sorted(folder.name for folder in folders)
    return digest(names, 16) if names else ""
