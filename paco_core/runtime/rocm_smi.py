"""What ``rocm-smi`` lists: AMD's GPUs, for machines without ``nvidia-smi``."""

from __future__ import annotations

import json
import shutil
import subprocess

from paco_core.runtime.nvidia_smi import Gpu, Listing, answer, why

AMD = "AMD-"  # begins the names of AMD's cards
_QUERY = ("--showuniqueid", "--showmeminfo", "vram", "--json")


def listed() -> Listing:
    """Ask rocm-smi, as long as nvidia-smi is waited for; without it, there are none."""
    if (tool := shutil.which("rocm-smi")) is None:
        return Listing()
    try:
        lines, trouble = answer(tool, *_QUERY)
        cards = json.loads("".join(lines)) if lines else {}
    except (OSError, subprocess.TimeoutExpired) as error:
        return Listing([], f"rocm-smi: {why(error)}")
    except ValueError:
        return Listing([], f"rocm-smi: {lines[0]}")
    gpus = [_gpu(card.removeprefix("card"), found) for card, found in cards.items() if card.startswith("card")]
    return Listing(gpus, f"rocm-smi: {trouble}" if trouble else None)


def _gpu(number: str, card: dict[str, str]) -> Gpu:
    size = card.get("VRAM Total Memory (B)", "")
    return Gpu(number, f"{AMD}{card.get('Unique ID', number)}", int(size) / 1e9 if size.isdigit() else None)
