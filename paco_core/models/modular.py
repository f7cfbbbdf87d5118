"""Modular pipelines of diffusers: they consist of blocks, and their classes are no subclasses of DiffusionPipeline.

The blocks that rewrite prompts are left out (:data:`paco_core.models.pipeline_index.REWRITERS`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any

from huggingface_hub import snapshot_download

from paco_core.models.pipeline_index import INDEXES, MODULAR

REWRITER = "prompt_upsampler"  # block
OPTIONAL = {"scheduler"}  # parts of a folder that replace the defaults of the blocks


def is_modular(pipeline_class: Any) -> bool:
    """Whether a class of diffusers is that of a modular pipeline."""
    return bool(pipeline_class.config_name == MODULAR)


def _blocks(pipeline_class: Any) -> Any:
    blocks = getattr(import_module("diffusers"), pipeline_class.default_blocks_name)()
    blocks.sub_blocks.pop(REWRITER, None)
    return blocks


def component_classes(pipeline_class: Any) -> dict[str, Any]:
    """The class of each part that a modular pipeline loads from its folder."""
    specs = _blocks(pipeline_class).expected_components
    return {spec.name: spec.type_hint for spec in specs if spec.default_creation_method == "from_pretrained"}


def build_modular(pipeline_class: Any, parts: Mapping[str, Any]) -> Any:
    """A modular pipeline of these parts. Parts that have defaults, such as the scheduler, may be left out."""
    logging.getLogger("diffusers.guiders").setLevel(logging.ERROR)  # they are experimental, and a policy uses none
    pipeline = pipeline_class(blocks=_blocks(pipeline_class))
    for name, part in parts.items():
        setattr(pipeline, name, part)
    return pipeline


def download_modular(pipeline_class: Any, model: str, skipped: Collection[str] = ()) -> str:
    """Download the parts of a modular pipeline from its hub repository; returns the folder.

    Args:
        skipped: parts that are not needed.
    """
    parts = {*component_classes(pipeline_class), *OPTIONAL} - set(skipped)
    return snapshot_download(model, allow_patterns=[*INDEXES, *(f"{part}/*" for part in sorted(parts))])


def loading_code(class_name: str, model: str, dtype: object) -> tuple[str, list[str]]:
    """Python code that loads ``pipeline`` by diffusers: the class to import, and the lines.

    Args:
        class_name: of the pipeline.
        model: folder or hub id.
        dtype: number format of the weights, as in Python code.
    """
    pipeline_class = getattr(import_module("diffusers"), class_name)
    if not is_modular(pipeline_class):
        return class_name, [f"pipeline = {class_name}.from_pretrained({model!r}, dtype={dtype})"]
    blocks = pipeline_class.default_blocks_name
    return blocks, [
        f"blocks = {blocks}()",
        f'blocks.sub_blocks.pop("{REWRITER}")  # the training encodes prompts as they are',
        f"pipeline = blocks.init_pipeline({model!r})",
        f"pipeline.load_components(dtype={dtype})",
    ]
