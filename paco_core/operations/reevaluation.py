"""A champion measured again, outside DVC's cache: has the machine, a library or the server moved its figures?

Each time leaves a table below ``.paco/reevaluation/<name>/`` and an MLflow run. On the fixed cases the table
is compared with the last one, pair by pair; on the fresh ones, which are others each day, mean with mean.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from dvc_project.lockfile import Lock
from paco_core.config.params import PARAMS_FILE, Params, load
from paco_core.grpo.metrics import FEWEST_GROUPS
from paco_core.io import paths
from paco_core.io.atomic import atomic
from paco_core.io.check_report import CheckReport
from paco_core.io.contact_sheet import draw_contact_sheet
from paco_core.io.files import DataError, read_table
from paco_core.operations import cases
from paco_core.operations.promotion import measuring
from paco_core.operations.promotion.champions import CHAMPION, REWARD, Champions, bytes_of, out_of, recorded_md5
from paco_core.operations.promotion.decision import Rule, rule_for
from paco_core.operations.promotion.measuring import pair_up, rank_held_out
from paco_core.operations.promotion.paired import Paired, paired
from paco_core.policies.truncation import Truncation, log_truncations
from paco_core.rewards.base import validate_failed_share
from paco_core.runtime.placement import one_gpu
from paco_core.runtime.tracking import Tracker, open_run
from paco_core.runtime.versions import folder_of_version
from paco_core.serving.servers.endpoint import RewardEndpoint

FOLDER = Path(".paco") / "reevaluation"
ABOUT = "The champion measured again on fresh cases, and compared with the time before."
FIXED, FRESH = "fixed", "fresh"
Log = Callable[[str], None]
FRESH_PAIRS = 64  # fresh pairs for the reward
RESAMPLES = 2000


@dataclass(frozen=True)
class Subject:
    """What is measured: a champion, or the recorded version where there is none yet."""

    name: str
    folder: Path
    md5: str
    version: str  # registry's number, or "not promoted"


@dataclass(frozen=True)
class Reevaluation:
    """The figures of now and how they compare with the last time; None the first time."""

    subject: Subject
    rule: Rule
    figures: Mapping[str, float]  # fixed/<measure>, fresh/<measure>
    last: str | None  # when the last table was made
    last_md5: str | None
    fixed: Paired | None
    fresh: Paired | None
    run_url: str | None

    @property
    def check(self) -> CheckReport:
        """Worse on the fixed cases is an error: they are the same each time."""
        name, measure = f"{self.subject.name}_not_worse_than_last", self.rule.measure
        if self.fixed is None:
            why = "there is no earlier table" if self.last is None else f"none of them was measured on {self.last}"
            text = f"{measure} {self.figures[f'{FIXED}/{measure}']:.4f} on the fixed cases; {why}"
            return CheckReport(name, True, "ERROR", text, dict(self.figures))
        other = "" if self.last_md5 == self.subject.md5 else f" (another version then: {str(self.last_md5)[:12]})"
        text = f"{measure} changed by {self.fixed.text()} on the fixed cases since {self.last}{other}"
        if self.fresh is not None:
            text += f", by {self.fresh.text()} on fresh ones"
        return CheckReport(name, not self.fixed.is_worse, "ERROR", text, dict(self.figures))


def subject(root: Path, name: str) -> Subject:
    """The champion of a name, or its recorded version where none was promoted yet.

    Raises:
        DataError: when there is neither, or its bytes are gone.
    """
    champion = Champions(root).at(name, CHAMPION)
    if champion is not None:
        return Subject(name, bytes_of(root, champion), champion.md5, champion.number)
    md5 = recorded_md5(Lock.read(root), name)
    return Subject(name, folder_of_version(root, out_of(name).as_posix(), md5), md5, "not promoted")


def reevaluate(root: Path, name: str, log: Log = lambda _line: None) -> Reevaluation:
    """Measure ``reward`` or a policy again, keep the table, and compare it with the last one."""
    params, now = load(root / PARAMS_FILE), datetime.now(UTC)
    target = subject(root, name)
    day = now.date().isoformat()
    tags = {"dvc.md5": target.md5, "profile": params.profile, "paco.version": target.version}
    devices, run = [params.policies.device, params.reward.device], f"nightly/{name}/{params.profile}"
    with (
        one_gpu(devices, f"re-evaluation of {name} in {root}", params, log),
        open_run(root, f"paco/nightly/{name}", run, tags, about=ABOUT) as tracker,
    ):
        table = (
            _reward(root, params, target, day) if name == REWARD else _policy(root, params, target, day, tracker, log)
        )
        result = compare_with_previous(root, params, target, table, now, tracker.url)
        tracker.metrics({k: v for k, v in _metrics(result).items() if not math.isnan(v)})
        tracker.tags({"paco.check": result.check.description, "paco.check.passed": str(result.check.passed).lower()})
        tracker.artifact(table_file(root, name, now))
    return result


def compare_with_previous(
    root: Path, params: Params, target: Subject, table: pd.DataFrame, now: datetime, url: str | None
) -> Reevaluation:
    """Compare a table with the last one and keep it as the new last one.

    Args:
        table: columns set (fixed or fresh), prompt_id, unit and one a measure.
    """
    rule = rule_for(params, target.name)
    before = last_table(root, target.name)
    fixed = fresh = None
    if before is not None:
        fixed, fresh = _paired(table, before, rule.measure), _unpaired(table, before, rule.measure)
    measures = [name for name in table.columns if name not in ("set", "prompt_id", "unit", "md5", "made")]
    figures = {
        f"{cases_name}/{name}": float(table.loc[table["set"] == cases_name, name].mean())
        for cases_name in (FIXED, FRESH)
        for name in measures
        if table.loc[table["set"] == cases_name, name].notna().any()
    }
    file = table_file(root, target.name, now)
    rows = table.assign(md5=target.md5, made=now.isoformat(timespec="seconds"))
    with atomic(file) as part:
        rows.to_parquet(part, index=False)
    last = None if before is None else str(before["made"].iloc[0])
    last_md5 = None if before is None else str(before["md5"].iloc[0])
    return Reevaluation(target, rule, figures, last, last_md5, fixed, fresh, url)


def table_file(root: Path, name: str, now: datetime) -> Path:
    return root / FOLDER / name / f"{now.strftime('%Y%m%dT%H%M%SZ')}.parquet"


def last_table(root: Path, name: str) -> pd.DataFrame | None:
    """The table of the last time."""
    files = sorted((root / FOLDER / name).glob("*.parquet"))
    return read_table(files[-1], remedy="delete it to compare with the time before that") if files else None


def _paired(now: pd.DataFrame, before: pd.DataFrame, measure: str) -> Paired | None:
    """The same cases then and now; None where the measure was not taken, or no case is common."""
    columns = ["prompt_id", "unit", measure]
    if measure not in before:
        return None
    try:
        pairs = pair_up(now.loc[now["set"] == FIXED, columns], before.loc[before["set"] == FIXED, columns])
    except DataError:  # another benchmark: there is nothing to compare with
        return None
    return paired(pairs[f"{measure}_first"], pairs[f"{measure}_second"], [str(p) for p in pairs["prompt_id"]])


def _unpaired(now: pd.DataFrame, before: pd.DataFrame, measure: str) -> Paired | None:
    """Difference of the means of different cases: both sides' prompts are drawn again and again."""
    if measure not in before:
        return None
    scores = [t.loc[t["set"] == FRESH].groupby("prompt_id")[measure] for t in (now, before)]
    sides = [by_prompt.mean().dropna().to_numpy() for by_prompt in scores]
    if min(map(len, sides)) < FEWEST_GROUPS:
        return None
    rng = np.random.default_rng(0)
    means = [side[rng.integers(len(side), size=(RESAMPLES, len(side)))].mean(axis=1) for side in sides]
    low, high = np.quantile(means[0] - means[1], [0.025, 0.975])
    difference = float(sides[0].mean() - sides[1].mean())
    missing = sum(int((by_prompt.size() - by_prompt.count()).sum()) for by_prompt in scores)
    return Paired(difference, float(low), float(high), len(sides[0]) + len(sides[1]), len(sides[0]), missing)


