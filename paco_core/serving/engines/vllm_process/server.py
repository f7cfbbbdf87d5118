"""vLLM's server with paco's image decoding. vLLM's Python runs this file.

vLLM's own decoding turns 16-bit grey white, and ignores the transparency of some PNG files. So the same data URL would
have another score than at the embedded server. This file loads only the module of paco's decoding, by its path.
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
    """Replace vLLM's image decoding by paco's, in this process."""
    from vllm import envs
    from vllm.exceptions import VLLMValidationError
    from vllm.multimodal.media import ImageMediaIO, MediaWithBytes

    decoding = _rules()

    def load_bytes(_self: ImageMediaIO, data: bytes) -> MediaWithBytes:
        """Decode an image of a request.

        Raises:
            VLLMValidationError: when the image is invalid; vLLM responds with status 400.
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
