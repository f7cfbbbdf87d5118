"""The inputs of a stage: md5s of what it reads, its parameters, and whether they stayed the same while it ran."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dvc_project.hashing import Workspace
from dvc_project.lockfile import Inputs
from dvc_project.project import stages_of
from dvc_project.yaml import select
from paco_core.config.params import ParamsError
from paco_core.io.files import DataError, md5_of, read_text, read_yaml
from paco_core.runtime.code.stage_code import StageCode, StageCodes, is_code

SHOWN = 5  # changes in one message


@dataclass(frozen=True)
class StageInputs:
    """What a stage reads, as it was at one moment.

    Attributes:
        code: its code, libraries, resolved parameters, and the files that parameters name.
        recipe: md5s and parameters as ``dvc.lock`` would record them; None where ``dvc.yaml`` does not know the stage
            or an input is missing.
        written: of each file, its size and the time of its last write, by path below the root.
    """

    label: str
    code: StageCode = field(default_factory=StageCode)
    recipe: Inputs | None = None
    written: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def present(cls, root: Path, name: str, item: str | None) -> StageInputs:
        """Those of a stage that starts now.

        Raises:
            ParamsError: when ``params.yaml`` is invalid.
            DataError: when ``dvc.yaml``, ``dvc.lock`` or a source file is.
        """
        label = f"{name}@{item}" if item else name
        code = StageCodes.present(root).of(name, item)
        recipe = present_inputs(root, label, code)
        paths = {*code.files, *code.modules} | (set() if recipe is None else {d for d in recipe.deps if not is_code(d)})
        return cls(label, code, recipe, dict(_written(root, sorted(paths))))

    def validate_recorded_code(self, root: Path) -> None:
        """Compare the code on disk with what the stage ``code`` recorded: DVC records that as what ran.

        Raises:
            DataError: naming what differs.
        """
        for path in (dep for dep in (self.recipe.deps if self.recipe else ()) if is_code(dep)):
            if (root / path).is_file() and (text := read_text(root / path)) != self.code.text:
                changes = self.code.changes(StageCode.from_text(text)) or [f"the format of {path} changed"]
                raise DataError(
                    f"stage {self.label}: {_listed(changes)} since {path} was written; run `dvc repro`, or "
                    "`dvc repro code` before this stage alone"
                )

    def validate_unchanged(self, root: Path, name: str, item: str | None) -> None:
        """Compare the present inputs with these: DVC records the present ones as what ran.

        Raises:
            DataError: naming what was changed meanwhile. A file that was written again with equal content counts: the
                stage may have read it in between.
        """
        try:
            now = StageInputs.present(root, name, item)
            changes = [*now._differences(self)]
        except (DataError, ParamsError) as error:
            changes = [str(error)]
        if changes:
            raise DataError(
                f"stage {self.label}: {_listed(changes)} while it ran, so its result is not recorded; run it again, "
                "and leave its parameters, code and files alone meanwhile"
            )

    def _differences(self, before: StageInputs) -> Iterator[str]:
        yield from self.code.changes(before.code)
        now, then = (inputs.recipe or Inputs({}, {}) for inputs in (self, before))
        for path in sorted({*now.deps, *then.deps}):
            if not is_code(path) and now.deps.get(path) != then.deps.get(path):
                yield f"{path} changed"
        for file in sorted({*now.params, *then.params}):
            here, there = now.params.get(file, {}), then.params.get(file, {})
            for key in sorted({*here, *there}):
                if here.get(key) != there.get(key):
                    yield f"{file}: {key} changed ({there.get(key)} to {here.get(key)})"
        if self.code == before.code and now == then:
            paths = sorted(path for path in before.written if self.written.get(path) != before.written[path])
            yield from (f"{path} was written again" for path in paths)


def _listed(changes: list[str]) -> str:
    more = [f"and {len(changes) - SHOWN} more changed"] if len(changes) > SHOWN else []
    return "; ".join([*changes[:SHOWN], *more])


def _written(root: Path, paths: Iterable[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    workspace = Workspace(root)
    for path in paths:
        inside = workspace.files(path) if (root / path).is_dir() else [""]
        for name in inside:
            file = root / path / name
            if file.is_file():
                state = file.stat()
                yield os.path.normpath(f"{path}/{name}"), (state.st_size, state.st_mtime_ns)


def present_inputs(root: Path, label: str, made_of: StageCode | None = None) -> Inputs | None:
    """What a stage that starts now reads; None where ``dvc.yaml`` does not know it or an input is missing.

    Code counts as it is, also where the stage ``code`` has not written it down yet. Data are hashed, unless they are
    known not to have changed since (:mod:`dvc_project.md5s`).

    Args:
        made_of: the stage's present code, where the caller has it.

    Raises:
        ParamsError: when ``params.yaml`` is invalid.
        DataError: when ``dvc.yaml``, ``dvc.lock`` or a source file is.
    """
    stage = stages_of(root).get(label)
    if stage is None:
        return None
    code = [dep for dep in stage.deps if is_code(dep)]
    workspace, data = Workspace(root), [dep for dep in stage.deps if dep not in code]
    if not all((root / dep).exists() for dep in data):
        return None
    deps = {dep: str(workspace.md5(dep)) for dep in data}
    if code:
        text = (made_of or StageCodes.present(root).of(stage.group, stage.item)).text
        deps |= {dep: md5_of(text.encode()) for dep in code}
    return Inputs({dep: deps[dep] for dep in stage.deps}, present_params(root, stage.params))


def present_params(root: Path, wanted: Mapping[str, Iterable[str]]) -> dict[str, dict[str, Any]]:
    """The present values of dotted keys by file; absent keys are absent."""
    return {file: select(read_yaml(root / file), keys) for file, keys in wanted.items()}
