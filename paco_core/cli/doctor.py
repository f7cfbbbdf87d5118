"""``paco doctor``: installed packages, hardware and services, to paste into an issue."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dvc_project.repository import settings
from paco_core.config.params import PARAMS_FILE, ParamsError, load
from paco_core.io.answer import Answer
from paco_core.io.files import DataError
from paco_core.io.secrets import bare, redacted
from paco_core.planning.preflight import memory_gb
from paco_core.runtime import gpus, nvidia_smi
from paco_core.runtime.git import git_output
from paco_core.runtime.nvidia_smi import Gpu
from paco_core.runtime.torchvision_build import torchvision_problem
from paco_core.runtime.tracking import tracking_uri
from paco_core.serving.engines.vllm import PYTHON
from paco_core.serving.servers import endpoint

PACKAGES = (
    "torch", "diffusers", "transformers", "peft", "accelerate", "datasets", "open_clip_torch", "pandas",
    "dagster", "dagster-dvc", "dvc", "mlflow", "antlr4-python3-runtime", "hydra-core",
)  # fmt: skip
OPTIONAL = ("bitsandbytes", "boto3", "dagster-postgres", "rapidocr", "ray")
PORTS = {3000: "Dagster", 5000: "MLflow", 7860: "annotation", 7861: "play"}
SHOWN_VARIABLES = (
    "PACO_",
    "MLFLOW_",
    "DAGSTER_",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "HF_HOME",
    "HF_HUB_OFFLINE",
)


def report(root: Path) -> Answer:
    """Lines of ``name: value``; secrets are redacted, and the home folder is ``~``."""
    home = "~" if Path.home() == Path("/") else str(Path.home())
    values = {name: redacted(value).replace(home, "~") for name, value in _all(root)}
    return Answer("\n".join(f"{name}: {value}" for name, value in values.items()), values)


def _all(root: Path) -> Iterator[tuple[str, str]]:
    yield "paco", f"{_version('paco-rl')}, {_commit(root)}"
    yield "python", f"{platform.python_version()} ({sys.executable})"
    yield "system", f"{platform.platform()}, {os.cpu_count()} processors, {memory_gb():.0f} GB of memory"
    yield "packages", ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    optional = [f"{name} {_version(name)}" for name in OPTIONAL if _version(name) != "missing"]
    yield "optional packages", ", ".join(optional) or "none"
    yield "vLLM", f"in {PYTHON}" if (root / PYTHON).is_file() else "not built (`make vllm`)"
    yield "GPUs", _gpus()
    yield "torch sees", _torch()
    yield "torchvision", torchvision_problem() or _version("torchvision")
    yield "project", f"{root}, {shutil.disk_usage(root).free / 1e9:.0f} GB free"
    yield "parameters", _parameters(root)
    yield "dvc remote", _remote(root)
    yield "mlflow store", bare(tracking_uri(root))
    yield "ports", ", ".join(f"{port} ({name}) {_port(port)}" for port, name in PORTS.items())
    yield "reward servers", endpoint.server_status(root).replace("\n", "; ")
    variables = sorted(name for name in os.environ if name.startswith(SHOWN_VARIABLES))
    yield "variables", ", ".join(f"{name}={bare(os.environ[name])}" for name in variables) or "none"


def _gpus() -> str:
    listing = nvidia_smi.list_gpus()
    listed_gpus = ", ".join(f"{gpu.number} ({_size(gpu)})" for gpu in gpus.visible(listing)) or "none visible"
    trouble = f"nvidia-smi: {listing.trouble}" if listing.trouble else None
    driver = None if listing.driver is None else f"driver {listing.driver}"
    return "; ".join(filter(None, (listed_gpus, trouble, listing.too_old or driver)))


def _size(gpu: Gpu) -> str:
    """As `paco plan` counts: in 10^9 bytes."""
    return "unknown memory" if gpu.memory_gb is None else f"{gpu.memory_gb:.0f} GB"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _commit(root: Path) -> str:
    """The commit of the project's checkout, and whether anything was changed since."""
    try:
        if git_output(root, "rev-parse", "--git-dir") is None:
            return "no git checkout"
        if git_output(root, "rev-parse", "--verify", "--quiet", "HEAD") is None:
            return 'no commit yet; run `git add . && git commit -m "New project"`'
        return f"commit {git_output(root, 'describe', '--always', '--dirty')}"
    except DataError as error:
        return str(error)


def _torch() -> str:
    """In a process of its own: a broken installation must not end this one."""
    code = "import torch; print('CUDA', torch.version.cuda, torch.cuda.is_available() and torch.cuda.get_device_name())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = (result.stdout if result.returncode == 0 else result.stderr).strip().splitlines()
    return last[-1] if last else f"nothing; it exited with {result.returncode}"


def _parameters(root: Path) -> str:
    try:
        params = load(root / PARAMS_FILE)
    except (ParamsError, OSError) as error:
        return str(error).splitlines()[0]
    return f"world {params.world}, reward {params.reward.source}, policies {', '.join(params.policies.recipes)}"


def _remote(root: Path) -> str:
    config = settings(root)
    name = config.get("core", "remote", fallback=None)
    if name is None:
        return "none"
    url = next((config[section].get("url") for section in config.sections() if f'"{name}"' in section), None)
    return f"{name} at {bare(url)}" if url else name


def _port(port: int) -> str:
    with socket.socket() as asking:
        return "in use" if asking.connect_ex(("127.0.0.1", port)) == 0 else "free"
