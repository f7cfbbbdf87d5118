"""A promotion: register a version, run its gates, measure it and the champion, move the alias or not.

Candidate, champion and reward model are read by md5, from folders that no run changes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dvc_project.hashing import Workspace
from dvc_project.lockfile import Lock
from paco_core.config.params import PARAMS_FILE, Params, load
from paco_core.io import paths
from paco_core.io.answer import Answer
from paco_core.io.check_report import CheckReport
from paco_core.io.files import DataError
from paco_core.operations.named import check_name
from paco_core.operations.promotion import decision as decisions
from paco_core.operations.promotion.champions import (
    CHAMPION,
    PROVENANCE_FILE,
    REWARD,
    Champions,
    Version,
    bytes_of,
    out_of,
    recorded_md5,
)
from paco_core.operations.promotion.decision import Decision, Side
from paco_core.policies.adapter_base import adapter_base
from paco_core.policies.truncation import log_truncations
from paco_core.runtime.code.stage_code import is_code
from paco_core.runtime.placement import one_gpu
from paco_core.runtime.provenance.chain import of_path
from paco_core.runtime.provenance.records import RunFinder
from paco_core.runtime.tracking import Tracker, open_run
from paco_core.runtime.versions import folder_of_version, md5_of_folder
from paco_core.tasks.table import task_of

if TYPE_CHECKING:
    from paco_core.config.params import PolicyRecipe
    from paco_core.operations.promotion.measuring import Measured

DECISIONS = "Decisions about champions: gates, figures of both versions, and the paired test between them."


def gates(root: Path, params: Params, name: str, folder: Path) -> list[CheckReport]:
    """The blocking checks on the way to a version: the same functions that Dagster's asset checks call.

    Args:
        folder: a policy's version. The checks of the reward read its metrics and the data that it was trained on.
    """
    from paco_core.data import checks as data_checks

    data = root / paths.DATA
    if name == REWARD:
        from paco_core.reward_model import checks as reward_checks

        return [
            data_checks.benchmark_is_held_out(data),
            data_checks.answers_agree_with_labels(data),
            reward_checks.merged_equals_adapter(root / paths.metrics_file(paths.REWARD_MERGED.name)),
        ]
    from paco_core.grpo import checks as policy_checks

    log = policy_checks.read_training_log(folder / "training_log.csv")
    recipe = params.policies.recipes[name]
    return [
        policy_checks.collapse(log, recipe.eval_sizes),
        policy_checks.ratio_before_update(log, recipe),
        policy_checks.shared_gain(log, recipe),
        policy_checks.images_stay_detailed(log, recipe.eval_sizes),
    ]


def promote(root: Path, name: str, log: Callable[[str], None] = lambda _line: None) -> Decision:
    """Decide about the version that ``dvc.lock`` records now, and move the alias ``champion`` if it won.

    The alias moves only if the champion is still the version that the candidate was compared with.

    Raises:
        DataError: for an unknown name, an out that is not the recorded one, a version whose bytes are gone, or data
            that changes while the version is measured.
    """
    check_name(root, name)
    params, lock, champions = load(root / PARAMS_FILE), Lock.read(root), Champions(root)
    out, md5, incumbent = out_of(name).as_posix(), recorded_md5(lock, name), champions.at(name, CHAMPION)
    _require_recorded(root, {out: md5})
    recipe = None if name == REWARD else params.policies.recipes[name]
    if recipe is not None:
        _require_base(lock, name, recipe)
    folder = folder_of_version(root, out, md5)
    with open_run(
        root,
        f"paco/promotion/{name}",
        f"promotion/{name}/{md5[:12]}",
        {"dvc.md5": md5, "profile": params.profile},
        about=DECISIONS,
    ) as tracker:
        story = of_path(out, lock, RunFinder(root))
        tracker.text(json.dumps(story.as_dict(), indent=2), PROVENANCE_FILE)
        trained = story.links[0].run.mlflow_run if story.links[0].run else None
        belongs = None if recipe is None else adapter_base(root, recipe)
        candidate = champions.register(name, md5, folder, tracker.run_id, trained, belongs)
        decision = _decide(root, params, _read_in_place(lock, name, recipe), (candidate, folder), incumbent, log)
        if decision.promoted:
            decision = _crowned(champions, candidate, incumbent, decision)
        _record(tracker, decision)
    return decision


def _crowned(champions: Champions, candidate: Version, incumbent: Version | None, decision: Decision) -> Decision:
    """Move the alias; returns the decision, or another one if the champion is not the incumbent any more."""
    champion = champions.crown(candidate, incumbent)
    if champion is not None and champion.number == candidate.number:
        return decision
    now = f"version {champion.number} is champion" if champion else "there is no champion"
    reason = f"stays challenger: {now} since the comparison began; run `paco promote {candidate.name}` again"
    return replace(decision, promoted=False, reason=reason)


def _require_recorded(root: Path, expected: Mapping[str, str]) -> None:
    """Make sure that the workspace contains the versions (path -> md5) that ``dvc.lock`` records."""
    disk = Workspace(root)
    for path, md5 in expected.items():
        if disk.md5(path) != md5:
            raise DataError(
                f"{path} is not the version that dvc.lock records ({md5}); run `dvc checkout {path}`, or `dvc repro` "
                "if a stage made it since"
            )


def _require_base(lock: Lock, name: str, recipe: PolicyRecipe) -> None:
    """Make sure that a policy is measured, and registered, with the base that it was trained on."""
    entry = lock.maker(out_of(name).as_posix())
    recorded = entry.inputs.params.get(PARAMS_FILE, {}).get(f"policies.recipes.{name}") if entry else None
    trained_on = recorded.get("model", recipe.model) if isinstance(recorded, Mapping) else recipe.model
    if trained_on != recipe.model:
        raise DataError(
            f"policies.recipes.{name}.model is {recipe.model}, but the version was trained on {trained_on}; change it "
            f"back, or run `dvc repro {paths.POLICIES.name}@{name}`"
        )


def _read_in_place(lock: Lock, name: str, recipe: PolicyRecipe | None) -> dict[str, str]:
    """What gates and measurements read in the workspace (path -> md5), by ``dvc.lock``.

    Of the reward, its metrics and what it was made from. Of an editing policy, the prompts: their images are read when
    they are edited. The prompts of sets are read once, for both sides.
    """
    out = out_of(name).as_posix()
    if recipe is None:
        entry, unread = lock.maker(out), (out, paths.REWARD_LORA.as_posix())
        recorded = {**entry.inputs.deps, **entry.outs} if entry else {}
        return {path: md5 for path, md5 in recorded.items() if path not in unread and not is_code(path)}
    prompts = task_of(recipe).prompts.as_posix()
    md5 = lock.md5_of(prompts) if task_of(recipe).reward_input == "reference" else None
    return {} if md5 is None else {prompts: md5}


def _decide(
    root: Path,
    params: Params,
    inputs: Mapping[str, str],
    candidate: tuple[Version, Path],
    incumbent: Version | None,
    log: Callable[[str], None],
) -> Decision:
    """The decision about a version in a folder.

    Args:
        inputs: what is read in the workspace (path -> md5); DataError if it changes meanwhile.
    """
    version, folder = candidate
    name, rule = version.name, decisions.rule_for(params, version.name)
    unmeasured = Side(version.number, version.md5, {})
    other = Side(incumbent.number, incumbent.md5, {}) if incumbent else None
    _require_recorded(root, inputs)
    reports = gates(root, params, name, folder)
    if incumbent is not None and incumbent.md5 == version.md5:
        return Decision(name, False, "is the champion already", rule, unmeasured, other, tuple(reports))
    if not all(gate.passed for gate in reports if gate.severity == "ERROR"):
        return decisions.blocked(name, rule, unmeasured, other, reports)
    if incumbent is None:
        _require_recorded(root, inputs)
        return decisions.first(name, rule, unmeasured, reports)
    folders = {folder: version.md5, bytes_of(root, incumbent): incumbent.md5}
    log(f"measuring version {version.number} against the champion, version {incumbent.number}")
    with one_gpu([params.policies.device, params.reward.device], f"promotion of {name} in {root}", params, log):
        ours, theirs = _measure(root, params, name, list(folders))
    _require_recorded(root, inputs)
    if changed := [measured for measured, md5 in folders.items() if md5_of_folder(root, measured) != md5]:
        raise DataError(f"{changed[0]} changed while it was measured; run `paco promote {name}` again")
    chosen = decisions.benchmark_of(params, name)
    decision = decisions.decide(
        name, rule, (version.number, version.md5, ours.table), (incumbent.number, incumbent.md5, theirs.table),
        reports, resamples=chosen.bootstrap, seed=chosen.seed,
    )  # fmt: skip
    log_truncations(ours.cuts, log)
    return replace(decision, cut_prompts=len(ours.cuts))


def _measure(root: Path, params: Params, name: str, folders: list[Path]) -> list[Measured]:
    """Both sides on the same cases, by the same judge, on this machine."""
    from paco_core.operations.promotion import measuring

    if name == REWARD:
        return [measuring.measure_reward(root, params, folder) for folder in folders]
    judge = folder_of_version(root, paths.REWARD_MERGED.as_posix(), recorded_md5(Lock.read(root), REWARD))
    cases = measuring.unseen_by_all(root, params, name, folders)
    return [measuring.measure_policy(root, params, name, folder, judge, cases) for folder in folders]


def _record(tracker: Tracker, decision: Decision) -> None:
    tracker.metrics({k: v for k, v in decision.metrics().items() if not math.isnan(v)})
    tracker.tags({"paco.decision": decision.reason, "paco.version": decision.candidate.version})
    tracker.text(json.dumps(decision.as_dict(), indent=2), "decision.json")


def roll_back(root: Path, name: str) -> Answer:
    """Give the alias back to the previous champion; says which versions changed places."""
    champions = Champions(root)  # a store that does not answer ends it before a run waits for it
    with open_run(root, f"paco/promotion/{name}", f"rollback/{name}", {}, about=DECISIONS) as tracker:
        fallen, restored = champions.roll_back(name)
        tracker.tags({"paco.decision": f"rolled back from version {fallen.number} to {restored.number}"})
    text = (
        f"{name}: champion is version {restored.number} again ({restored.md5[:12]}); "
        f"version {fallen.number} is challenger"
    )
    return Answer(text, {"name": name, "champion": restored.number, "challenger": fallen.number})
