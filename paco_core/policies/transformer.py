"""Loading of a pipeline's transformer: from the folder of the pipeline, or from one file of an image tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers

from paco_core.models.modular import component_classes, is_modular
from paco_core.models.precision import weights_format
from paco_core.models.weights import load_part, load_single_file, validate_single_file_class
from paco_core.policies.families import family_of
from paco_core.policies.quantised import transformer_quantization


def load_transformer(
    pipeline_class: Any, source: str | Path, *, device: str, dtype: str, base: str | None, file: Path | None
) -> Any:
    """Load the transformer of a pipeline onto a device.

    Args:
        source: folder of the pipeline; with ``file`` also its hub id, which gives the configuration.
        base: number format of the weights on a GPU. None = that of ``dtype``.
        file: its weights in one file. None = those of the folder.
    """
    options = transformer_quantization(base, device)
    if file is None:
        transformer = load_part(pipeline_class, Path(source), "transformer", weights_format(dtype), **options)
    else:
        if options:  # from_single_file takes a device instead of a map
            options = {"quantization_config": options["quantization_config"], "device": device}
        model_class = transformer_class(pipeline_class)
        transformer = load_single_file(model_class, file, source, "transformer", dtype=weights_format(dtype), **options)
    return transformer if options else transformer.to(device)


def transformer_class(pipeline_class: Any) -> Any:
    """The class of the transformer that a pipeline of diffusers takes."""
    if is_modular(pipeline_class):
        return component_classes(pipeline_class)["transformer"]
    annotation = pipeline_class.__init__.__annotations__["transformer"]
    return annotation if isinstance(annotation, type) else getattr(diffusers, annotation)


def validate_single_file(family: str) -> None:
    """Raise DataError if diffusers does not load the transformer of a family from one file."""
    validate_single_file_class(transformer_class(getattr(diffusers, family_of(family).pipeline)))
