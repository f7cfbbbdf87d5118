"""GPUs that ``nvidia-smi`` lists: cards, the parts of cards in MIG mode, and what went wrong."""

from __future__ import annotations

import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field

#: The oldest driver that CUDA 13.0 runs on (its release notes, table of drivers for Linux); PyTorch 2.13 and vLLM 0.32
#: are built with it.
OLDEST_DRIVER = "580.65.06"
TIMEOUT_S = 30.0  # without persistence mode it needs seconds to start the driver; if the driver hangs, it never answers
_QUERY = ("--query-gpu=index,uuid,memory.total,mig.mode.current,driver_version", "--format=csv,noheader,nounits")
_CARD = re.compile(
    r"(?P<number>\d+), *(?P<name>GPU-[^,\s]+), *(?P<mebibytes>[^,]*), *(?P<mig>[^,]*), *(?P<driver>[^,]*)"
)
#: Lines of ``nvidia-smi -L``: a card, and below it its MIG parts.
_LISTING_LINE = re.compile(
    r"GPU \d+: .*\(UUID: (?P<card>GPU-[^)]+)\)|\s+MIG \S*?\.(?P<gb>\d+)gb\S* .*\(UUID: (?P<part>MIG-.+)\)"
)


@dataclass(frozen=True)
class Gpu:
    """A GPU: ``number`` is that of nvidia-smi, as in ``devices``; ``name`` is its UUID."""

    number: str
    name: str
    memory_gb: float | None = None


@dataclass(frozen=True)
class Listing:
    """The GPUs of this machine, why some or all of them may be missing, and the version of NVIDIA's driver."""

    gpus: list[Gpu] = field(default_factory=list)
    trouble: str | None = None
    driver: str | None = None

    @property
    def too_old(self) -> str | None:
        """Why PyTorch and vLLM find no GPU with this driver; None if the driver is new enough."""
        if self.driver is None or _numbers(self.driver) >= _numbers(OLDEST_DRIVER):
            return None
        return f"driver {self.driver}: PyTorch and vLLM need {OLDEST_DRIVER} or newer (CUDA 13); update the driver"


def _numbers(driver: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", driver)] or [10**6]  # one that does not say is not too old


def list_gpus() -> Listing:
    """Query nvidia-smi, for at most :data:`TIMEOUT_S`. A card in MIG mode is listed as its parts."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return Listing()
    try:
        lines, trouble = _answer(tool, *_QUERY)
        cards = [match for line in lines if (match := _CARD.fullmatch(line))]
        strange = [line for line in lines if not _CARD.fullmatch(line)]
        parts: dict[str, list[Gpu]] = {}
        if any(card["mig"].strip() == "Enabled" for card in cards):
            part_lines, parts_trouble = _answer(tool, "-L")
            parts, trouble = _parts(part_lines), trouble or parts_trouble
    except (OSError, subprocess.TimeoutExpired) as error:
        return Listing([], _why(error))
    gpus = [gpu for card in cards for gpu in _gpus(card, parts)]
    driver = next((card["driver"].strip() for card in cards), None)
    return Listing(gpus, ": ".join([*([trouble] if trouble else []), *strange[:1]]) or None, driver)


def product_names() -> list[str]:
    """Product names of the cards, for example "NVIDIA H200"; empty if nvidia-smi does not answer."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return []
    try:
        lines, trouble = _answer(tool, "--query-gpu=name", "--format=csv,noheader")
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [] if trouble else lines


def _answer(tool: str, *words: str) -> tuple[list[str], str | None]:
    """The lines of nvidia-smi's output, and its error: exit status and first line of stderr, None for status 0.

    Raises:
        OSError: when it cannot be run.
        subprocess.TimeoutExpired: when it does not end. It is killed, but not waited for: a process inside a hung
            driver cannot be killed.
    """
    process = subprocess.Popen(
        [tool, *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
        raise
    lines = [line.rstrip() for line in out.splitlines() if line.strip()]
    if process.returncode == 0:
        return lines, None
    errors = err.strip().splitlines()
    return lines, ": ".join([f"exit status {process.returncode}", *errors[:1]])


def _why(error: OSError | subprocess.TimeoutExpired) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer within {TIMEOUT_S:g} s; the driver may hang"
    return f"cannot be run: {error.strerror}"


def _gpus(card: re.Match[str], parts: dict[str, list[Gpu]]) -> list[Gpu]:
    if card["mig"].strip() == "Enabled":
        return parts.get(card["name"], [])
    size = card["mebibytes"].strip()  # where it does not say, [N/A]
    return [Gpu(card["number"], card["name"], float(size) * 2**20 / 1e9 if size.isdigit() else None)]


def _parts(lines: list[str]) -> dict[str, list[Gpu]]:
    """The MIG parts of each card, by its UUID. CUDA_VISIBLE_DEVICES accepts a part by its UUID only."""
    parts: dict[str, list[Gpu]] = {}
    card = ""
    for line in filter(None, map(_LISTING_LINE.match, lines)):
        card = line["card"] or card
        if line["part"]:
            parts.setdefault(card, []).append(Gpu(line["part"], line["part"], float(line["gb"])))
    return parts
