"""The verb ``paco provenance``: find the subject, print its history, and verify it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dvc_project.lockfile import Lock
from paco_core.io.answer import Answer, to_jsonable
from paco_core.io.decoding import SUFFIXES
from paco_core.io.files import DataError
from paco_core.operations.promotion.champions import ALIASES, REWARD, Champions, out_of
from paco_core.runtime.provenance.chain import Provenance, of_path, project_path
from paco_core.runtime.provenance.records import RunFinder
from paco_core.runtime.provenance.text import provenance_text
from paco_core.runtime.provenance.verify import Verdict, verify, verify_cached
from paco_core.runtime.versions import md5_of_folder
from paco_core.sampling.origin import ImageOrigin, read_origins


@dataclass(frozen=True)
class TracedOrigin:
    """A provenance, whether it describes the version in the workspace, and the reason for missing records."""

    provenance: Provenance
    present: bool
    problem: str | None

    def text(self) -> Answer:
        return Answer(provenance_text(self.provenance), self.provenance.as_dict())


@dataclass(frozen=True)
class TracedImage:
    """The origins of the images in a file, and the origin of their policy; ``gap`` is why the latter is unknown."""

    images: Sequence[ImageOrigin]
    policy: TracedOrigin | None
    gap: str | None

    @property
    def problem(self) -> str | None:
        return self.policy.problem if self.policy else None

    def text(self) -> Answer:
        policy = self.policy.text() if self.policy else None
        lines = [image.parameters for image in self.images] + [policy or f"no further: {self.gap}"]
        figures = {"images": to_jsonable(self.images), "provenance": policy and policy.figures, "gap": self.gap}
        return Answer("\n\n".join(lines), figures)


def find_image_file(root: Path | None, subject: str) -> Path | None:
    """The image that a subject names, in the working folder or the project; None if it names another thing.

    Files of stages are not meant: dvc.lock records them, whatever their metadata are.
    """
    places = [Path(subject), *([] if root is None else [root / subject])]
    file = next((place for place in places if place.suffix.lower() in SUFFIXES and place.is_file()), None)
    if file is not None and root is not None and file.resolve().is_relative_to(root.resolve()):
        return None if Lock.read(root).maker(project_path(root, subject)) else file
    return file


def trace_image(root: Path | None, file: Path) -> TracedImage:
    """The origin of a generated image, and inside a project the stages that made its policy.

    Raises:
        DataError: when the image has no metadata of paco.
    """
    images = read_origins(file)
    adapter = next((image.models.adapter for image in images if image.models.adapter), None)
    if adapter is None:
        return TracedImage(images, None, "the base model generated it, which no stage made")
    if root is None:
        return TracedImage(images, None, "this folder is in no project; run it in the project that trained the policy")
    policy = _find_policy(root, adapter.version)
    gap = None if policy else f"no recorded or registered policy of {root.name} has the adapter {adapter.version}"
    return TracedImage(images, policy, gap)


def _find_policy(root: Path, md5: str) -> TracedOrigin | None:
    """The policy with an adapter of these bytes: the recorded one, else a registered one."""
    lock = Lock.read(root)
    folders = sorted(out for entry in lock.entries.values() for out in entry.outs if (root / out / "adapter").is_dir())
    for folder in folders:
        if md5_of_folder(root, root / folder / "adapter") == md5:
            return find_origin(root, folder)
    registry = Champions.from_store(root)
    for name in registry.names() if registry else ():
        version = registry.of_adapter(name, md5) if registry and name != REWARD else None
        if version is not None:
            return TracedOrigin(version.provenance(), False, None)
    return None


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
