"""The model card of a policy with the result of its benchmark, for copies that leave the project."""

from __future__ import annotations

from pathlib import Path

from dvc_project.hashing import Workspace
from dvc_project.lockfile import Lock
from paco_core.config.params import PARAMS_FILE, load
from paco_core.io import paths
from paco_core.io.files import read_json
from paco_core.models.benchmark_section import replace_section
from paco_core.operations.benchmark_result import result_section
from paco_core.tasks.table import task_of


def benchmarked_card(root: Path, card: str, policy: str, md5: str | None) -> str:
    """The card with the result of the benchmark that measured this version of the policy.

    The card stays as it is if ``dvc.lock`` records no benchmark of this version, or if the metrics file is not the one
    that ``dvc.lock`` records.

    Args:
        card: text of the model card.
        policy: name of the recipe.
        md5: DVC's md5 of the policy's folder.
    """
    params = load(root / PARAMS_FILE) if (root / PARAMS_FILE).is_file() else None
    if params is None or md5 is None or policy not in params.policies.recipes:
        return card
    task = task_of(params.policies.recipes[policy])
    file = paths.metrics_file(task.benchmark).as_posix()
    entry = Lock.read(root).entries.get(task.benchmark)
    if entry is None or entry.inputs.deps.get((paths.POLICIES / policy).as_posix()) != md5:
        return card
    if file not in entry.outs or Workspace(root).md5(file) != entry.outs[file]:
        return card
    section = result_section(policy, task.benchmark, task.success(params.world).goal, read_json(root / file))
    return card if section is None else replace_section(card, section)
