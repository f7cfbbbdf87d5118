"""The provenance of a path: the stage that made it, all stages upstream, and their runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dvc_project.lockfile import Entry, Inputs, Lock
from paco_core.io.files import DataError
from paco_core.io.messages import did_you_mean
from paco_core.runtime.code.stage_code import StageCode, is_code, read_recorded_code

FORMAT = 2
RECIPE_TAG, STAGE_TAG, ENDPOINT_TAG = "dvc.recipe", "dvc.stage", "reward.endpoint"
SUMMARY_TAG = "paco.summary"  # as JSON, the metric of the training log that each summary metric repeats


@dataclass(frozen=True)
class Run:
    """The tracked run of a link. Unknown values are None."""

    mlflow_run: str | None = None
    mlflow_url: str | None = None
    started: str | None = None  # ISO 8601, UTC
    seconds: float | None = None  # until its last metric
    profile: str | None = None
    git_commit: str | None = None
    git_dirty: bool | None = None
    dagster_run: str | None = None
    dagster_asset: str | None = None
    endpoint: str | None = None  # name of the reward server, with its fingerprint


@dataclass(frozen=True)
class Link:
    """One stage of a provenance. Paths map to md5s as DVC computes them.

    Attributes:
        recipe: digest of deps and parameters.
        inputs: deps that other links made.
        given: deps that no stage made.
        code: the code file of the stage.
        made_of: the content of the code file.
    """

    stage: str
    command: str
    recipe: str
    outs: Mapping[str, str]
    inputs: Mapping[str, str]
    given: Mapping[str, str]
    code: Mapping[str, str]
    params: Mapping[str, Mapping[str, Any]]
    reads: tuple[str, ...]  # labels of the links that made the inputs
    run: Run | None = None
    made_of: StageCode = field(default_factory=StageCode)


@dataclass(frozen=True)
class Provenance:
    """A path, its md5, and its links: the stage that made the path first, the prompts last."""

    path: str
    md5: str | None  # None for a folder that holds its own provenance: it cannot hold its own md5
    links: tuple[Link, ...]
    unknown: tuple[str, ...] = field(default=())  # paths below data/ whose stage is not recorded

    def as_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Provenance:
        """What :meth:`as_dict` wrote.

        Raises:
            DataError: when it is of another format.
        """
        if tree.get("format") not in (1, FORMAT):
            raise DataError(f"provenance of format {tree.get('format')!r}; this version reads formats 1 and {FORMAT}")
        links = tuple(
            Link(
                **{
                    **link,
                    "reads": tuple(link["reads"]),
                    "run": Run(**link["run"]) if link["run"] else None,
                    "made_of": StageCode.from_tree(link["made_of"]) if "made_of" in link else StageCode(),
                }
            )
            for link in tree["links"]
        )
        return cls(tree["path"], tree["md5"], links, tuple(tree["unknown"]))


FindRun = Callable[[str, str], Run | None]  # stage label, recipe digest


def no_run(_stage: str, _recipe: str) -> Run | None:
    return None


def is_metrics(path: str) -> bool:
    return path.startswith("data/metrics/")


def of_path(path: str, lock: Lock, find_run: FindRun = no_run) -> Provenance:
    """The provenance of an out, or of a file inside one.

    Raises:
        DataError: when no stage is recorded to have made it.
    """
    maker = lock.maker(path)
    if maker is None:
        outs = sorted(out for entry in lock.entries.values() for out in entry.outs if "metrics" not in out)
        names = {name.rpartition("/")[2] for name in outs}
        hint = f"recorded outs: {', '.join(outs)}" if outs else "nothing has run yet, run `make demo` or `dvc repro`"
        raise DataError(f"{path}: dvc.lock records no stage that made it; {did_you_mean(path, names)}{hint}")
    out = next(o for o in maker.outs if path == o or path.startswith(f"{o}/"))
    links, unknown = _upstream_links(maker, lock, find_run)
    return Provenance(out, maker.outs[out], links, unknown)


def of_stage_now(
    label: str,
    command: str,
    recipe: Inputs,
    path: str,
    lock: Lock,
    find_run: FindRun = no_run,
    run: Run | None = None,
    code: StageCode | None = None,
) -> Provenance:
    """The provenance of an out of a running stage. Upstream links are those that ``dvc.lock`` records.

    Args:
        label: of the running stage, ``policies@flux_t2is``.
        recipe: deps and parameters of the running stage.
        path: the out.
        run: of the running stage.
        code: of the running stage.
    """
    running_stage = Entry(label, command, recipe, {})
    links, unknown = _upstream_links(running_stage, lock, find_run, run, code)
    return Provenance(path, None, links, unknown)


def _upstream_links(
    start: Entry, lock: Lock, find_run: FindRun, run: Run | None = None, code: StageCode | None = None
) -> tuple[tuple[Link, ...], tuple[str, ...]]:
    """The links from ``start`` upwards, and the paths without a recorded stage. A stage is after all that read it."""
    links: dict[str, Link] = {}
    unknown: list[str] = []
    order: list[str] = []

    def visit(entry: Entry, known_run: Run | None = None, code: StageCode | None = None) -> None:
        if entry.stage in links:
            return
        inputs: dict[str, str] = {}
        external: dict[str, str] = {}
        reads: dict[str, Entry] = {}
        for path, md5 in entry.inputs.deps.items():
            makers = sorted(  # dvc.lock has them in the order in which they first ran
                (maker for maker in lock.makers(path) if maker.stage != entry.stage), key=lambda maker: maker.stage
            )
            if is_code(path):
                continue
            (inputs if makers else external)[path] = md5
            reads |= {maker.stage: maker for maker in makers}
        files = {path: md5 for path, md5 in entry.inputs.deps.items() if is_code(path)}
        stage_run = known_run or find_run(entry.stage, entry.inputs.digest)
        links[entry.stage] = Link(
            entry.stage, entry.command, entry.inputs.digest, dict(entry.outs), inputs, external, files,
            {file: dict(values) for file, values in entry.inputs.params.items()}, tuple(reads), stage_run,
            code or _recorded_code(lock, files),
        )  # fmt: skip
        unknown.extend(path for path in external if not path.startswith("data/zoo") and path.startswith("data/"))
        for maker in reads.values():
            visit(maker)
        order.append(entry.stage)

    visit(start, run, code)
    return tuple(links[name] for name in reversed(order)), tuple(dict.fromkeys(unknown))


def _recorded_code(lock: Lock, files: Mapping[str, str]) -> StageCode:
    codes = [read_recorded_code(lock.root, path, md5) for path, md5 in files.items() if lock.root is not None]
    return codes[0] if codes else StageCode()


def project_path(root: Path, text: str) -> str:
    """A path that a user typed, relative to the project root.

    Raises:
        DataError: when it is outside the project.
    """
    path = Path(text)
    for candidate in (root / path, Path.cwd() / path):
        if candidate.exists():
            path = candidate
            break
    else:
        path = root / path
    absolute = path.parent.resolve() / path.name
    if not absolute.is_relative_to(root.resolve()):
        raise DataError(f"{text}: is outside the project {root}")
    return absolute.relative_to(root.resolve()).as_posix()
