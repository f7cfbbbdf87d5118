"""vLLM's own server, which reads pictures by this project's rules: run as a file, by vLLM's Python.

Its own reading turns 16-bit grey white, and shows what some PNG files call transparent: the same data URL would have
another score than at the embedded server. Only the file with the rules is loaded here, by its path.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.multimodal.media import ImageMediaIO, MediaWithBytes

RULES = Path(__file__).parents[3] / "io" / "decoding.py"


def _rules() -> ModuleType:
    spec = importlib.util.spec_from_file_location("paco_decoding", RULES)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_by_our_rules() -> None:
    """Put our reading in the place of vLLM's, in this process."""
    from vllm import envs
    from vllm.exceptions import VLLMValidationError
    from vllm.multimodal.media import ImageMediaIO, MediaWithBytes

    decoding = _rules()

    def load_bytes(_self: ImageMediaIO, data: bytes) -> MediaWithBytes:
        """A picture of a request, from a data URL or from a place that is allowed.

        Raises:
            VLLMValidationError: for what the rules refuse, which is answered with status 400.
        """
        try:
            picture = decoding.read_head(data, envs.VLLM_MAX_IMAGE_PIXELS).decode()
        except decoding.Undecodable as error:
            raise VLLMValidationError(f"image: {error}", parameter="image_url") from None
        return MediaWithBytes(picture, data, {"read_by": "paco"})

    ImageMediaIO.load_bytes = load_bytes  # vLLM makes objects of this class by its name, at several places


if __name__ == "__main__":
    read_by_our_rules()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
