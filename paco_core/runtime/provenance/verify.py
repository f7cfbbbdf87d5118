"""Verification of a provenance: all its files are hashed again and compared with ``dvc.lock``."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dvc_project.cache import Cache
from dvc_project.hashing import Workspace, listing_md5
from dvc_project.lockfile import Inputs
from dvc_project.md5s import Md5s, file_md5
from dvc_project.yaml import select
from paco_core.io.files import read_json, read_yaml
from paco_core.runtime.code.closure import Code, installed_version
from paco_core.runtime.code.source import parse_source
from paco_core.runtime.provenance.chain import Link, Provenance, is_metrics
from paco_core.runtime.provenance.records import load_recipe
from paco_core.runtime.tracking import flatten

SHIPPED = "provenance.json"


@dataclass(frozen=True)
class Break:
    """A failed check: the stage, the file, parameter or library, and the difference."""

    stage: str
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.stage}: {self.subject}: {self.text}"


@dataclass(frozen=True)
class Verdict:
    """The result: the number of checks, the failed ones, and those that were not possible, with the reason."""

    checked: int
    breaks: tuple[Break, ...]
    unchecked: tuple[Break, ...] = ()

    def text(self) -> str:
        lines = [f"every link holds ({self.checked} checks)"]
        if self.breaks:
            lines = [f"{len(self.breaks)} of {self.checked} checks failed:", *(f"- {b}" for b in self.breaks)]
        if self.unchecked:
            reasons: dict[str, list[str]] = {}
            for check in self.unchecked:
                reasons.setdefault(check.text, []).append(check.stage)
            lines += [f"{len(self.unchecked)} more could not be made:"]
            lines += [f"- {', '.join(stages)}: {text}" for text, stages in reasons.items()]
        return "\n".join(lines)


def verify(root: Path, provenance: Provenance) -> Verdict:
    """Check outs and inputs on disk, the links between the stages, code, parameters, and the commits."""
    return _Verification(root, provenance).run()


def verify_cached(root: Path, provenance: Provenance) -> Verdict:
    """Check an earlier version: its files in DVC's cache, and the links between the stages."""
    return _Verification(root, provenance).run_cached()


