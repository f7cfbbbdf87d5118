"""The DVC repository that a project lies in, and its settings.

One repository may hold several projects: ``.dvc`` lies at its top, ``dvc.yaml`` and ``dvc.lock`` in any folder.
"""

from __future__ import annotations

import configparser
import os
import sys
from pathlib import Path

from dvc_project.errors import DvcProjectError

DVC_FOLDER = ".dvc"


def repository_of(folder: Path) -> Path:
    """The nearest folder upwards with a ``.dvc``, up to a mount point, as DVC looks for it; ``folder`` without one."""
    for place in (folder, *folder.parents):
        if (place / DVC_FOLDER).is_dir():
            return place
        if place.is_mount():
            break
    return folder


def tmp_folder(folder: Path) -> Path:
    """Where DVC keeps its locks."""
    return repository_of(folder) / DVC_FOLDER / "tmp"


def settings(folder: Path) -> configparser.ConfigParser:
    """DVC's settings for a folder: of the system, the user, the repository, and ``config.local``, the last first.

    ``cache.dir`` and a remote's ``url`` are absolute where they are paths: each file's are relative to its own place.

    Raises:
        DvcProjectError: when one of the files is malformed.
    """
    merged = configparser.ConfigParser(interpolation=None)
    repository = repository_of(folder) / DVC_FOLDER
    for file in (
        *(place / "config" for place in _shared_folders()),
        repository / "config",
        repository / "config.local",
    ):
        merged.read_dict(_read(file))
    return merged


def _shared_folders() -> tuple[Path, Path]:
    """Of the system's and of the user's settings."""
    home = Path.home()
    if sys.platform == "darwin":
        system, user = Path("/Library/Application Support/dvc"), home / "Library" / "Application Support" / "dvc"
    else:
        system = Path(os.environ.get("XDG_CONFIG_DIRS", "").split(os.pathsep)[0] or "/etc/xdg") / "dvc"
        user = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "dvc"
    return (
        Path(os.environ.get("DVC_SYSTEM_CONFIG_DIR") or system),
        Path(os.environ.get("DVC_GLOBAL_CONFIG_DIR") or user),
    )


def _read(file: Path) -> configparser.ConfigParser:
    config = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=("#",))
    try:
        config.read(file, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise DvcProjectError(f"{file}: not DVC's settings ({' '.join(str(error).split())})") from None
    for section in config.sections():
        for key, value in config.items(section):
            text = value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
            is_path = "://" not in text and key == ("dir" if section == "cache" else "url")
            config[section][key] = str(_absolute(file.parent, text)) if is_path else text
    return config


def _absolute(folder: Path, path: str) -> Path:
    return Path(os.path.normpath(folder.absolute() / Path(path).expanduser()))


def local_path(folder: Path, path: str) -> str | None:
    """Where a path of ``dvc.yaml`` lies on this machine: ``remote://NAME/x`` may; None for every other URL."""
    if not path.startswith("remote://"):
        return None if "://" in path else path
    name, _, subpath = path.removeprefix("remote://").partition("/")
    url = settings(folder).get(f"'remote \"{name}\"'", "url", fallback=None)
    return None if url is None else local_path(folder, f"{url.rstrip('/')}/{subpath}")


def parsing_style(folder: Path) -> dict[str, str]:
    """DVC's ``parsing`` settings: how a mapping becomes flags in a command."""
    config = settings(folder)
    return dict(config["parsing"]) if config.has_section("parsing") else {}


def locks_by_link(folder: Path) -> bool:
    """DVC's ``core.hardlink_lock``: locks are hard links, for file systems without flock."""
    try:
        return settings(folder).getboolean("core", "hardlink_lock", fallback=False)
    except ValueError as error:
        raise DvcProjectError(f"{repository_of(folder) / DVC_FOLDER}: core.hardlink_lock: {error}") from None
