"""Atomic writes: a file or folder is complete or absent, even if the writing process is killed.

A writer creates its output in a temporary folder ``.paco-RANDOM.part`` next to the target, and renames it at the end.
The folder contains a file that only this module writes, and that is locked while the writer runs. The lock separates
two writers. The file distinguishes folders of killed writers from folders of the user.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dvc_project import file_locks
from dvc_project.errors import DataError

PREFIX, SUFFIX = ".paco-", ".part"  # .gitignore and .dvcignore of a project leave out *.part
MARK = "made-by-paco.lock"
TRIES = 1000  # after which no other writer can be the cause
EARLIER = "made-by-paco.earlier"  # the replaced folder, until the new one is in place


@contextmanager
def atomic(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """A temporary path of the same name (file or folder), renamed to ``target`` on success.

    On any exception, including Ctrl-C, the temporary is removed and ``target`` stays unchanged. The next writer in the
    same folder removes the temporary of a killed process. Files that a library created with mode 0600, as safetensors
    does, get the default mode.

    Args:
        replace: also replace a folder, for example the output of a stage. Without it, only a file is replaced, and
            only by a file.

    Raises:
        DataError: if ``target`` exists and may not be replaced, or nothing was written.
        OSError: ENOSPC with the path of ``target`` if the disk is full, for every library that writes.
    """
    validate_replaceable(target, replace=replace)
    missing = [above for above in target.parents if not above.exists()]
    try:
        _remove_abandoned(target.parent)
        with _temporary(target) as folder:
            part = folder / target.name
            yield part
            if not os.path.lexists(part):
                raise DataError(f"{target}: nothing was written to {part.name}; the stage produced no out")
            _share(part, stat.S_IMODE((folder / MARK).stat().st_mode))
            _put(part, target, replace)
    except BaseException as error:
        for above in missing:
            with suppress(OSError):  # not empty: another writer was there
                above.rmdir()
        if _disk_is_full(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target)) from error
        raise


def validate_replaceable(target: Path, *, replace: bool = False) -> None:
    """Check that writing to a path overwrites nothing of the user.

    Raises:
        DataError: if the path is a folder (with ``replace``, anything but a folder), a device, a pipe, or a broken
            link.
    """
    mode = _mode(target)  # read once: another writer may create the folder meanwhile
    if mode is None:
        if target.is_symlink() and not replace:  # an out that DVC linked goes as any other
            raise DataError(f"{target} is a link to {target.readlink()}, where nothing is; remove it, or name another")
    elif stat.S_ISDIR(mode):
        if not replace:
            raise DataError(f"{target} is a folder, which is kept as it is; name another place")
    elif not stat.S_ISREG(mode):
        raise DataError(f"{target} is a device or a pipe; name a file")


def _mode(path: Path) -> int | None:
    """File type that a path leads to; None if the path does not exist."""
    try:
        return path.stat().st_mode
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise


@contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """A new folder next to ``target`` that only this process uses; it is removed at the end with its contents.

    Raises:
        DataError: if a new folder disappears, as in ``/proc``.
    """
    for _ in range(TRIES):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, suffix=SUFFIX, dir=target.parent))
        except FileNotFoundError:  # a writer that failed has just removed the folder that it had made
            continue
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(target)) from None
        try:
            lock = file_locks.hold(folder / MARK)
            break
        except (BlockingIOError, FileNotFoundError, FileExistsError):  # another writer took it for abandoned in between
            continue
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    else:
        raise DataError(f"{target}: nothing that is made in {target.parent} stays there; name another place")
    with lock:
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(place: Path) -> None:
    """Remove temporary folders of processes that have ended. A folder that cannot be removed is ignored."""
    for folder in place.glob(f"{PREFIX}*{SUFFIX}"):
        with suppress(OSError):
            if not (folder / MARK).is_file():
                folder.rmdir()  # killed before it wrote the mark: empty, or not ours
            elif (lock := file_locks.try_hold(folder / MARK)) is not None:
                with lock:
                    shutil.rmtree(folder, ignore_errors=True)


def _put(part: Path, target: Path, replace: bool) -> None:
    """Rename a finished file or folder to its path. The system refuses to replace a folder with files.

    Raises:
        DataError: if the path was created meanwhile and may not be replaced.
    """
    earlier = part.with_name(EARLIER)
    for tries_left in reversed(range(TRIES)):
        validate_replaceable(target, replace=replace)
        if replace and part.is_dir() and target.is_symlink():
            target.unlink()
        elif replace and part.is_dir() and target.is_dir():
            shutil.rmtree(earlier, ignore_errors=True)
            with suppress(FileNotFoundError):  # another writer has just taken it away
                target.rename(earlier)
        try:
            part.replace(target)
            return
        except OSError as error:
            if replace and tries_left and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                continue  # another writer of the same folder was faster
            with suppress(OSError):
                earlier.rename(target)
            if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST):
                existing = "a folder" if target.is_dir() else "a file"
                raise DataError(f"{target} is {existing}, which is kept as it is; name another place") from None
            raise


def _share(part: Path, mode: int) -> None:
    """Give files with mode 0600 the mode of new files. Links stay unchanged."""
    for file in (part, *(part.rglob("*") if part.is_dir() else ())):
        if stat.S_IMODE(file.lstat().st_mode) == 0o600 and not file.is_symlink():
            file.chmod(mode)


def _disk_is_full(error: BaseException) -> bool:
    """safetensors, unlike most, reports it in words only."""
    return getattr(error, "errno", None) == errno.ENOSPC or "(os error 28)" in str(error)
