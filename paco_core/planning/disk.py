"""Disk space that a run needs: downloads, the merged reward model, and what the stages write."""

from __future__ import annotations

import shutil
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

from huggingface_hub import constants

from paco_core.config.params import Params
from paco_core.config.references import Reference
from paco_core.io import paths
from paco_core.models.hub import cached_snapshot
from paco_core.planning.models import model_gb, reward_gb
from paco_core.planning.read_references import parts_in_files

DOWNLOADS = "for downloads"
RESULTS_GB = {"storybook": 1.0, "real": 30.0}  # images, checkpoints and their copies in DVC's cache


def disk_needs(params: Params, read: Iterable[Reference], pending: Container[str], root: Path) -> dict[str, float]:
    """GB by what they are for.

    Args:
        read: references that a run would read. Of a hub, those that are not in its cache are downloaded, each once.
        pending: names of the stages that would run.
    """
    names = {reference.value for reference in read if reference.is_of_hub(root)}
    merges = params.world == "real" and paths.REWARD_MERGED.name in pending
    skipped = parts_in_files(params)
    needs = {
        DOWNLOADS: sum(model_gb(root, name) for name in names if cached_snapshot(name, skipped.get(name, ())) is None),
        "for the merged reward model and its copy in DVC's cache": 2 * reward_gb(params, root) if merges else 0.0,
        "for images and checkpoints": RESULTS_GB[params.world],
    }
    return {purpose: gb for purpose, gb in needs.items() if gb}


def disk_problems(needs: Mapping[str, float], root: Path) -> list[str]:
    """Problems of disks with too little space. The hub's cache may be on another disk than the project."""
    hub = _existing(Path(constants.HF_HUB_CACHE))
    places = {purpose: hub if purpose == DOWNLOADS else root for purpose in needs}
    problems = []
    for disk in dict.fromkeys(place.stat().st_dev for place in places.values()):
        on_disk = [purpose for purpose, place in places.items() if place.stat().st_dev == disk]
        place, needed = places[on_disk[-1]], sum(needs[purpose] for purpose in on_disk)
        if (free := shutil.disk_usage(place).free / 1e9) < needed:
            parts = ", ".join(f"{needs[purpose]:.1f} {purpose}" for purpose in on_disk)
            problems.append(f"disk: {free:.1f} GB free at {place}, about {needed:.0f} GB needed: {parts}")
    return problems


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())
