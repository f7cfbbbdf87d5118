"""Engines: programs that serve a reward model over the OpenAI chat protocol."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paco_core.config.params import ServingParams
from paco_core.io.files import DataError


@dataclass(frozen=True)
class Launch:
    """How to start an engine. ``inherits``: whether it inherits the bound socket."""

    command: list[str]
    environment: Mapping[str, str]
    inherits: bool


def launch(model: Path, name: str, host: str, port: int, descriptor: int, serving: ServingParams, root: Path) -> Launch:
    """The command of the engine ``serving.engine``.

    Args:
        model: folder of the model.
        name: under which it is served.
        descriptor: file descriptor of the bound socket, for engines that inherit it.

    Raises:
        DataError: when the engine's environment is missing, or the engine does not support a setting of ``serving``.
    """
    if serving.batch_invariant and (serving.engine == "vllm") == (serving.device == "cpu"):
        place, other = ("a GPU", "vllm") if serving.engine == "transformers" else ("a processor", "transformers")
        raise DataError(
            f"execution.serving.batch_invariant: {serving.engine} does not offer it on {place}, {other!r} does"
        )
    environment = {**_environment(), "OMP_NUM_THREADS": str(serving.threads), "OMP_WAIT_POLICY": "passive"}
    if serving.engine == "vllm":
        from paco_core.serving.engines import vllm

        line = vllm.server_command(str(model), name, host, port, serving, root)
        return Launch(line, {**environment, **vllm.server_environment(serving)}, inherits=False)
    if serving.dtype == "auto":
        raise DataError("serving.dtype 'auto' is vLLM's; the engine 'transformers' needs float32 or bfloat16")
    line = [sys.executable, "-m", "paco_core.serving.engines.transformers_app", "--model", str(model)]
    line += ["--served-model-name", name, "--fd", str(descriptor), "--host", serving.host, "--device", serving.device]
    line += ["--dtype", serving.dtype, "--threads", str(serving.threads), "--max-batch", str(serving.max_batch)]
    line += ["--max-model-len", str(serving.max_model_len)]
    line += ["--quantization", serving.quantization] if serving.quantization else []
    return Launch(line, environment, inherits=True)


def launch_gateway(descriptor: int, serving: ServingParams, root: Path) -> Launch:
    """The command of the gateway, which serves every model of the project behind one port."""
    line = [sys.executable, "-m", "paco_core.serving.servers.gateway", "--root", str(root), "--fd", str(descriptor)]
    line += ["--host", serving.host, "--timeout", str(serving.request_timeout_s)]
    return Launch(line, _environment(), inherits=True)


def _environment() -> dict[str, str]:
    """The environment of this process, with this package on ``PYTHONPATH``."""
    package = str(Path(__file__).resolve().parents[3])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))}
