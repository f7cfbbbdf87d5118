"""Contents of a published folder: the files that are allowed in each kind of folder, and their formats.

A file is what its name says, or it is refused: a pickle, an archive or a text under the name of a picture included. All
its bytes are searched for secrets, and the texts that are packed in them (:mod:`paco_core.operations.packed_text`). Of
weights that is the header, metadata included: they are checked to be nothing else but numbers.
"""

from __future__ import annotations

import codecs
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from safetensors import SafetensorError, safe_open

from paco_core.io.files import DataError, read_json
from paco_core.io.pictures import image_size
from paco_core.io.secret_search import pieces_of
from paco_core.operations.packed_text import packed_texts

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["model", "dataset"]
Streams = Iterator[Iterable[bytes]]
CARD = "README.md"
ROWS = 256  # of a table that are held at a time
PICKLED = frozenset({"bin", "ckpt", "dill", "joblib", "mar", "npy", "npz", "pickle", "pkl", "pt", "pt2", "pth"})


@dataclass(frozen=True)
class Sort:
    """Files of one use.

    Attributes:
        names: patterns of their paths below the folder.
        read: gives streams of all bytes of a file in which a text may be, and raises DataError for what is something
            else than its name says.
    """

    use: str
    names: tuple[str, ...]
    read: Callable[[Path], Streams]


def _text(path: Path) -> Streams:
    yield _utf8(path)
    with path.open("rb") as lines:
        yield (text for line in lines if b";base64," in line for text in packed_texts(line))


def _utf8(path: Path) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for piece in chain(pieces_of(path), [b""]):
        try:
            decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            raise DataError(f"not UTF-8 text ({error.reason})") from None
        if b"\0" in piece:
            raise DataError("not text: it holds zero bytes")
        yield piece


def _json(path: Path) -> Streams:
    yield from _text(path)
    read_json(path)


def _weights(path: Path) -> Streams:
    """The header: names, shapes and metadata. The library checks that the tensors take up all bytes behind it."""
    try:
        with safe_open(path, framework="numpy"):
            pass
    except SafetensorError as error:
        raise DataError(f"not a file of safetensors ({error})") from None
    with path.open("rb") as stream:
        header = stream.read(int.from_bytes(stream.read(8), "little"))
    yield [header, *packed_texts(header)]


def _picture(path: Path) -> Streams:
    image_size(path)
    yield pieces_of(path)
    yield packed_texts(path.read_bytes())


def _table(path: Path) -> Streams:
    """The bytes of a Parquet file, which hold its metadata, and its cells, which are compressed in it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    yield pieces_of(path)
    try:
        with pq.ParquetFile(path) as file:
            about = file.schema_arrow.to_string(
                truncate_metadata=False, show_field_metadata=True, show_schema_metadata=True
            )
            yield [about.encode()]
            for batch in file.iter_batches(ROWS):
                for column in batch.columns:
                    yield from _cells(column)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"not a table of Parquet ({str(error).splitlines()[0]})") from None


def _cells(column: pa.Array) -> Streams:
    import pyarrow as pa

    kind = column.type
    if isinstance(column, pa.DictionaryArray):
        yield from _cells(column.dictionary)
    elif isinstance(column, pa.ExtensionArray):
        yield from _cells(column.storage)
    elif isinstance(column, pa.StructArray):
        for field in column.flatten():
            yield from _cells(field)
    elif isinstance(column, pa.MapArray):
        yield from (stream for part in (column.keys, column.items) for stream in _cells(part))
    elif isinstance(column, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        yield from _cells(column.flatten())
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        yield (part for cell in column.to_pylist() if cell for part in (cell, b"\n", *packed_texts(cell)))
    elif not pa.types.is_primitive(kind):
        texts = [f"{cell}\n".encode(errors="replace") for cell in column.to_pylist() if cell is not None]
        yield texts
        yield (part for text in texts if b";base64," in text for part in packed_texts(text))


_OF_ALL = (Sort("card", (CARD, "PROVENANCE.md"), _text), Sort("terms", ("LICENSE*", "NOTICE*", "USE_POLICY.md"), _text))
_PICTURES = ("*.png", "*.jpg", "*.jpeg", "*.webp")
SORTS: dict[Kind, tuple[Sort, ...]] = {
    "model": (
        *_OF_ALL,
        Sort("weights", ("*.safetensors",), _weights),
        Sort(
            "configuration",
            (
                "config.json", "adapter_config.json", "generation_config.json", "preprocessor_config.json",
                "processor_config.json", "tokenizer_config.json", "video_preprocessor_config.json", "tokenizer.json",
                "vocab.json", "added_tokens.json", "special_tokens_map.json", "chat_template.json",
                "*.safetensors.index.json", "base.json", "golden.json",
            ),
            _json,
        ),
        Sort("configuration", ("merges.txt", "chat_template.jinja", "MLmodel"), _text),
        Sort("sample of the card", ("sample.png",), _picture),
        Sort("pictures of golden pairs", tuple(f"golden/{name}" for name in _PICTURES), _picture),
    ),
    "dataset": (
        *_OF_ALL,
        Sort("tables", ("*.parquet",), _table),
        Sort("tables", ("*.jsonl", "*.csv"), _text),
        Sort("description of tables", ("dataset_info.json",), _json),
        Sort("pictures", _PICTURES, _picture),
    ),
}  # fmt: skip


def sort_of(kind: Kind, name: str) -> Sort | None:
    """What a file is for, by its path below the folder; None for what a folder of this kind does not hold."""
    return next((sort for sort in SORTS[kind] if any(fnmatchcase(name, pattern) for pattern in sort.names)), None)


def uses(kind: Kind) -> str:
    """The sorts of files that a folder of a kind holds, in words."""
    return ", ".join(dict.fromkeys(sort.use for sort in SORTS[kind]))


def is_pickled(path: Path) -> bool:
    """Whether a file is a pickle, or an archive with one in it, by its name or by its content."""
    if path.suffix.lower().lstrip(".") in PICKLED:
        return True
    with path.open("rb") as stream:
        head = stream.read(2)
    if head[:1] == b"\x80" and head[1:] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return True
    try:
        with zipfile.ZipFile(path) as archive:
            return any(Path(name).suffix.lower() in (".pkl", ".npy") for name in archive.namelist())
    except zipfile.BadZipFile:
        return False
