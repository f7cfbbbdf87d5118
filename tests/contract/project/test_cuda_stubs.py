"""An environment without CUDA: what is left out, and what PyTorch loads in its place."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

PACKAGES = Path(sysconfig.get_path("purelib"))
pytestmark = pytest.mark.skipif(
    sysconfig.get_platform() != "linux-x86_64", reason="stand-ins are for PyTorch on Linux, x86-64"
)


@pytest.fixture(scope="module")
def stubs(repository: Path) -> Any:
    spec = importlib.util.spec_from_file_location("cuda_stubs", repository / "tools/cuda_stubs.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """PyTorch's libraries, and of CUDA only the runtime."""
    folder = tmp_path / "torch/lib"
    folder.mkdir(parents=True)
    for path in (PACKAGES / "torch/lib").glob("lib*.so*"):
        if path.name.startswith(("libtorch", "libc10", "libgomp", "libshm")):
            (folder / path.name).symlink_to(path)
    runtime = tmp_path / "nvidia/cu13/lib"
    runtime.mkdir(parents=True)
    for path in PACKAGES.glob("nvidia/*/lib/libcudart.so.*"):
        (runtime / path.name).symlink_to(path)
    return tmp_path


def test_what_only_a_gpu_needs_is_all_of_cuda_but_the_runtime(repository: Path) -> None:
    lines = (repository / "tools/cuda-only.txt").read_text().splitlines()
    listed_packages = [line for line in lines if not line.startswith("#")]
    for lock in ("run", "dev"):
        text = (repository / f"locks/{lock}.txt").read_text()
        pinned = re.findall(r"^((?:nvidia|cuda|triton)[a-z0-9-]*)(?:\[[^]]*\])?==", text, re.MULTILINE)
        assert listed_packages == sorted(set(pinned) - {"nvidia-cuda-runtime"}), lock


def test_a_stand_in_is_a_library_whose_functions_fail_with_a_reason(stubs: Any, tmp_path: Path) -> None:
    names = [f"cublas{number}" for number in range(300)] + ["cublasGetStatusString", "ncclGetLastError"]
    (tmp_path / "libholder.so").write_bytes(stubs.shared_library("libholder.so", functions=names))
    (tmp_path / "libempty.so").write_bytes(stubs.shared_library("libempty.so"))
    library = ctypes.CDLL(str(tmp_path / "libholder.so"))
    assert {library[name]() for name in names[:300]} == {1}
    for name in names[300:]:
        function = library[name]
        function.restype = ctypes.c_char_p
        assert function(0) == b"CUDA is not installed; run `make setup GPU=1`"
    with pytest.raises(AttributeError, match="undefined symbol"):
        library["cublas300"]
    assert ctypes.CDLL(str(tmp_path / "libempty.so"))


@pytest.mark.slow
def test_pytorch_loads_with_the_stand_ins_and_they_go_when_cuda_comes(stubs: Any, packages: Path) -> None:
    folder = packages / "torch/lib"
    before = {path.name for path in folder.iterdir()}
    absent = stubs.update(packages)
    assert {"libcublas", "libcudnn", "libnccl", "libcusolver"} <= {name.partition(".")[0] for name in absent}
    assert not {"libcuda", "libcudart"} & {name.partition(".")[0] for name in absent}
    assert {path.name for path in folder.iterdir()} == before | {*absent, stubs.HOLDER}
    code = f"import ctypes, sys; [ctypes.CDLL(path) for path in {sorted(map(str, folder.glob('libtorch*.so')))!r}]"
    subprocess.run([sys.executable, "-c", code], check=True)

    library_dir = packages / "nvidia/cudnn/lib"
    library_dir.mkdir(parents=True)
    (library_dir / absent[0]).write_bytes(b"")
    assert stubs.update(packages) == absent[1:] and not (folder / absent[0]).exists()
    for name in absent:
        (library_dir / name).write_bytes(b"")
    assert not stubs.update(packages) and {path.name for path in folder.iterdir()} == before
