"""Versions of data by md5, outside the workspace, which the next run changes. The bytes of each folder were hashed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from dvc_project.cache import Cache
from dvc_project.file_locks import locked
from dvc_project.hashing import Workspace
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError

VERSIONS_DIR = Path(".paco") / "versions"  # earlier versions, laid out from DVC's cache


def folder_of_version(root: Path, path: str, md5: str) -> Path:
    """A recorded version of an out that is a folder, as links into DVC's cache.

    If the cache lacks the version and the workspace contains it, a copy of the workspace's folder. The workspace's own
    folder is never returned: a run, or ``dvc checkout``, may replace it while the caller reads it. Files are hashed,
    unless they are known not to have changed since (:mod:`dvc_project.md5s`).

    Raises:
        DataError: when neither contains these bytes.
    """
    target = _place(root, path, md5)
    try:
        with locked(target.with_suffix(".lock")):
            # Links may dangle once the cache was cleaned, and lead to what somebody wrote through them.
            if not target.is_dir() or md5_of_folder(root, target) != md5:
                link_version(root, md5, target)
        return target
    except DataError:
        if not (root / path).is_dir() or Workspace(root).md5(path) != md5:
            raise
        copy = copy_of_version(root, path, md5, lambda aside: Path(shutil.copytree(root / path, aside / "copy")))
        if copy is None:
            raise
        return copy


def copy_of_version(root: Path, path: str, md5: str, copy: Callable[[Path], Path | None]) -> Path | None:
    """A copy of a folder from elsewhere than DVC's cache; None if it contains other bytes.

    Args:
        copy: copies the folder into an empty folder and returns the copy; None if it has nothing to copy.
    """
    target = _place(root, path, f"{md5.removesuffix('.dir')}-copy")
    with locked(target.with_suffix(".lock")):
        if not target.is_dir() or md5_of_folder(root, target) != md5:
            with tempfile.TemporaryDirectory(dir=target.parent) as aside:
                copied = copy(Path(aside))
                if copied is None or md5_of_folder(root, copied) != md5:
                    return None
                with atomic(target, replace=True) as part:
                    copied.replace(part)
    return target


def _place(root: Path, path: str, version: str) -> Path:
    return root / VERSIONS_DIR / Path(path).name / version.removesuffix(".dir")


def md5_of_folder(root: Path, folder: Path) -> str | None:
    """DVC's md5 of a folder below the root, whatever ``.dvcignore`` says."""
    return Workspace(root, use_dvcignore=False).md5(folder.relative_to(root).as_posix())


def link_version(root: Path, md5: str, target: Path) -> None:
    """Lay a recorded version of a folder out from DVC's cache, as links: read it, do not write to it.

    Raises:
        DataError: when the cache lacks it, or holds other bytes under its name.
    """
    cache = Cache(root)
    listing = cache.listing(md5)
    lacking = ["its listing"] if listing is None else cache.missing(listing)
    if listing is None or lacking:
        raise DataError(
            f"DVC's cache does not hold version {md5} ({lacking[0]} is missing, perhaps since a `dvc gc`); fetch it "
            "with `dvc fetch --all-commits`, which needs a remote that it was pushed to and a commit that records it"
        )
    if damaged := [name for name, part in {"its listing": md5, **listing}.items() if cache.damaged(part)]:
        raise DataError(
            f"DVC's cache holds other bytes than those of version {md5} ({damaged[0]} was changed, perhaps through a "
            f"link): remove {cache.path(listing.get(damaged[0], md5))} and fetch it with `dvc fetch --all-commits`"
        )
    with atomic(target, replace=True) as part_path:
        for name, part in listing.items():
            place = part_path / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(cache.path(part).resolve())
