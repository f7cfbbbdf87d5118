"""Encoded prompts and reference pictures, remembered on disk by what they were made from.

One safetensors file an encoding, named by the digest of its inputs, in a folder named by the fingerprint of
the encoders. Files are renamed into place, so that ranks which encode the same things at once do no harm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from paco_core.io.atomic import atomic
from paco_core.io.files import digest
from paco_core.io.messages import kept_if_possible
from paco_core.io.project import owner_root

if TYPE_CHECKING:
    import torch

Tensors = dict[str, "torch.Tensor"]
FOLDER = Path(".paco") / "encodings"  # outside the outs, which DVC deletes before a run
READ_BYTES = 64 << 20  # larger files are distinguished by size and time
NOT_ENCODING = {"transformer", "scheduler"}  # parts of a pipeline that no encoding depends on


def cache_folder(root: Path) -> Path:
    """Where a project and its experiments keep encodings."""
    return owner_root(root) / FOLDER


def fingerprint(model: Path, dtype: str, device: str) -> str:
    """Digest of a pipeline folder's encoders by names and contents of their files.

    Of files of more than :data:`READ_BYTES` size and time count, as in DVC's own state: half-precision weights of
    10 GB are not read for it. Small ones are checked out anew, with a new time, for each experiment of DVC.
    """
    files = (path for path in sorted(model.rglob("*")) if path.is_file())
    stats = [
        (path.relative_to(model).as_posix(), _identity(path))
        for path in files
        if path.relative_to(model).parts[0] not in NOT_ENCODING and path.parent != model
    ]
    return digest([stats, dtype, device.partition(":")[0]], 32)


def _identity(path: Path) -> str | tuple[int, int]:
    stat = path.stat()
    if stat.st_size > READ_BYTES:
        return stat.st_size, stat.st_mtime_ns
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "md5").hexdigest()


@dataclass(frozen=True)
class Encodings:
    """Encodings by key; with ``folder`` None they are made each time."""

    folder: Path | None = None

    def rows(self, inputs: Sequence[object], encode: Callable[[int], Tensors]) -> list[Tensors]:
        """One encoding a row. ``encode`` is called with the number of each row that nobody has encoded yet.

        Rows are encoded one at a time: what a row becomes must not hang on which others were remembered.

        Args:
            inputs: everything that a row depends on, as JSON values; equal inputs are encoded once.
        """
        found: dict[str, Tensors] = {}
        keys = [digest(value, 32) for value in inputs]
        for number, key in enumerate(keys):
            if key not in found:
                found[key] = self._read(key) or self._write(key, encode(number))
        return [found[key] for key in keys]

    def _read(self, key: str) -> Tensors | None:
        if self.folder is None:
            return None
        try:
            return load_file(self.folder / f"{key}.safetensors")
        except (FileNotFoundError, SafetensorError):  # a file cut off by a power failure is made again
            return None

    def _write(self, key: str, tensors: Tensors) -> Tensors:
        plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        if self.folder is not None:
            kept = kept_if_possible("encodings of prompts and pictures")
            with kept, atomic(self.folder / f"{key}.safetensors") as part:
                save_file(plain, part)
        return plain