def _metrics(result: Reevaluation) -> dict[str, float]:
    metrics = dict(result.figures)
    for cases_name, test in ((FIXED, result.fixed), (FRESH, result.fresh)):
        if test is not None:
            metrics |= test.metrics(f"change/{cases_name}")
    return metrics


def _policy(root: Path, params: Params, target: Subject, day: str, tracker: Tracker, log: Log) -> pd.DataFrame:
    """Paint and measure the fixed and the fresh prompts; a sheet of the fixed ones goes to the run."""
    judge = subject(root, REWARD).folder
    fixed = measuring.unseen_by_all(root, params, target.name, [target.folder])
    tables, cuts = [], dict[str, Truncation]()
    for cases_name, chosen in ((FIXED, fixed), (FRESH, cases.fresh(root, params, target.folder, fixed, day))):
        if not chosen.records:
            continue
        measured = measuring.measure_policy(root, params, target.name, target.folder, judge, chosen)
        cuts |= {f"{cases_name} {name}": cut for name, cut in measured.cuts.items()}
        tables.append(measured.table.assign(set=cases_name))
        tracker.image(draw_contact_sheet(measured.pictures[:16], 8), f"{cases_name}_prompts")
    tracker.metrics(log_truncations(cuts, log))
    return pd.concat(tables, ignore_index=True)


def _reward(root: Path, params: Params, target: Subject, day: str) -> pd.DataFrame:
    """Ask the served reward: the held-out rankings, and in the storybook world fresh pairs with known truth."""
    with RewardEndpoint.lease(target.folder, params.serving, root) as endpoint, endpoint.client() as client:
        tables = [rank_held_out(root, params, client).assign(set=FIXED)]
        if params.world == "storybook":
            pairs = cases.drawn_pairs(params, day, FRESH_PAIRS)
            scores = client.score([query for _, query, _ in pairs])
            causes = Counter(str(score.cause) for score in scores if score.failed)
            share = params.serving.max_failed_share
            validate_failed_share(causes.total(), len(scores), share, "fresh pairs", causes)
            tables.append(cases.accuracy_on(pairs, scores).assign(set=FRESH))
    return pd.concat(tables, ignore_index=True)


def policies(root: Path) -> list[str]:
    """Policies that can be measured: those with a champion, or with a recorded version."""
    params, champions = load(root / PARAMS_FILE), Champions(root)
    recorded = [name for name in params.policies.recipes if (root / paths.POLICIES / name).is_dir()]
    return list(dict.fromkeys([*recorded, *(n for n in champions.names() if n in params.policies.recipes)]))
