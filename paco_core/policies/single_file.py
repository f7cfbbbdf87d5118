"""Transformers of the families that diffusers loads from one file."""

from __future__ import annotations

import diffusers

from paco_core.models.weights import validate_single_file_class
from paco_core.policies.families import family_of


def validate_single_file(family: str) -> None:
    """Raise DataError if diffusers does not load the transformer of a family from one file."""
    pipeline = getattr(diffusers, family_of(family).pipeline)
    model_class = pipeline.__init__.__annotations__["transformer"]
    validate_single_file_class(model_class if isinstance(model_class, type) else getattr(diffusers, model_class))
