"""vLLM's server, in a separate environment (its pinned versions conflict with paco's)."""

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
        DataError: when it does not exist, with the command that creates it.
    """
    python = root / (serving.python or PYTHON)
    if not python.is_file():
        raise DataError(f"execution.serving.python: {python} does not exist; build vLLM's environment with `make vllm`")
    return python


def server_command(model: str, name: str, host: str, port: int, serving: ServingParams, root: Path) -> list[str]:
    """The command line of the server: the released settings of PaCo-RL, and those of ``params.yaml``."""
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
    """The maximum length of a sequence in tokens: vLLM rejects more than the model's context window."""
    if not (folder / "config.json").is_file():  # a name of a hub
        return serving.max_model_len
    config = read_json(folder / "config.json")
    window = config.get("text_config", config).get("max_position_embeddings", serving.max_model_len)
    return min(serving.max_model_len, int(window))


def server_environment(serving: ServingParams) -> Mapping[str, str]:
    """Environment variables of the server: no usage reports, the API key, and a small KV cache on the CPU."""
    variables = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_MAX_IMAGE_PIXELS": str(MAX_PIXELS)}
    variables["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] = "0"
    if serving.batch_invariant:
        variables["VLLM_BATCH_INVARIANT"] = "1"
    if API_KEY in os.environ:
        variables["VLLM_API_KEY"] = os.environ[API_KEY]
    return {**variables, "VLLM_CPU_KVCACHE_SPACE": "1"} if serving.device == "cpu" else variables
