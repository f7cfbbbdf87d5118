"""Parameters that name a model, a file or a folder.

Their values are plain texts, as ``params.yaml`` has them. The type says what is named: so a new parameter is looked for
before a run (`paco check`), followed by the stage `code`, and resolved like all others, without another line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel

from paco_core.io.files import DataError, inside, read_jsonl
from paco_core.io.messages import did_you_mean
from paco_core.models.content import content_of


@dataclass(frozen=True)
class Names:
    """Marks a parameter that names something; ``remedy`` is what to do where it is missing."""

    kind: Literal["model", "adapter", "file", "folder"]
    remedy: str = "put the {kind} there or name another"


ModelRef = Annotated[str, Names("model")]  # a folder of the project, or a model of a hub
AdapterRef = Annotated[str, Names("adapter")]  # a folder, a safetensors file, or an adapter of a hub
UserFile = Annotated[str, Names("file")]
PreferencesFolder = Annotated[str, Names("folder", "put rankings.jsonl and its pictures there or name another")]
BenchmarkFolder = Annotated[str, Names("folder", "put the benchmark there or name another")]


@dataclass(frozen=True)
class Reference:
    """A parameter that names something: its dotted key, its value, and what its type says."""

    key: str
    value: str
    names: Names

    def fault(self, root: Path) -> str | None:
        """What is missing below the project's root and what to do; None where nothing is, as of a hub's model."""
        path, kind = root / self.value, "file" if self.names.kind == "file" else "folder"
        either = self.names.kind == "adapter" and path.exists()
        if either or (path.is_file() if kind == "file" else path.is_dir()) or self.is_of_hub(root):
            return None
        if path.exists():
            lost = f"{self.value} is a {'folder' if path.is_dir() else 'file'}, expected a {kind}"
        else:
            lost = f"folder {self.value} is missing" if kind == "folder" else f"{self.value} is missing"
        remedy = self.names.remedy.format(kind=self.names.kind)
        if self.value.startswith("data/zoo/"):
            remedy = f"what came with the project returns by `git checkout -- {self.value}`"
        siblings = [] if path.exists() else [sibling.name for sibling in path.parent.glob("*")]
        return f"{lost}; {did_you_mean(path.name, siblings)}{remedy}"

    def is_of_hub(self, root: Path) -> bool:
        """Whether a model or an adapter is loaded from a hub."""
        if self.names.kind == "adapter" and (root / self.value).exists():
            return False
        return self.names.kind in ("model", "adapter") and not is_folder(root, self.value)


def references(section: BaseModel, prefix: str = "") -> Iterator[Reference]:
    """The parameters below a section that name something, where they are set."""
    for name, field in type(section).model_fields.items():
        marks = [mark for mark in field.metadata if isinstance(mark, Names)] or list(_marks(field.annotation))
        yield from _references(getattr(section, name), f"{prefix}{name}", marks[0] if marks else None)


def _references(value: object, key: str, names: Names | None) -> Iterator[Reference]:
    if isinstance(value, BaseModel):
        yield from references(value, f"{key}.")
    elif isinstance(value, dict | list | tuple):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for name, part in parts:
            yield from _references(part, f"{key}.{name}", names)
    elif names is not None and isinstance(value, str):
        yield Reference(key, value, names)


def _marks(annotation: object) -> Iterator[Names]:
    """What a type, or one that it is made of, is marked with."""
    for part in get_args(annotation):
        if isinstance(part, Names):
            yield part
        else:
            yield from _marks(part)


def is_folder(root: Path, model: str) -> bool:
    """Whether a model is meant to be a folder of the project, there or not."""
    return (root / model).is_dir() or model.startswith((".", "/", "data/"))


def model_at(root: Path, model: str, key: str) -> Path | str:
    """What to load a model from: its folder, or its name on a hub.

    Raises:
        DataError: naming the parameter ``key``, when it is a path, and nothing is there.
    """
    if not is_folder(root, model):
        return model
    if not (root / model).is_dir():
        raise DataError(f"{key} {model!r}: no such folder below the project; give a model folder or a hub id")
    return root / model


def model_content(root: Path, model: str) -> str:
    """What a model is, for keys of what it made; see :func:`content_of`."""
    return content_of(root / model if (root / model).exists() else model)


def named_files(file: Path) -> Iterator[Path]:
    """Files that the rows of a JSON Lines file name, by paths relative to it: the pictures of edits, for example.

    Every text that is the path of a file below the folder of ``file`` counts, whatever its key. A file of another kind
    names none.
    """
    with suppress(DataError):  # its reader refuses it
        for _, row in read_jsonl(file, rejected=lambda _line, _cause: None):
            for text in _texts(row):
                with suppress(DataError):
                    path = inside(file.parent, text)
                    if path.is_file():
                        yield path


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str) and value:
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def contents(root: Path, section: BaseModel) -> dict[str, str]:
    """What the parameters of a section name, by content, for keys of what is made from it: dotted key -> content."""
    return {reference.key: model_content(root, reference.value) for reference in references(section)}
