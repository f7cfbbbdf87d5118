"""Text, JSON, JSON Lines, tables and YAML: atomic writes, and reads with errors that contain the file name.

:func:`checked_name` validates ids that become file names, and :func:`inside` validates paths in data files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from dvc_project import errors
from dvc_project.yaml import parse_yaml
from paco_core.io import paths
from paco_core.io.atomic import atomic
from paco_core.io.text import BOM, decoded, other_encoding, parse_json

if TYPE_CHECKING:
    import pandas as pd


DataError = errors.DataError  # one class for files of every kind, DVC's own included
MAX_NAME = 96  # characters: a tar header has 100 bytes for a name, and ".png" comes behind it
_NAME = re.compile(rf"[A-Za-z0-9_](?:[A-Za-z0-9._-]{{0,{MAX_NAME - 2}}}[A-Za-z0-9_-])?")
_DEVICES = {"con", "prn", "aux", "nul", *(f"{kind}{n}" for kind in ("com", "lpt") for n in range(1, 10))}


def checked_name(value: object) -> str:
    """Validate an id of a data file that becomes a file name or a part of one.

    Raises:
        DataError: if the id is too long, has characters that a file name may not have, or is a device name on Windows.
    """
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise DataError(
            f"{_short(value)} cannot be an id: files are named by it; use letters, digits, '_', '-' and '.', "
            f"{MAX_NAME} at most, not starting with '.' or '-', not ending with '.'"
        )
    if value.split(".", maxsplit=1)[0].lower() in _DEVICES:
        raise DataError(f"{value!r} cannot be an id: it is the name of a device on Windows")
    return value


class UniqueIds:
    """Ids of one data file, each once, also on file systems that ignore case."""

    def __init__(self) -> None:
        self._lines: dict[str, tuple[str, int]] = {}

    def add(self, name: str, line: int) -> None:
        """Add a validated id.

        Raises:
            DataError: if an earlier line has this id, also in another case.
        """
        existing, before = self._lines.setdefault(name.lower(), (name, line))
        if before != line:
            explanation = (
                "" if existing == name else f" as {existing}, and many disks do not distinguish upper from lower case"
            )
            raise DataError(f"{name} is already on line {before}{explanation}")


def inside(folder: Path, name: object) -> Path:
    """Resolve a path of a data file below ``folder``.

    Raises:
        DataError: if the path is not relative, or leads out of the folder by ``..`` or by a link.
    """
    if not isinstance(name, str) or not name:
        raise DataError(f"{_short(name)} is not a file name")
    pure_path, path = PurePosixPath(name), folder / name
    if pure_path.is_absolute():
        raise DataError(
            f"{_short(name)} is an absolute path, which leads out of {folder} or breaks when it is moved; "
            "name a path below it"
        )
    if ".." in pure_path.parts:
        raise DataError(f"{_short(name)} leads out of {folder}; name a path below it")
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # the caller reports the missing file
    except (OSError, ValueError) as error:  # too long, links in a circle, a character that no path has
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{_short(name)} is not a usable path ({reason})") from None
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{_short(name)} leads out of {folder} through a link; put the file itself there")
    return path


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text)} characters)"


def write_text(target: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic(target) as part:
        part.write_text(text, encoding="utf-8")


def append_line(path: Path, line: bytes) -> None:
    """Append a line to a file completely or not at all. A partial line on a full disk is removed again.

    Raises:
        OSError: if the line cannot be written; the file is unchanged.
    """
    with path.open("ab", buffering=0) as stream:
        before, remaining = os.fstat(stream.fileno()).st_size, memoryview(line)
        try:
            while remaining:  # an almost full disk writes a part, and only returns its length
                remaining = remaining[stream.write(remaining) or 0 :]
        except BaseException:
            os.ftruncate(stream.fileno(), before)
            raise


def write_json(target: Path, value: Any) -> None:
    """Write JSON atomically, with the keys in order. NaN is refused, because JSON does not have it."""
    write_text(target, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_text_file(path: Path) -> str:
    """The text of a file.

    Raises:
        DataError: when the file is missing, a folder, or not UTF-8.
    """
    try:
        return decoded(path.read_bytes())
    except (FileNotFoundError, IsADirectoryError) as error:
        raise DataError(f"{path}: {_no_file(error)}") from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def read_json(path: Path) -> Any:
    """Read JSON.

    Raises:
        DataError: if the file is missing or is not JSON.
    """
    text = read_text_file(path)
    try:
        return parse_json(text)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not valid JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; lists in lists in lists
        raise DataError(f"{path}: not valid JSON ({error})") from None


def _no_file(error: OSError) -> str:
    return "a folder, expected a file" if isinstance(error, IsADirectoryError) else "no such file"


def write_jsonl(target: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object a line, atomically."""
    with atomic(target) as part, part.open("w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def read_jsonl(
    path: Path, rejected: Callable[[int, str], object] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number (from 1) and object of each line.

    Args:
        rejected: called with number and cause of a line that is not a JSON object. The line is then skipped. Without
            it, such a line is an error.

    Raises:
        DataError: with file and line, if a line is not a JSON object or has a key twice, or if the file is UTF-16 text.
    """
    if not path.is_file():
        raise DataError(f"{path}: {'a folder, expected a file' if path.is_dir() else 'no such file'}")
    with path.open("rb") as lines:
        head = lines.read(4)
        if name := other_encoding(head):
            raise DataError(f"{path}: {name} text, expected UTF-8; save it as UTF-8")
        lines.seek(len(BOM) if head.startswith(BOM) else 0)
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = _json_object(line)
            except DataError as error:
                if rejected is None:
                    raise DataError(f"{path}:{number}: {error}") from None
                rejected(number, str(error))
            else:
                yield number, row


def _json_object(line: bytes) -> dict[str, Any]:
    try:
        row = parse_json(decoded(line), object_pairs_hook=_once)
    except DataError:
        raise
    except json.JSONDecodeError as error:
        cut_off = "; is the file cut off?" if not line.endswith(b"\n") else ""
        hint = cut_off if line.lstrip().startswith(b"{") else "; expected JSON Lines, one object {...} a line"
        raise DataError(f"not valid JSON ({error.msg}){hint}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"not valid JSON ({error})") from None
    if not isinstance(row, dict):
        raise DataError(f"expected a JSON object, found {type(row).__name__}")
    return row


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, in which no key may be twice: which value is meant?"""
    tree = dict(pairs)
    if len(tree) < len(pairs):
        names = [name for name, _ in pairs]
        raise DataError(f"key {next(name for name in tree if names.count(name) > 1)!r} is there twice")
    return tree


def read_table(
    path: Path, columns: Sequence[str] | None = None, *, require: Sequence[str] = (), remedy: str | None = None
) -> pd.DataFrame:
    """Read a Parquet table.

    Args:
        columns: columns to read; None reads all.
        require: columns that the table must have.
        remedy: how to restore the file, if neither its stage nor another copy restores it.

    Raises:
        DataError: if the file is missing, empty, truncated or damaged, or lacks a column. The message contains the
            remedy.
    """
    import pandas as pd
    from pyarrow import parquet

    stage = paths.producer(path)
    remedy = remedy or (f"run `dvc repro {stage}`" if stage else "replace it with a complete copy")
    try:
        existing = parquet.read_schema(path).names
        if missing := [name for name in (*require, *(columns or ())) if name not in existing]:
            raise DataError(
                f"{path}: column {missing[0]!r} is missing; found {', '.join(map(str, existing)) or 'none'}; {remedy}"
            )
        return pd.read_parquet(path, columns=None if columns is None else list(columns))
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; {remedy}") from None
    except Exception as error:  # a damaged file makes pyarrow raise many types  # noqa: BLE001
        size = path.stat().st_size if path.is_file() else 0
        cause = f"{size} bytes, {error}" if size else "it is empty"
        raise DataError(f"{path}: not a readable Parquet file ({cause}); is it cut off? {remedy}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a mapping from a YAML file.

    Raises:
        DataError: if the file is missing or does not contain a mapping.
    """
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError) as error:
        raise DataError(f"{path}: {_no_file(error)}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    if not isinstance(tree, Mapping):
        raise DataError(f"{path}: expected a mapping, found {type(tree).__name__}")
    return dict(tree)


def digest(value: Any, length: int = 12) -> str:
    """Short content digest (SHA-256 of canonical JSON), for ids that are stable from run to run."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def md5_of(data: bytes) -> str:
    """MD5 of bytes, the digest that DVC uses for files."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def read_file_stats(folder: Path) -> dict[Path, os.stat_result]:
    """Size and times of each file below a folder, sorted by path.

    Another process may rename or remove files and folders at the same time. Entries that disappear are left out.

    Raises:
        OSError: when a folder cannot be read.
    """

    def raise_unless_removed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    stats = {}
    for parent, _, names in os.walk(folder, onerror=raise_unless_removed):
        for path in (Path(parent, name) for name in names):
            with suppress(FileNotFoundError, NotADirectoryError):
                stats[path] = path.stat()
    return {path: stats[path] for path in sorted(stats) if stat.S_ISREG(stats[path].st_mode)}


def files_below(folder: Path) -> list[Path]:
    """All files below a folder, sorted.

    Raises:
        DataError: when the folder does not exist or is empty.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        raise DataError(f"{folder}: no such folder, or it is empty")
    return files


def folder_digest(folder: Path) -> str:
    """MD5 over the names and contents of all files below a folder, in sorted order. Ids of images depend on it.

    Raises:
        DataError: when the folder does not exist or is empty.
    """
    md5 = hashlib.md5(usedforsecurity=False)
    for path in files_below(folder):
        md5.update(path.relative_to(folder).as_posix().encode())
        with path.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                md5.update(chunk)
    return md5.hexdigest()


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
