"""Disk cache of encoded prompts and reference images.

Each encoding is a safetensors file, named by :func:`row_key`. Its folder is named by the fingerprint of the encoders,
within a folder named by the digest of the code and libraries (:func:`paco_core.policies.base.load_policy`). Files are
renamed into place, so ranks can write the same encoding at the same time.
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
from paco_core.io.messages import ignore_write_errors
from paco_core.io.project import owner_root
from paco_core.models.content import md5s_of_project
from paco_core.policies.base import Size, sized_name

Tensors = dict[str, torch.Tensor]
#: Encodes inputs that are not in a cache, like :meth:`Encodings.rows`.
Cached = Callable[[Sequence[object], Callable[[int], Tensors]], list[Tensors]]
FOLDER = Path(".paco") / "encodings"  # not in the outs, because DVC deletes outs before a run
NOT_ENCODING = {"transformer", "scheduler"}  # parts of a pipeline that do not affect encodings


def cache_folder(root: Path) -> Path:
    """Folder of the encodings of a project and its experiments."""
    return owner_root(root) / FOLDER


def encoder_fingerprint(model: Path, dtype: str, device: str) -> str:
    """Digest of a pipeline folder's encoders.

    Depends on: weights, configurations and tokenizers, the kind of device, and the number format.
    Contains: names and contents of all files except those of :data:`NOT_ENCODING`, ``dtype``, and the kind of device
    ("cuda"). Files next to ``model_index.json`` are included. The model of the GPU and the number of threads change
    encodings by rounding only, so they are excluded.
    """
    files = [(path.relative_to(model), path) for path in sorted(model.rglob("*")) if path.is_file()]
    with md5s_of_project() as md5s:
        encoding = [(name, path) for name, path in files if name.parts[0] not in NOT_ENCODING]
        contents = [(name.as_posix(), md5s(str(path.absolute()))) for name, path in encoding]
    return digest([contents, dtype, device.partition(":")[0]], 32)


def row_key(value: object, adapters: str, precision: str) -> str:
    """Digest of the inputs of one encoding, in addition to the encoders.

    Args:
        value: the text that the encoders read, the pixels of a reference, and the size to which it is resized.
        adapters: digest of the LoRA on the text encoders (:func:`hash_active_adapters`), which may differ per call.
        precision: precision of float32 matrix products by its name in torch. A training may lower it to TF32.
    """
    return digest([value, adapters, precision], 32)


@dataclass(frozen=True)
class Encodings:
    """Encodings by key. If ``folder`` is None, nothing is cached."""

    folder: Path | None = None

    def rows(self, inputs: Sequence[object], encode: Callable[[int], Tensors], adapters: str = "") -> list[Tensors]:
        """Return one encoding per row.

        Rows are encoded one at a time, so an encoding does not depend on which other rows are in the cache.

        Args:
            inputs: everything that a row depends on, as JSON values. Equal inputs are encoded once.
            encode: is called with the number of each row that is not in the cache.
            adapters: digest of the LoRA on the text encoders, "" for none.
        """
        encodings: dict[str, Tensors] = {}
        keys = [row_key(value, adapters, torch.get_float32_matmul_precision()) for value in inputs]
        for number, key in enumerate(keys):
            if key not in encodings:
                encodings[key] = self._read(key) or self._write(key, encode(number))
        return [encodings[key] for key in keys]

    def _read(self, key: str) -> Tensors | None:
        if self.folder is None:
            return None
        try:
            return load_file(self.folder / f"{key}.safetensors")
        except (FileNotFoundError, SafetensorError):  # a file that a power failure truncated is encoded again
            return None

    def _write(self, key: str, tensors: Tensors) -> Tensors:
        plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        if self.folder is not None:
            with (
                ignore_write_errors("encodings of prompts and pictures"),
                atomic(self.folder / f"{key}.safetensors") as part,
            ):
                save_file(plain, part)
        return plain


def encode_at_sizes(
    cached: Cached,
    name: str,
    sizes: Sequence[Sequence[Size]],
    key: Callable[[int, Size], object],
    encode: Callable[[int, Size], torch.Tensor],
) -> list[Tensors]:
    """Encode a tensor for each prompt and each size of its images. Equal keys are encoded once and cached.

    Args:
        cached: :meth:`PipelinePolicy.cached` of the policy that encodes.
        name: prefix of the name of the tensor, (tokens, channels) or (tokens,); :func:`sized_name` completes it.
        sizes: the image sizes of each prompt.
        key: returns everything that the tensor of a row and size depends on, as a JSON value.
        encode: computes the tensor of a row and size.
    """
    cases = [(row, size) for row, of_row in enumerate(sizes) for size in dict.fromkeys(of_row)]

    def encode_case(number: int) -> Tensors:
        with torch.no_grad():
            return {"tensor": encode(*cases[number])}

    encoded = cached([key(*case) for case in cases], encode_case)
    rows: list[Tensors] = [{} for _ in sizes]
    for (row, size), tensors in zip(cases, encoded, strict=True):
        rows[row][sized_name(name, size)] = tensors["tensor"]
    return rows


def hash_active_adapters(encoders: Iterable[torch.nn.Module | None]) -> str:
    """Digest of the adapters that are active in these modules; "" for none.

    Contains: the name of each layer, and the scale and tensors of each adapter that is active on it or merged into it.
    Disabled adapters are excluded, so the encodings of the base model are reused.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer  # noqa: PLC0415 - `paco_core.Painter` imports this module

    active_adapters = []
    for number, encoder in enumerate(encoders):
        for name, layer in encoder.named_modules() if encoder is not None else ():
            if isinstance(layer, BaseTunerLayer):
                active = [] if layer.disable_adapters else layer.active_adapters
                for adapter in sorted({*active, *layer.merged_adapters}):
                    scale = getattr(layer, "scaling", {}).get(adapter)
                    active_adapters.append([number, name, scale, *_tensor_digests(layer, adapter)])
    return digest(active_adapters, 32) if active_adapters else ""


def _tensor_digests(layer: torch.nn.Module, adapter: str) -> list[str]:
    """Names and digests of an adapter's tensors on a layer."""
    tensors = {name: tensor for name, tensor in layer.named_parameters() if adapter in name.split(".")}
    return [
        f"{name} {hashlib.sha256(tensor.detach().float().cpu().numpy().tobytes()).hexdigest()}"
        for name, tensor in sorted(tensors.items())
    ]
