"""Files that are either whole or absent: atomic writing, free-space checks; JSON Lines, tables and YAML read."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core import paths

if TYPE_CHECKING:
    import pandas as pd


COLON = "found unexpected ':'"  # the YAML parser in C on [http://host:80], which the one in Python takes


class DataError(ValueError):
    """Data on disk is missing or malformed; the text names the file, the line or id, and the remedy."""


@contextmanager
def atomic(target: Path) -> Iterator[Path]:
    """A temporary sibling of ``target`` (file or folder, the caller decides) renamed over it on success.

    On any exception, Ctrl-C included, the temporary is removed and ``target`` is left as it was. A
    killed process leaves only the temporary, which the next writer of the same target removes.

    Raises:
        OSError: ENOSPC naming ``target`` when the disk is full, however the library that wrote has told it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    _remove(part)
    try:
        yield part
        if not part.exists():
            raise DataError(f"{target}: nothing was written to {part.name}; the stage produced no out")
        if part.is_dir() or target.is_dir():
            _remove(target)  # only a file can take a file's place in one step
        part.replace(target)
    except BaseException as error:
        _remove(part)
        if _disk_is_full(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target)) from error
        raise


def _disk_is_full(error: BaseException) -> bool:
    """safetensors, unlike most, tells it in words only."""
    return getattr(error, "errno", None) == errno.ENOSPC or "(os error 28)" in str(error)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.exists() or path.is_symlink():
        path.unlink()


def write_text(target: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic(target) as part:
        part.write_text(text, encoding="utf-8")


def write_json(target: Path, value: Any) -> None:
    """Write JSON atomically, keys in the given order, NaN refused (it is no JSON)."""
    write_text(target, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON.

    Raises:
        DataError: when the file is missing or is no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not valid JSON ({error.msg})") from None


def write_jsonl(target: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object a line, atomically."""
    with atomic(target) as part, part.open("w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number (from 1) and object of each line.

    Raises:
        DataError: naming file and line when a line is no JSON object (a truncated file, say).
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode())
            except json.JSONDecodeError as error:
                raise DataError(f"{path}:{number}: not valid JSON ({error.msg}); is the file cut off?") from None
            except UnicodeDecodeError as error:
                raise DataError(f"{path}:{number}: not UTF-8 text ({error.reason} at byte {error.start})") from None
            if not isinstance(row, dict):
                raise DataError(f"{path}:{number}: expected a JSON object, found {type(row).__name__}")
            yield number, row


def read_table(path: Path, columns: Sequence[str] | None = None, *, remedy: str | None = None) -> pd.DataFrame:
    """Read a Parquet table.

    Args:
        columns: these only; all when None.
        remedy: how to get the file whole again, where that is neither its stage's work nor another copy.

    Raises:
        DataError: when the file is missing, empty, cut off or damaged, with what makes it anew.
    """
    import pandas as pd

    stage = paths.producer(path)
    remedy = remedy or (f"run `dvc repro {stage}`" if stage else "put a whole copy in its place")
    try:
        return pd.read_parquet(path, columns=None if columns is None else list(columns))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; {remedy}") from None
    except Exception as error:  # a damaged file makes pyarrow raise many types
        size = path.stat().st_size if path.is_file() else 0
        cause = f"{size} bytes, {error}" if size else "it is empty"
        raise DataError(f"{path}: no readable Parquet file ({cause}); is it cut off? {remedy}") from None


def parse_yaml(text: str) -> Any:
    """What a text in YAML 1.2 says, as DVC reads it: ``1e-05`` is a number, an unquoted ``yes`` a word.

    Raises:
        DataError: when it is no YAML, or has a key twice.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return YAML(typ="safe").load(text)
    except MarkedYAMLError as error:
        hint = "; a text with a colon inside brackets needs quotes" if error.problem == COLON else ""
        raise DataError(f"not valid YAML (line {error.problem_mark.line + 1}: {error.problem}{hint})") from None
    except YAMLError as error:  # a character that YAML does not know
        raise DataError(f"not valid YAML ({' '.join(str(error).split())[:300]})") from None


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def read_yaml(path: Path, read: Callable[[Path], str] = _text) -> dict[str, Any]:
    """A mapping in a YAML file.

    Raises:
        DataError: when the file is missing or holds no mapping.
    """
    try:
        tree = parse_yaml(read(path))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    if not isinstance(tree, Mapping):
        raise DataError(f"{path}: expected a mapping, found {type(tree).__name__}")
    return dict(tree)


def digest(value: Any, length: int = 12) -> str:
    """Short content digest (SHA-256 of canonical JSON), for ids that are stable from run to run."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def folder_digest(folder: Path, length: int = 32) -> str:
    """MD5 over names and contents of all files below a folder, in sorted order.

    Raises:
        DataError: when the folder does not exist or is empty.
    """
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    if not files:
        raise DataError(f"{folder}: no such folder, or it is empty")
    md5 = hashlib.md5(usedforsecurity=False)
    for path in files:
        md5.update(path.relative_to(folder).as_posix().encode())
        with path.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                md5.update(chunk)
    return md5.hexdigest()[:length]


def settle_safetensors(path: Path) -> None:
    """Sort the metadata of a safetensors file: it is written in a hash map's order, another one in each process.

    Format: 8 bytes for the header's length, the header as JSON filled up with blanks, the tensors.
    """
    with path.open("r+b") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
        notes = {"__metadata__": dict(sorted(header.pop("__metadata__", {}).items()))}
        text = json.dumps(
            {**notes, **header} if notes["__metadata__"] else header, separators=(",", ":"), ensure_ascii=False
        )
        stream.seek(8)
        stream.write(text.encode().ljust(size))
