"""The inputs of a stage: md5s of its deps, its parameters, and a check that they did not change while it ran."""

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
from paco_core.io.files import DataError, md5_of, read_text_file, read_yaml
from paco_core.runtime.code.stage_code import StageCode, StageCodes, is_code

MAX_CHANGES = 5  # changes in one message


@dataclass(frozen=True)
class StageInputs:
    """The inputs of a stage at one moment.

    Attributes:
        code: its code, libraries, resolved parameters, and the files that parameters name.
        recipe: md5s and parameters as ``dvc.lock`` would record them; None if ``dvc.yaml`` does not declare the stage
            or an input is missing.
        written: size and time of the last write (ns) of each file, by path below the root.
    """

    label: str
    code: StageCode = field(default_factory=StageCode)
    recipe: Inputs | None = None
    written: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def present(cls, root: Path, name: str, item: str | None) -> StageInputs:
        """The inputs of a stage that starts now.

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
        """Compare the code on disk with the code file of the stage ``code``, which DVC records as the code that ran.

        Raises:
            DataError: with the differences.
        """
        for path in (dep for dep in (self.recipe.deps if self.recipe else ()) if is_code(dep)):
            if (root / path).is_file() and (text := read_text_file(root / path)) != self.code.text:
                changes = self.code.changes(StageCode.from_text(text)) or [f"the format of {path} changed"]
                raise DataError(
                    f"stage {self.label}: {_summary(changes)} since {path} was written; run `dvc repro`, or "
                    "`dvc repro code` before you run only this stage"
                )

    def validate_unchanged(self, root: Path, name: str, item: str | None) -> None:
        """Compare the present inputs, which DVC records, with these.

        Raises:
            DataError: with the changes. A file that was written again with equal content counts as changed: the stage
                may have read it in between.
        """
        try:
            now = StageInputs.present(root, name, item)
            changes = [*now._differences(self)]
        except (DataError, ParamsError) as error:
            changes = [str(error)]
        if changes:
            raise DataError(
                f"stage {self.label}: {_summary(changes)} while it ran, so its result is not recorded; run it again, "
                "and do not change its parameters, code and files while it runs"
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


def _summary(changes: list[str]) -> str:
    suffix = [f"and {len(changes) - MAX_CHANGES} more changed"] if len(changes) > MAX_CHANGES else []
    return "; ".join([*changes[:MAX_CHANGES], *suffix])


def _written(root: Path, paths: Iterable[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    workspace = Workspace(root)
    for path in paths:
        inside = workspace.files(path) if (root / path).is_dir() else [""]
        for name in inside:
            file = root / path / name
            if file.is_file():
                state = file.stat()
                yield os.path.normpath(f"{path}/{name}"), (state.st_size, state.st_mtime_ns)


def present_inputs(root: Path, label: str, code: StageCode | None = None) -> Inputs | None:
    """The recipe of a stage that starts now; None if ``dvc.yaml`` does not declare it or an input is missing.

    The recipe contains the present code, even if the stage ``code`` has not recorded it yet. Data are hashed, unless
    they are known to be unchanged (:mod:`dvc_project.md5s`).

    Args:
        label: of the stage, ``grids@0``.
        code: the present code of the stage; None = compute it.

    Raises:
        ParamsError: when ``params.yaml`` is invalid.
        DataError: when ``dvc.yaml``, ``dvc.lock`` or a source file is.
    """
    stage = stages_of(root).get(label)
    if stage is None:
        return None
    code_deps = [dep for dep in stage.deps if is_code(dep)]
    workspace, data = Workspace(root), [dep for dep in stage.deps if dep not in code_deps]
    if not all((root / dep).exists() for dep in data):
        return None
    deps = {dep: str(workspace.md5(dep)) for dep in data}
    if code_deps:
        text = (code or StageCodes.present(root).of(stage.group, stage.item)).text
        deps |= {dep: md5_of(text.encode()) for dep in code_deps}
    return Inputs({dep: deps[dep] for dep in stage.deps}, present_params(root, stage.params))


def present_params(root: Path, keys_by_file: Mapping[str, Iterable[str]]) -> dict[str, dict[str, Any]]:
    """The present values of dotted keys, by file; keys that are absent in a file are absent here."""
    return {file: select(read_yaml(root / file), keys) for file, keys in keys_by_file.items()}
