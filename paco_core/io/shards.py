"""Images in deterministic tar shards with an index: few files, and equal bytes for equal images.

A shard is a folder with ``images.tar`` (members sorted by name, mtime 0, uid/gid 0) and ``index.parquet`` (one row per
image: id, member, offset, size and the writer's columns). DVC needs seconds to hash and link thousands of single files.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.io.decoding import MAX_BYTES
from paco_core.io.files import DataError, checked_name, md5_of, read_table
from paco_core.io.pictures import decode_image
from paco_core.io.project import read_declared_outs

if TYPE_CHECKING:
    import pandas as pd
    from PIL import Image

TAR, INDEX = "images.tar", "index.parquet"
SHARDS = f"[!.]*/{INDEX}"
COLUMNS = ("id", "member", "offset", "size")  # of every index
GRID_COLUMNS = ("prompt_id", "seed", "layout")  # further ones, of an index of grids


def encode_png(image: Image.Image) -> bytes:
    """PNG bytes; equal pixels give equal bytes."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=False, compress_level=6)
    return buffer.getvalue()


def write_shard(
    folder: Path, rows: Sequence[Mapping[str, Any]], images: Mapping[str, bytes], columns: Sequence[str] = ()
) -> None:
    """Write ``images`` (id -> encoded bytes) and their index rows (each with a key ``id``) to ``folder``.

    Both files are sorted by id. ``images`` may read each image lazily, and may contain further images.

    Args:
        columns: further columns of the index, for a shard that may be empty.

    Raises:
        DataError: if an id is not a valid file name or repeats, or a row has no image.
    """
    import pandas as pd

    ids = [checked_name(row["id"]) for row in rows]
    if len(set(ids)) != len(ids):
        raise DataError(f"{folder}: {len(ids) - len(set(ids))} repeated picture ids")
    if missing := [name for name in ids if name not in images]:
        raise DataError(f"{folder}: {len(missing)} rows have no picture, e.g. {missing[0]}")
    folder.mkdir(parents=True, exist_ok=True)
    table = []
    with tarfile.open(folder / TAR, "w", format=tarfile.USTAR_FORMAT) as tar:
        for row in sorted(rows, key=lambda r: str(r["id"])):
            data = images[str(row["id"])]
            info = tarfile.TarInfo(f"{row['id']}.png")
            info.size = len(data)
            table.append({**row, "member": info.name, "offset": tar.offset + tarfile.BLOCKSIZE, "size": len(data)})
            tar.addfile(info, io.BytesIO(data))
    index = pd.DataFrame(table) if table else pd.DataFrame(columns=[*COLUMNS, *columns])
    index.to_parquet(folder / INDEX, index=False)


def _index(path: Path, require: Sequence[str]) -> pd.DataFrame:
    """The index of one shard, whose ids, offsets and sizes can be used as they are."""
    from pandas.api.types import is_integer_dtype

    table = read_table(path, require=(*COLUMNS, *require))
    sides = 1, 1 << 31
    bounds = {"offset": (tarfile.BLOCKSIZE, 1 << 62), "size": (0, MAX_BYTES), "width": sides, "height": sides}
    for name, values in table.filter([*bounds]).items():
        least, most = bounds[str(name)]
        if len(values) and not (is_integer_dtype(values) and values.between(least, most).all()):
            raise DataError(f"{path}: column {name!r} is damaged: expected whole numbers from {least} to {most}")
    for row, name in enumerate(table["id"]):
        try:
            checked_name(name)
        except DataError as error:
            raise DataError(f"{path}: row {row}: {error}") from None
    return table


class ShardReader:
    """Random access to the images of one or more shards by id.

    Args:
        require: columns that each index must have, in addition to the columns of the tar.
    """

    def __init__(self, folders: Sequence[Path], require: Sequence[str] = ()) -> None:
        self.folders, self.require = list(folders), tuple(require)

    @classmethod
    def below(cls, root: Path, *more_roots: Path, require: Sequence[str] = ()) -> ShardReader:
        """All shards one level below ``root``, in name order, then those below ``more_roots``, which may have none.

        If ``dvc.yaml`` declares outputs below ``root``, only those are read. Shards of a larger ``grid_shards``, and
        incomplete folders of killed runs (their names begin with a dot), are ignored.

        Raises:
            DataError: if there is no shard below ``root``.
        """
        declared = read_declared_outs(root)
        folders = sorted(p.parent for p in root.glob(SHARDS) if not declared or p.parent.absolute() in declared)
        if not folders:
            raise DataError(f"{root}: no shard found (expected */{INDEX}); run `dvc repro grids`")
        return cls([*folders, *sorted(p.parent for other in more_roots for p in other.glob(SHARDS))], require)

    @cached_property
    def index(self) -> pd.DataFrame:
        """All index rows, with a column ``folder``, indexed by id.

        Raises:
            DataError: if an index is missing or damaged, lacks a column or has invalid values, or if two shards share
                an id.
        """
        import pandas as pd

        frames = [_index(folder / INDEX, self.require).assign(folder=str(folder)) for folder in self.folders]
        frames = [frame for frame in frames if len(frame)] or frames[:1]  # an empty one has columns, and no types
        table = pd.concat(frames, ignore_index=True)
        repeated = table["id"][table["id"].duplicated()]
        if len(repeated):
            raise DataError(f"{len(repeated)} picture ids are in two shards, e.g. {repeated.iloc[0]}")
        return table.set_index("id", drop=False)

    def read(self, image_id: str) -> Image.Image:
        """The image with this id, RGB.

        Raises:
            DataError: if the id is unknown, or its shard is missing, truncated or damaged.
        """
        if image_id not in self.index.index:
            raise DataError(f"picture {image_id}: not in {', '.join(map(str, self.folders))}")
        row: Any = self.index.loc[image_id]
        tar = Path(str(row["folder"])) / TAR
        if not tar.is_file():
            raise DataError(f"{tar}: missing although its index lists {image_id}; run `dvc repro grids`")
        offset, size, end = int(row["offset"]), int(row["size"]), tar.stat().st_size
        if offset + size > end:
            raise DataError(
                f"{tar}: cut off: picture {image_id} needs {size} bytes at {offset}, "
                f"the file ends after {end}; delete it and run `dvc repro grids`"
            )
        with tar.open("rb") as stream:
            stream.seek(offset)
            data = stream.read(size)
        if row.get("md5") and md5_of(data) != row["md5"]:
            raise DataError(
                f"{tar}:{row['member']}: its bytes do not match its md5 in {INDEX}: the file was damaged or "
                "changed; delete the shard and run `dvc repro grids`"
            )
        image = decode_image(data, f"{tar}:{row['member']}")
        if "width" in row and image.size != (row["width"], row["height"]):
            raise DataError(
                f"{tar}:{row['member']}: {image.width} x {image.height} px, its index says "
                f"{row['width']} x {row['height']}; delete the shard and run `dvc repro grids`"
            )
        return image
