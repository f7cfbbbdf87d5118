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

from pydantic import AfterValidator, BaseModel

from paco_core.io.files import DataError, inside, read_jsonl
from paco_core.io.home import expand_home
from paco_core.io.messages import did_you_mean
from paco_core.models.content import content_of
from paco_core.models.pipeline_index import INDEXES, ORDINARY

EXPANDED = AfterValidator(expand_home)


Layout = tuple[tuple[str, ...], str]  # files, of which a model's folder must contain one, and what such a folder is


@dataclass(frozen=True)
class Names:
    """Marks a parameter that names something.

    Attributes:
        remedy: what to do where it is missing.
        layout: of a model's folder.
    """

    kind: Literal["model", "adapter", "weights", "file", "folder"]
    remedy: str = "put the {kind} there or name another"
    layout: Layout | None = None


PIPELINE = ((ORDINARY,), "a folder in the layout of diffusers")
POLICY = (INDEXES, PIPELINE[1])
NETWORK = (("config.json",), "a folder in the layout of transformers, with tokenizer and safetensors files")
ADAPTER = (("adapter_config.json",), "a folder in the layout of PEFT")
CLIP = (("open_clip_config.json",), "a folder in the layout of open_clip, with safetensors files")

ModelRef = Annotated[str, Names("model"), EXPANDED]  # a folder of the project, or a model of a hub
PipelineRef = Annotated[str, Names("model", layout=PIPELINE), EXPANDED]  # not modular
PolicyRef = Annotated[str, Names("model", layout=POLICY), EXPANDED]  # of a family of policies, which may be modular
NetworkRef = Annotated[str, Names("model", layout=NETWORK), EXPANDED]
ClipRef = Annotated[str, Names("model", layout=CLIP), EXPANDED]
WeightsRef = Annotated[str, Names("weights"), EXPANDED]  # a safetensors file, or a folder with only one
AdapterRef = Annotated[str, Names("adapter"), EXPANDED]  # a folder, a safetensors file, or an adapter of a hub
UserFile = Annotated[str, Names("file"), EXPANDED]
PreferencesFolder = Annotated[
    str, Names("folder", "put rankings.jsonl and its pictures there or name another"), EXPANDED
]
BenchmarkFolder = Annotated[str, Names("folder", "put the benchmark there or name another"), EXPANDED]


@dataclass(frozen=True)
class Reference:
    """A parameter that names something: its dotted key, its value, and what its type says."""

    key: str
    value: str
    names: Names

    def fault(self, root: Path) -> str | None:
        """What is missing below the project's root and what to do; None where nothing is, as of a hub's model."""
        if self.names.kind == "weights":
            return _weights_fault(root, self.value)
        path, kind = root / self.value, "file" if self.names.kind == "file" else "folder"
        if self.names.layout is not None and (fault := layout_fault(root, self.value, self.names.layout)) is not None:
            return fault
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


def layout_fault(root: Path, value: str, layout: Layout) -> str | None:
    """What is wrong with the layout of a model that is there; None if it is right, or nothing is there."""
    path, (markers, description) = root / value, layout
    if not path.exists() or any((path / marker).is_file() for marker in markers):
        return None
    files = [path] if path.is_file() else list(path.glob("*.safetensors"))
    if layout not in (PIPELINE, POLICY) or len(files) != 1 or files[0].suffix != ".safetensors":
        return f"{value} has no {' or '.join(markers)}; expected {description}, or a hub id"
    return (
        f"{value} is one file of weights, expected {description}; in a recipe, set its key transformer to this path, "
        "and model to the folder or hub id of the other parts. Elsewhere, load the file with diffusers "
        "(from_single_file), and save the pipeline with save_pretrained"
    )


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


def weights_file(root: Path, value: str) -> Path:
    """The safetensors file of a :data:`WeightsRef`.

    Raises:
        DataError: if it is not there, or a folder does not contain exactly one.
    """
    if (fault := _weights_fault(root, value)) is not None:
        raise DataError(fault)
    path = root / value
    return path if path.is_file() else next(path.glob("*.safetensors"))


def _weights_fault(root: Path, value: str) -> str | None:
    path = root / value
    if path.is_file():
        is_supported = path.suffix == ".safetensors"
        return None if is_supported else f"{value} is not a safetensors file; convert it, or name another"
    if not path.is_dir():
        siblings = [sibling.name for sibling in path.parent.glob("*")]
        return f"{value} is missing; {did_you_mean(path.name, siblings)}put the file there or name another"
    count = len(list(path.glob("*.safetensors")))
    return None if count == 1 else f"{value} contains {count} safetensors files, expected one; name the file itself"


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
