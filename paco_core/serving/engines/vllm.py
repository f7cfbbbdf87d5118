"""vLLM's own server, in vLLM's own environment (its pins clash with ours)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from paco_core.config.params import ServingParams
from paco_core.io.files import DataError, read_json
from paco_core.serving.protocol import API_KEY, MAX_PIXELS

#: vLLM fetches images from any site unless it gets a list of sites. This name never resolves (RFC 6761). Without
#: `--allowed-local-media-path`, vLLM reads no file.
DATA_URLS_ONLY = ("--allowed-media-domains", "nowhere.invalid")
PYTHON = ".venv-vllm/bin/python"
SERVER = Path(__file__).parent / "vllm_process" / "server.py"  # run as a file: this library is not installed there


def interpreter(serving: ServingParams, root: Path) -> Path:
    """The Python of vLLM's environment.

    Raises:
        DataError: when it is not there, saying how to make it.
    """
    python = root / (serving.python or PYTHON)
    if not python.is_file():
        raise DataError(f"execution.serving.python: {python} does not exist; build vLLM's environment with `make vllm`")
    return python


def command(model: str, name: str, host: str, port: int, serving: ServingParams, root: Path) -> list[str]:
    """The command line of the server: released settings (PaCo-RL) with what ``params.yaml`` says."""
    line = [str(interpreter(serving, root)), str(SERVER)]
    line += ["--model", model, "--served-model-name", name, "--host", host, "--port", str(port)]
    line += ["--dtype", serving.dtype, "--max-model-len", str(_longest(Path(model), serving))]
    line += ["--limit-mm-per-prompt", '{"image": 2, "video": 0}', "--max-num-seqs", str(serving.max_batch)]
    # bitsandbytes packs weights while it reads them, which in vLLM is a format of its own; it prefers safetensors
    read = "bitsandbytes" if serving.quantization == "bitsandbytes" else "safetensors"
    line += ["--enable-prefix-caching", "--load-format", read, *DATA_URLS_ONLY]
    line += ["--quantization", serving.quantization] if serving.quantization else []
    if serving.device == "cpu":
        return [*line, "--enforce-eager"]
    line += ["--tensor-parallel-size", str(serving.tensor_parallel)]
    return [*line, "--gpu-memory-utilization", str(serving.gpu_share)]


def _longest(folder: Path, serving: ServingParams) -> int:
    """Tokens of the longest question: vLLM serves no model for longer texts than it was made for."""
    if not (folder / "config.json").is_file():  # a name of a hub
        return serving.max_model_len
    config = read_json(folder / "config.json")
    window = config.get("text_config", config).get("max_position_embeddings", serving.max_model_len)
    return min(serving.max_model_len, int(window))


def environment(serving: ServingParams) -> Mapping[str, str]:
    """Variables for the server: no usage reports, our API key; a small key-value cache on a processor."""
    quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_MAX_IMAGE_PIXELS": str(MAX_PIXELS)}
    quiet["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] = "0"
    if serving.batch_invariant:
        quiet["VLLM_BATCH_INVARIANT"] = "1"
    if API_KEY in os.environ:
        quiet["VLLM_API_KEY"] = os.environ[API_KEY]
    return {**quiet, "VLLM_CPU_KVCACHE_SPACE": "1"} if serving.device == "cpu" else quiet
