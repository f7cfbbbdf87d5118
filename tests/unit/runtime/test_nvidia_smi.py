"""nvidia-smi is read as it answers: whatever it prints, and however it ends, no caller fails."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from paco_core.runtime import nvidia_smi
from paco_core.runtime.nvidia_smi import Gpu, Listing

Tool = Callable[..., Path]
TWO = "0, GPU-aa, 81559, Disabled, 580.95.05\n1, GPU-bb, [N/A], [N/A], 580.95.05"
BROKEN = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running."
)
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95"
LOST = "Unable to determine the device handle for GPU1: 0000:65:00.0: Unknown Error"
IN_PARTS = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aa)
  MIG 3g.40gb     Device  0: (UUID: MIG-11)
  MIG 1g.10gb+me  Device  1: (UUID: MIG-12)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bb)
GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-cc)"""
MIG = "\n".join(
    f"{number}, GPU-{2 * letter}, 81559, {mode}, 580.95.05"
    for number, letter, mode in ((0, "a", "Enabled"), (1, "b", "Disabled"), (2, "c", "Enabled"))
)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """A stand-in that answers the query, and ``-L``, and ends with a status; alone on PATH but for what runs it."""

    def build(query: str = "", parts: str = "", status: int = 0, script: str = "") -> Path:
        file = tmp_path / "bin" / "nvidia-smi"
        file.parent.mkdir()
        answers = f"case $1 in -L) cat <<'END'\n{parts}\nEND\n;; *) cat <<'END'\n{query}\nEND\n;; esac\nexit {status}\n"
        file.write_text(script or f"#!/bin/sh\n{answers}")
        file.chmod(0o755)
        monkeypatch.setenv("PATH", f"{file.parent}:{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return file

    return build


def test_product_names_are_those_of_the_cards(tool: Tool) -> None:
    tool("NVIDIA H200\nNVIDIA H200")
    assert nvidia_smi.product_names() == ["NVIDIA H200", "NVIDIA H200"]


def test_no_product_name_is_known_where_nvidia_smi_fails(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(BROKEN, status=9)
    assert nvidia_smi.product_names() == []
    monkeypatch.setenv("PATH", "")
    assert nvidia_smi.product_names() == []


CARDS = [Gpu("0", "GPU-aa", 81559 * 2**20 / 1e9), Gpu("1", "GPU-bb")]


@pytest.mark.parametrize(
    ("query", "status", "gpus", "trouble"),
    [
        (TWO, 0, CARDS, None),
        ("No devices were found", 0, [], "No devices were found"),
        (BROKEN, 9, [], f"exit status 9: {BROKEN}"),
        (MISMATCH, 18, [], "exit status 18: Failed to initialize NVML: Driver/library version mismatch"),
        (f"{TWO.splitlines()[0]}\n{LOST}", 255, CARDS[:1], f"exit status 255: {LOST}"),
        ("", 127, [], "exit status 127"),
        ("", 0, [], None),
    ],
)
def test_its_status_and_output_are_read_as_they_are(
    tool: Tool, query: str, status: int, gpus: list[Gpu], trouble: str | None
) -> None:
    tool(query, status=status)
    assert nvidia_smi.list_gpus() == Listing(gpus, trouble, "580.95.05" if gpus else None)


def test_a_card_in_mig_mode_is_its_parts(tool: Tool) -> None:
    """CUDA does not see the card itself; one without parts cannot be computed on."""
    tool(MIG, IN_PARTS)
    gpu = Gpu("1", "GPU-bb", CARDS[0].memory_gb)
    assert nvidia_smi.list_gpus() == Listing(
        [Gpu("MIG-11", "MIG-11", 40.0), Gpu("MIG-12", "MIG-12", 10.0), gpu], None, "580.95.05"
    )


def test_one_that_cannot_be_run_or_hangs_is_given_up(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tool(script="\0 no program")
    assert nvidia_smi.list_gpus() == Listing([], "cannot be run: Exec format error")
    file.chmod(stat.S_IRUSR)
    assert nvidia_smi.list_gpus() == Listing(), "for the shell, too, there is none"
    file.chmod(0o755)
    file.write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(nvidia_smi, "TIMEOUT_S", 0.2)
    assert nvidia_smi.list_gpus() == Listing([], "no answer within 0.2 s; the driver may hang")
