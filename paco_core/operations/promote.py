"""A promotion: register the present version, ask its gates, measure both sides, move the alias or not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

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
)
from paco_core.operations.promotion.decision import Decision, Side
from paco_core.policies.adapted import adapted
from paco_core.policies.cuts import report
from paco_core.runtime.placement import one_gpu
from paco_core.runtime.provenance.chain import of_path
from paco_core.runtime.provenance.runs import RunFinder
from paco_core.runtime.tracking import Tracker, open_run

if TYPE_CHECKING:
    from paco_core.operations.promotion.measuring import Measured

DECISIONS = "Decisions about champions: gates, figures of both versions, and the paired test between them."


def gates(root: Path, params: Params, name: str) -> list[CheckReport]:
    """The blocking checks on the way to a version: the same functions that Dagster's asset checks call."""
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

    log = policy_checks.read_log(root / paths.POLICIES / name / "training_log.csv")
    recipe = params.policies.recipes[name]
    return [
        policy_checks.collapse(log, recipe.eval_sizes),
        policy_checks.ratio_before_update(log, recipe),
        policy_checks.shared_gain(log, recipe),
    ]


def promote(root: Path, name: str, say: Callable[[str], None] = lambda _line: None) -> Decision:
    """Decide about the version that ``dvc.lock`` records now, and move the alias ``champion`` if it won.

    Raises:
        DataError: for an unknown name, an out that is not the recorded one, or an incumbent whose bytes are gone.
    """
    check_name(root, name)
    params, champions = load(root / PARAMS_FILE), Champions(root)
    md5, incumbent = champions.recorded(name), champions.at(name, CHAMPION)
    _require_recorded(root, name, md5)
    with open_run(
        root,
        f"paco/promotion/{name}",
        f"promotion/{name}/{md5[:12]}",
        {"dvc.md5": md5, "profile": params.profile},
        about=DECISIONS,
    ) as tracker:
        story = of_path(out_of(name).as_posix(), Lock.read(root), RunFinder(root))
        tracker.text(json.dumps(story.as_dict(), indent=2), PROVENANCE_FILE)
        trained = story.links[0].run.mlflow_run if story.links[0].run else None
        belongs = None if name == REWARD else adapted(root, params.policies.recipes[name])
        candidate = champions.of_md5(name, md5) or champions.register(name, md5, tracker.run_id, trained, belongs)
        made = _decide(root, params, candidate, incumbent, say)
        _record(tracker, made)
        if made.promoted:
            champions.crown(candidate)
    return made


def _require_recorded(root: Path, name: str, md5: str) -> None:
    from dvc_project.hashing import Workspace

    path = out_of(name).as_posix()
    if Workspace(root).md5(path) != md5:
        raise DataError(f"{path} is not the version that dvc.lock records ({md5}); run `dvc checkout {path}`")


def _decide(
    root: Path, params: Params, candidate: Version, incumbent: Version | None, say: Callable[[str], None]
) -> Decision:
    name, rule = candidate.name, decisions.rule_for(params, candidate.name)
    found = gates(root, params, name)
    unmeasured = Side(candidate.number, candidate.md5, {})
    other = Side(incumbent.number, incumbent.md5, {}) if incumbent else None
    if incumbent is not None and incumbent.md5 == candidate.md5:
        return Decision(name, False, "is the champion already", rule, unmeasured, other, tuple(found))
    if not all(gate.passed for gate in found if gate.severity == "ERROR"):
        return decisions.blocked(name, rule, unmeasured, other, found)
    if incumbent is None:
        return decisions.first(name, rule, unmeasured, found)
    folders = [root / candidate.path, bytes_of(root, incumbent)]
    say(f"measuring version {candidate.number} against the champion, version {incumbent.number}")
    with one_gpu([params.policies.device, params.reward.device], f"promotion of {name} in {root}", params, say):
        ours, theirs = _measure(root, params, name, folders)
    chosen = decisions.benchmark_of(params, name)
    made = decisions.decide(
        name, rule, (candidate.number, candidate.md5, ours.table), (incumbent.number, incumbent.md5, theirs.table),
        found, resamples=chosen.bootstrap, seed=chosen.seed,
    )  # fmt: skip
    report(ours.cuts, say)
    return replace(made, cut_prompts=len(ours.cuts))


def _measure(root: Path, params: Params, name: str, folders: list[Path]) -> list[Measured]:
    """Both sides on the same cases, by the same judge, on this machine."""
    from paco_core.operations.promotion import measuring

    if name == REWARD:
        return [measuring.measure_reward(root, params, folder) for folder in folders]
    cases, judge = measuring.unseen_by_all(root, params, name, folders), root / paths.REWARD_MERGED
    return [measuring.measure_policy(root, params, name, folder, judge, cases) for folder in folders]


def _record(tracker: Tracker, made: Decision) -> None:
    tracker.metrics({k: v for k, v in made.metrics().items() if not math.isnan(v)})
    tracker.tags({"paco.decision": made.reason, "paco.version": made.candidate.version})
    tracker.text(json.dumps(made.as_dict(), indent=2), "decision.json")


def roll_back(root: Path, name: str) -> Answer:
    """Give the alias back to the previous champion; says which versions changed places."""
    with open_run(root, f"paco/promotion/{name}", f"rollback/{name}", {}, about=DECISIONS) as tracker:
        fallen, restored = Champions(root).roll_back(name)
        tracker.tags({"paco.decision": f"rolled back from version {fallen.number} to {restored.number}"})
    text = (
        f"{name}: champion is version {restored.number} again ({restored.md5[:12]}); "
        f"version {fallen.number} is challenger"
    )
    return Answer(text, {"name": name, "champion": restored.number, "challenger": fallen.number})
