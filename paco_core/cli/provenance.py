"""The verb ``paco provenance``: find the subject, print its history, and verify it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dvc_project.lockfile import Lock
from paco_core.io.answer import Answer
from paco_core.io.files import DataError
from paco_core.operations.promotion.champions import ALIASES, Champions, out_of
from paco_core.runtime.provenance.chain import Provenance, of_path, project_path
from paco_core.runtime.provenance.records import RunFinder
from paco_core.runtime.provenance.text import provenance_text
from paco_core.runtime.provenance.verify import Verdict, verify, verify_cached


@dataclass(frozen=True)
class TracedOrigin:
    """A provenance, whether it describes the version in the workspace, and the reason for missing records."""

    provenance: Provenance
    present: bool
    problem: str | None

    def text(self) -> Answer:
        return Answer(provenance_text(self.provenance), self.provenance.as_dict())


def find_origin(root: Path, subject: str) -> TracedOrigin:
    """The origin of a path, a stage (``grids@0``), a policy or an alias (``flux_t2is``, ``flux_t2is@champion``).

    Raises:
        DataError: if there is no record of it.
    """
    lock, finder = Lock.read(root), RunFinder(root)
    name, _, alias = subject.partition("@")
    if subject in lock.entries:
        outs = [out for out in lock.entries[subject].outs if "/metrics/" not in out] or list(lock.entries[subject].outs)
        return TracedOrigin(of_path(outs[0], lock, finder), True, finder.failure)
    if alias in ALIASES:
        version = Champions(root).at(name, alias)
        if version is None:
            raise DataError(f"no version of {name} carries the alias {alias!r}; `paco champions` lists them")
        if lock.md5_of(version.path) == version.md5:
            return TracedOrigin(of_path(version.path, lock, finder), True, finder.failure)
        return TracedOrigin(version.provenance(), False, None)
    path = project_path(root, subject)
    out = out_of(subject).as_posix()  # of a policy, or `reward`
    return TracedOrigin(
        of_path(path if lock.maker(path) else out if lock.maker(out) else path, lock, finder), True, finder.failure
    )


def check(root: Path, origin: TracedOrigin) -> Verdict:
    """Hash all files again: on disk for the present version, in DVC's cache for an earlier one."""
    return (verify if origin.present else verify_cached)(root, origin.provenance)
