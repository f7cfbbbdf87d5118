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
TIMEOUT_S = 30.0  # without persistence mode it starts the driver of each card first: seconds; a hung driver: for ever
_QUERY = ("--query-gpu=index,uuid,memory.total,mig.mode.current,driver_version", "--format=csv,noheader,nounits")
_CARD = re.compile(
    r"(?P<number>\d+), *(?P<name>GPU-[^,\s]+), *(?P<mebibytes>[^,]*), *(?P<mig>[^,]*), *(?P<driver>[^,]*)"
)
#: Lines of ``nvidia-smi -L``: a card, and below it each part that CUDA computes on in its place.
_LISTED = re.compile(
    r"GPU \d+: .*\(UUID: (?P<card>GPU-[^)]+)\)|\s+MIG \S*?\.(?P<gb>\d+)gb\S* .*\(UUID: (?P<part>MIG-.+)\)"
)


@dataclass(frozen=True)
class Gpu:
    """A GPU: ``number`` is the tool's, for people and ``devices``; ``name`` (a UUID) belongs to no other one."""

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
        """Why PyTorch and vLLM find no GPU on this driver; None where they may."""
        if self.driver is None or _numbers(self.driver) >= _numbers(OLDEST_DRIVER):
            return None
        return f"driver {self.driver}: PyTorch and vLLM need {OLDEST_DRIVER} or newer (CUDA 13); update the driver"


def _numbers(driver: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", driver)] or [10**6]  # one that does not say is not too old


def listed() -> Listing:
    """Ask nvidia-smi, for at most :data:`TIMEOUT_S`. A card in MIG mode counts as its parts."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return Listing()
    try:
        lines, trouble = _answer(tool, *_QUERY)
        cards = [found for line in lines if (found := _CARD.fullmatch(line))]
        strange = [line for line in lines if not _CARD.fullmatch(line)]
        parts: dict[str, list[Gpu]] = {}
        if any(card["mig"].strip() == "Enabled" for card in cards):
            more, also = _answer(tool, "-L")
            parts, trouble = _parts(more), trouble or also
    except (OSError, subprocess.TimeoutExpired) as error:
        return Listing([], _why(error))
    gpus = [gpu for card in cards for gpu in _gpus(card, parts)]
    driver = next((card["driver"].strip() for card in cards), None)
    return Listing(gpus, ": ".join([*([trouble] if trouble else []), *strange[:1]]) or None, driver)


def _answer(tool: str, *words: str) -> tuple[list[str], str | None]:
    """Lines of its output, and its exit status where that is not 0, with what it wrote to stderr.

    Raises:
        OSError: when it cannot be run.
        subprocess.TimeoutExpired: when it does not end. It is killed and not waited for: inside a hung driver not even
            a kill ends it.
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
    """The parts of each card, by its name; CUDA_VISIBLE_DEVICES takes them by name alone."""
    found: dict[str, list[Gpu]] = {}
    card = ""
    for line in filter(None, map(_LISTED.match, lines)):
        card = line["card"] or card
        if line["part"]:
            found.setdefault(card, []).append(Gpu(line["part"], line["part"], float(line["gb"])))
    return found
