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
#: How a stage or a server is started and kept, reports its progress and is tracked: none of it changes what comes out.
#: Parameters are compared by value, so the modules that describe them are here, too.
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

#: What a library computes with where our own code imports the library alone: a pipeline's text encoders, tokenizers and
#: image processors come with the pipeline.
COMPUTES_WITH = {
    "diffusers": ("PIL", "transformers"),
    "open_clip": ("PIL", "timm", "torchvision"),
    "transformers": ("PIL", "tokenizers", "torchvision"),
}
#: Names that a list of all installed packages, half a second of work, need not be asked for.
_OTHER_NAMES = {"PIL": "pillow", "open_clip": "open_clip_torch", "sklearn": "scikit-learn"}


@dataclass(frozen=True)
class Closure:
    """Digests of modules and of the files beside them, by path below the root; versions of libraries.

    An entry of a registry counts as ``PATH#NAME``.
    """

    modules: dict[str, str] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)


class Code:
    """The Python code below one project's root, each file read once.

    Args:
        cache: where to keep what was read, so that the next process reads changed files only.
    """

    def __init__(self, root: Path, cache: Path | None = None) -> None:
        self.root = root.resolve()
        self.sources = SourceCache(cache)
        self._files: dict[str, Path | None] = {}
        self._named_beside: dict[Path, dict[str, str]] = {}
        self._libraries: dict[str, bool] = {}
        self._paths: dict[Path, str] = {}
        own = (self.root / "paco_core" / "__init__.py").is_file()
        # Top-level name -> folder; all others lie below the root.
        self._places = {"paco_core": self.root if own else PACKAGE.parent}

    def locate(self, module: str) -> bool:
        """Look for a module that parameters name: below the root, else where Python finds it."""
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
        """All that these modules run.

        A registry's entry counts if one of ``words`` is its name; where none of its names is among them, all do.

        Raises:
            DataError: when a file is no Python, or one of ``modules`` is nowhere.
        """
        todo = list(modules)
        for name in todo:
            if self.file(name) is None:
                raise DataError(f"module {name}: there is no such file below {self.root}")
        seen: set[str] = set()
        found: dict[str, str] = {}
        libraries: set[str] = set()
        while todo:
            name = todo.pop()
            if name in seen or name in PLUMBING or f"{name}.".startswith(PLUMBING_ROOMS):
                continue
            seen.add(name)
            file = self.file(name)
            if file is None:
                library = name.partition(".")[0]
                libraries.add(library)
                todo += [other for other in COMPUTES_WITH.get(library, ()) if self._is_library(other)]
                continue
            source = self.sources.read(file, name if file.name == "__init__.py" else name.rpartition(".")[0])
            if source.digest:
                found[self._path(file)] = source.digest
            found |= self._beside(file, source)
            entries = _entries(source, words)
            found |= {f"{self._path(file)}#{entry}": where for entry, where in entries.items()}
            todo += self._needed(name, source, entries)
        self.sources.save()
        return Closure(dict(sorted(found.items())), _versions(libraries))

    def digest(self, path: str) -> str | None:
        """The present digest of what :class:`Closure` names by ``path``; None when it is gone."""
        path, _, entry = path.partition("#")
        file = next((base / path for base in (self.root, *self._places.values()) if (base / path).is_file()), None)
        if file is None:
            return None
        if entry:
            return next((t[entry] for t in self.sources.read(file, "").registries if entry in t), None)
        return self.sources.read(file, "").digest if file.suffix == ".py" else bytes_digest(file)

    def file(self, module: str) -> Path | None:
        """The file of a module below the root; None for a library's, and for a name that is no module."""
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
        needed += [other for other in source.named if self.file(other)]
        return needed + [where.partition(":")[0] for where in entries.values()]

    def _is_library(self, module: str) -> bool:
        """Whether a dotted name begins with an installed package from elsewhere that computes."""
        name = module.partition(".")[0]
        if name not in self._libraries:
            self._libraries[name] = self._computes(name)
        return self._libraries[name]

    def _computes(self, name: str) -> bool:
        if name in NOT_COMPUTING or name in sys.stdlib_module_names or name in self._places:
            return False
        return not (self.root / name).is_dir() and _installed(name)

    def _beside(self, file: Path, source: Source) -> dict[str, str]:
        """Templates and the like that the module names, each read once."""
        if file not in self._named_beside:
            self._named_beside[file] = self._read_beside(file, source)
        return self._named_beside[file]

    def _read_beside(self, file: Path, source: Source) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in source.beside:
            place = file.parent / name
            if place.is_dir() and not any(place.glob("*.py")):
                files = sorted(path for path in place.rglob("*") if path.is_file())
            else:
                files = [place] if place.is_file() and place.suffix != ".py" else []
            found |= {self._path(path): bytes_digest(path) for path in files}
        return found

    def _path(self, file: Path) -> str:
        """Relative to the folder that the module was looked for in."""
        if file not in self._paths:
            base = next((place for place in self._places.values() if file.is_relative_to(place)), self.root)
            self._paths[file] = file.relative_to(base).as_posix()
        return self._paths[file]


def _entries(source: Source, words: Set[str]) -> dict[str, str]:
    """Entries of a module's registries that count: those that ``words`` name, else all of a table."""
    found: dict[str, str] = {}
    for table in source.registries:
        named = table.keys() & words
        found |= {entry: where for entry, where in table.items() if not named or entry in named}
    return found


@cache
def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _versions(names: Iterable[str]) -> dict[str, str]:
    """Distribution -> version of these top-level packages."""
    found: dict[str, str] = {}
    for name in sorted(names):
        for distribution in _distributions(name):
            found[distribution] = _version(distribution)
    return dict(sorted(found.items()))


def installed(distribution: str) -> str | None:
    """The version of a distribution, None where it is not installed."""
    try:
        return _version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def _version(distribution: str) -> str:
    return importlib.metadata.version(distribution)


@cache
def _distributions(name: str) -> tuple[str, ...]:
    """What to install for ``import name``."""
    for distribution in (name, _OTHER_NAMES.get(name)):
        try:
            if distribution:
                _version(distribution)
                return (distribution,)
        except importlib.metadata.PackageNotFoundError:
            pass
    return tuple(sorted({d.lower() for d in importlib.metadata.packages_distributions().get(name, ())}))


def environment_digest(python: str | Path) -> str:
    """Digest of the packages, with versions, that are installed beside an interpreter; "" where none are found.

    They are read off the names of their ``.dist-info`` folders: no process is started for it.
    """
    place = shutil.which(python)
    if place is None:
        return ""
    folders = Path(place).parent.parent.glob("lib/python*/site-packages/*.dist-info")
    names = sorted(folder.name for folder in folders)
    return digest(names, 16) if names else ""
