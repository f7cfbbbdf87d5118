"""Clears away what dead processes left in the registry of servers: leases, and records of servers that are gone.

Locks show who lives (:mod:`paco_core.serving.servers.registry`). A supervisor clears its own leases; when the
supervisor itself was killed, nobody does, and a person reads of servers that are not there.
"""

from __future__ import annotations

from pathlib import Path

from paco_core.io.file_locks import is_held, remove_unless_held
from paco_core.serving.servers.registry import Registry


def remove_stale(root: Path) -> list[str]:
    """Remove leases whose holders have gone and records whose supervisors have gone; one line each."""
    registry = Registry(root)
    if not registry.folder.is_dir():
        return []
    removed = []
    with registry.guard():
        for home in sorted(path for path in registry.folder.iterdir() if path.is_dir()):
            for lease in sorted((home / "leases").glob("*")):
                if remove_unless_held(lease):
                    removed.append(f"{home.name}: lease {lease.name} expired, its holder has gone")
            if (home / "server.json").is_file() and not is_held(home / "alive"):
                (home / "server.json").unlink()
                (home / "stay").unlink(missing_ok=True)
                removed.append(f"{home.name}: its supervisor has gone, the record is removed")
    return removed


def living(root: Path) -> list[str]:
    """Names of servers that live now."""
    registry = Registry(root)
    return [name for name in registry.names() if registry.living(name) is not None]
