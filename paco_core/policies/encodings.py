"""Encoded prompts and reference pictures, remembered on disk by what they were made from.

One safetensors file an encoding, named by :func:`row_key`, in a folder named by the fingerprint of the encoders, in one
named by the code and libraries that encode (:func:`paco_core.policies.base.load`). Files are renamed into place, so
that ranks which encode the same things at once do no harm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from paco_core.io.atomic import atomic
from paco_core.io.files import digest
from paco_core.io.messages import kept_if_possible
from paco_core.io.project import owner_root
from paco_core.models.content import md5s_of_project

Tensors = dict[str, torch.Tensor]
FOLDER = Path(".paco") / "encodings"  # outside the outs, which DVC deletes before a run
NOT_ENCODING = {"transformer", "scheduler"}  # parts of a pipeline that no encoding depends on


def cache_folder(root: Path) -> Path:
    """Where a project and its experiments keep encodings."""
    return owner_root(root) / FOLDER


def fingerprint(model: Path, dtype: str, device: str) -> str:
    """Digest of a pipeline folder's encoders.

    Depends on: weights, configurations and tokenizers, where they are computed and in which number format.
    Holds: names and contents of all files but those of :data:`NOT_ENCODING`, those beside ``model_index.json`` included
    (what the parts are, and any part that has no folder of its own), ``dtype``, and the kind of device ("cuda").
    Which GPU computes, and with how many threads, moves an encoding by rounding and is left out.
    """
    files = [(path.relative_to(model), path) for path in sorted(model.rglob("*")) if path.is_file()]
    with md5s_of_project() as md5s:
        encoding = [(name, path) for name, path in files if name.parts[0] not in NOT_ENCODING]
        contents = [(name.as_posix(), md5s(str(path.absolute()))) for name, path in encoding]
    return digest([contents, dtype, device.partition(":")[0]], 32)


def row_key(value: object, adapters: str, precision: str) -> str:
    """Digest of what one encoding is made from, beside the encoders.

    Depends on: the text as far as the encoders read it, the pixels of a reference and the size it is brought to
    (``value``); the LoRA on the text encoders (``adapters``, see :func:`adapters_on`), which changes from call to
    call; the precision of float32 products (``precision``, as torch names it), which a training may lower to TF32.
    """
    return digest([value, adapters, precision], 32)


@dataclass(frozen=True)
class Encodings:
    """Encodings by key; with ``folder`` None they are made each time."""

    folder: Path | None = None

    def rows(self, inputs: Sequence[object], encode: Callable[[int], Tensors], adapters: str = "") -> list[Tensors]:
        """One encoding a row. ``encode`` is called with the number of each row that nobody has encoded yet.

        Rows are encoded one at a time: what a row becomes must not hang on which others were remembered.

        Args:
            inputs: everything that a row depends on, as JSON values; equal inputs are encoded once.
            adapters: digest of the LoRA on the text encoders, "" for none.
        """
        found: dict[str, Tensors] = {}
        keys = [row_key(value, adapters, torch.get_float32_matmul_precision()) for value in inputs]
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


def adapters_on(encoders: Iterable[torch.nn.Module | None]) -> str:
    """Digest of the adapters that work in these modules at the moment; "" for none.

    Holds: of each layer its name, and of each adapter that is active on it, or merged into it, the scale and the
    tensors. Adapters that are disabled for the length of a block are left out, so that the base's encodings are found.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer  # noqa: PLC0415 - `paco_core.Painter` imports this module

    found = []
    for number, encoder in enumerate(encoders):
        for place, layer in encoder.named_modules() if encoder is not None else ():
            if isinstance(layer, BaseTunerLayer):
                active = [] if layer.disable_adapters else layer.active_adapters
                for adapter in sorted({*active, *layer.merged_adapters}):
                    found.append([number, place, getattr(layer, "scaling", {}).get(adapter), *_tensors(layer, adapter)])
    return digest(found, 32) if found else ""


def _tensors(layer: torch.nn.Module, adapter: str) -> list[str]:
    """Names and digests of an adapter's tensors on a layer."""
    named = {name: tensor for name, tensor in layer.named_parameters() if adapter in name.split(".")}
    return [
        f"{name} {hashlib.sha256(tensor.detach().float().cpu().numpy().tobytes()).hexdigest()}"
        for name, tensor in sorted(named.items())
    ]