class _Verification:
    def __init__(self, root: Path, provenance: Provenance) -> None:
        self.root, self.provenance = root, provenance
        self.disk, self.cache = Workspace(root, Md5s()), Cache(root)  # everything is hashed again
        self.checked = 0
        self.breaks: list[Break] = []
        self.unchecked: list[Break] = []
        self._md5s: dict[str, str | None] = {}
        self.code = Code(root)
        self._digests: dict[str, str | None] = {}
        self._trees: dict[str, dict[str, Any]] = {}  # files of parameters, each read once

    def run(self) -> Verdict:
        for link in self.provenance.links:
            for path, md5 in link.outs.items():
                self._on_disk(link, path, md5, "made")
            for path, md5 in {**link.given, **link.made_of.files}.items():
                self._on_disk(link, path, md5, "read")
            self._code(link)
            self._params(link)
            self._record(link)
        self._links()
        self._commits()
        self._shipped()
        return Verdict(self.checked, tuple(self.breaks), tuple(self.unchecked))

    def run_cached(self) -> Verdict:
        for link in self.provenance.links:
            for path, md5 in {**link.outs, **link.inputs}.items():
                self._in_cache(link, path, md5)
        if self.provenance.md5:
            self._in_cache(self.provenance.links[0], self.provenance.path, self.provenance.md5)
        self._links()
        self._commits()
        return Verdict(self.checked, tuple(self.breaks), tuple(self.unchecked))

    def _broken(self, link: Link, subject: str, text: str) -> None:
        self.breaks.append(Break(link.stage, subject, text))

    def _not_checked(self, link: Link, subject: str, text: str) -> None:
        self.unchecked.append(Break(link.stage, subject, text))

    # --- bytes ---------------------------------------------------------------------------------------

    def _on_disk(self, link: Link, path: str, md5: str, verb: str) -> None:
        self.checked += 1
        if path not in self._md5s:
            self._md5s[path] = self.disk.md5(path)
        now = self._md5s[path]
        if now is None:
            self._broken(link, path, f"is missing; the stage {verb} version {md5}")
        elif now != md5:
            difference = f" ({self._difference(path, md5)})" if md5.endswith(".dir") else ""
            self._broken(link, path, f"was {md5} when the stage {verb} it, is {now} now{difference}")

    def _code(self, link: Link) -> None:
        for path, then in link.made_of.modules.items():
            self.checked += 1
            if path not in self._digests:
                self._digests[path] = self.code.digest(path)
            now = self._digests[path]
            if now != then:
                present = "is missing" if now is None else f"is {now} now"
                self._broken(link, path, f"was {then} when the stage ran it, {present}")
        for library, then in link.made_of.libraries.items():
            self.checked += 1
            if (version := installed_version(library)) != then:
                present = "is not installed" if version is None else f"is {version} now"
                self._broken(link, library, f"was {then} when the stage ran it, {present}")
        for path, md5 in link.code.items():
            self.checked += 1
            if not link.made_of.modules:
                self._broken(link, path, f"version {md5} is neither here nor in DVC's cache: `dvc fetch` it")

    def _difference(self, path: str, md5: str) -> str:
        """The files of a folder that differ from the recorded ones."""
        then = self.cache.listing(md5)
        if then is None:
            return "the file cannot be named: DVC's cache does not hold that version's listing"
        now = self.disk.listing(path) if (self.root / path).is_dir() else {}
        changed = [f"{name} changed" for name in sorted(then.keys() & now.keys()) if then[name] != now[name]]
        changed += [f"{name} is gone" for name in sorted(then.keys() - now.keys())]
        changed += [f"{name} is new" for name in sorted(now.keys() - then.keys())]
        return "; ".join(changed[:5]) + (f"; and {len(changed) - 5} more" if len(changed) > 5 else "")

    def _in_cache(self, link: Link, path: str, md5: str) -> None:
        if f"cache:{md5}" in self._md5s:
            return
        self._md5s[f"cache:{md5}"] = md5
        parts: Mapping[str, str] = {"": md5}
        if md5.endswith(".dir"):
            listing = self.cache.listing(md5)
            if listing is None or listing_md5(listing) != md5:
                if path in link.outs or path == self.provenance.path:
                    self.checked += 1
                    self._broken(link, path, f"version {md5} is incomplete in DVC's cache")
                return
            parts = listing
        elif not self.cache.path(md5).is_file():
            return  # metrics files lie in git, not in the cache
        for name, part in parts.items():
            self.checked += 1
            file = self.cache.path(part)
            if not file.is_file() or file_md5(file) != part:
                self._broken(link, f"{path}/{name}".rstrip("/"), f"DVC's cache does not hold version {part} unharmed")

    # --- links ---------------------------------------------------------------------------------------

    def _params(self, link: Link) -> None:
        for file, values in link.params.items():
            self.checked += 1
            if not (self.root / file).is_file():
                self._broken(link, file, "is missing")
                continue
            if file not in self._trees:
                self._trees[file] = read_yaml(self.root / file)
            then, now = flatten(values), flatten(select(self._trees[file], values))
            for key in [*then, *(key for key in now if key not in then)]:
                if key not in now:
                    self._broken(link, f"{file}: {key}", f"was {_brief(then[key])}, is gone now")
                elif key not in then:
                    self._broken(link, f"{file}: {key}", f"is new, {_brief(now[key])}")
                elif then[key] != now[key]:
                    self._broken(link, f"{file}: {key}", f"was {_brief(then[key])}, is {_brief(now[key])} now")

    def _links(self) -> None:
        """Check that the inputs of each stage are the outs of the stages upstream."""
        outs = {path: (link, md5) for link in self.provenance.links for path, md5 in link.outs.items()}
        for link in self.provenance.links:
            for path, md5 in link.inputs.items():
                self.checked += 1
                if path in outs:
                    maker, now = outs[path]
                    if now != md5:
                        text = f"was {md5} when the stage read it, but {maker.stage} made {now}"
                        self._broken(link, path, text)
                elif self._below(path, outs) not in (None, md5):
                    self._broken(link, path, f"was {md5} when the stage read it; {', '.join(link.reads)} made others")

    def _below(self, folder: str, outs: Mapping[str, tuple[Link, str]]) -> str | None:
        """The md5 of a folder that contains outs, from their recorded listings; None if it is not known.

        If DVC's cache lacks a listing, the folder on disk is hashed.
        """
        files: dict[str, str] = {}
        for path, (_, md5) in outs.items():
            if not path.startswith(f"{folder}/"):
                continue
            listing = self.cache.listing(md5)
            if listing is None:
                return self.disk.md5(folder)
            files |= {f"{path.removeprefix(folder + '/')}/{name}": part for name, part in listing.items()}
        return listing_md5(files) if files else self.disk.md5(folder)

    def _record(self, link: Link) -> None:
        """Check that the run in ``data/runs`` or MLflow has the recipe that ``dvc.lock`` records."""
        if link.run is not None:
            self.checked += 1
        elif (recipe := load_recipe(self.root, link.stage)) is None:
            self._not_checked(link, "run", "neither data/runs nor MLflow has a run of this recipe")
        else:
            self.checked += 1
            text = (
                f"records a run of recipe {recipe}, dvc.lock records {link.recipe}, and MLflow has no run of that; run "
                f"`dvc repro --force --single-item {link.stage}`, or verify where its MLflow is"
            )
            self._broken(link, f"data/runs/{link.stage}.json", text)

    def _commits(self) -> None:
        """Check that the code of each stage is in the commit that its run recorded."""
        for link in self.provenance.links:
            run = link.run
            if run is None:
                continue  # counted in _record
            if not run.git_commit:
                self._not_checked(link, "git commit", "its run was in no git repository, or before the first commit")
                continue
            self.checked += 1
            if not is_commit(self.root, run.git_commit):
                self._broken(link, run.git_commit[:12], "is no commit of this repository: `git fetch` it")
            elif run.git_dirty is not False:
                self._not_checked(link, run.git_commit[:12], "its run read changes that were not committed")
            else:
                self._committed(link, run.git_commit)

    def _committed(self, link: Link, commit: str) -> None:
        files = {path: then for path, then in link.made_of.modules.items() if path.endswith(".py")}
        absent = 0
        for path, data in committed(self.root, commit, list(files)):
            if data is None:
                absent += 1
                continue
            self.checked += 1
            if (now := parse_source(data, path).digest) != files[path]:
                text = f"was {files[path]} when the stage ran, but commit {commit[:12]} holds {now}"
                self._broken(link, path, text)
        if absent:
            self._not_checked(link, commit[:12], f"{absent} of {len(files)} modules are not in it, but in a package")

    def _shipped(self) -> None:
        """Check that ``provenance.json`` in the folder is the recorded provenance.

        If a stage upstream ran again with other code and its outs are identical, the check passes.
        """
        file = self.root / self.provenance.path / SHIPPED
        if not file.is_file():
            return
        shipped = Provenance.from_dict(read_json(file))
        recorded = {link.stage: link for link in self.provenance.links}
        for link in shipped.links:
            self.checked += 1
            recorded_link = recorded.get(link.stage)
            recipe = Inputs({**link.inputs, **link.given, **link.code}, link.params).digest
            if recorded_link is None:
                self._broken(link, file.name, "names this stage, which is not upstream of it in dvc.lock")
            elif link.recipe != recipe:
                self._broken(
                    link, file.name, f"records recipe {link.recipe}, but its inputs and parameters give {recipe}"
                )
            elif link.recipe != recorded_link.recipe and (
                link is shipped.links[0] or _data(link) != _data(recorded_link)
            ):
                self._broken(link, file.name, f"records recipe {link.recipe}, dvc.lock records {recorded_link.recipe}")


def _data(link: Link) -> dict[str, str]:
    return {path: md5 for path, md5 in link.outs.items() if not is_metrics(path)}


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def is_commit(root: Path, commit: str) -> bool:
    """Whether this checkout contains a commit."""
    command = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(command, cwd=root, capture_output=True).returncode == 0


def committed(root: Path, commit: str, paths: list[str]) -> Iterator[tuple[str, bytes | None]]:
    """Each file as it was at a commit; None if the commit does not contain it."""
    queries = "".join(f"{commit}:{path}\n" for path in paths)
    process = subprocess.run(["git", "cat-file", "--batch"], cwd=root, input=queries.encode(), capture_output=True)
    output = process.stdout
    for path in paths:
        head, _, output = output.partition(b"\n")
        if not head or not head.split()[-1].isdigit():
            yield path, None
            continue
        size = int(head.split()[-1])
        yield path, output[:size]
        output = output[size + 1 :]
