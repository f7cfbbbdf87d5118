"""Earlier versions of data, laid out from DVC's cache."""

from __future__ import annotations

from pathlib import Path

from dvc_project.cache import cached, cached_listing
from dvc_project.lockfile import Lock
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError

RESTORED = Path(".paco") / "versions"  # earlier versions, laid out from DVC's cache


def folder_of_version(root: Path, path: str, md5: str) -> Path:
    """A recorded version of an out that is a folder: the workspace's where it is that one, else from DVC's cache.

    Raises:
        DataError: when the cache lacks it.
    """
    if Lock.read(root).md5_of(path) == md5 and (root / path).is_dir():
        return root / path
    target = root / RESTORED / Path(path).name / md5.removesuffix(".dir")
    if not target.is_dir():
        restore(root, md5, target)
    return target


def restore(root: Path, md5: str, target: Path) -> None:
    """Lay a recorded version of a folder out from DVC's cache, as links: read it, do not write to it.

    Raises:
        DataError: when the cache lacks it.
    """
    listing = cached_listing(root, md5)
    lacking = [name for name, part in (listing or {}).items() if not cached(root, part).is_file()]
    if listing is None or lacking:
        raise DataError(
            f"DVC's cache does not hold version {md5} ({lacking[0] if lacking else 'its listing'} is missing); "
            "fetch it with `dvc fetch --all-commits`"
        )
    with atomic(target, replace=True) as part_path:
        for name, part in listing.items():
            place = part_path / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(cached(root, part).resolve())
