"""What a stage that starts now would read: the md5 of each of its inputs, and its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dvc_project.hashing import Workspace
from dvc_project.lockfile import Inputs
from dvc_project.project import stages_of
from dvc_project.yaml import select
from paco_core.io.files import md5_of, read_yaml
from paco_core.runtime.code.stage_code import StageCode, StageCodes, is_code


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
