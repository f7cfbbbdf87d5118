"""Checks on what the benchmarks found. Each reads the metrics file of a stage, whatever calls it.

They warn and do not block: a run that did not reach its aim is still a result to be looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from paco_core.config.measures import COPIES
from paco_core.config.params import PARAMS_FILE, PolicyRecipe, load
from paco_core.io import paths
from paco_core.io.check_report import CheckFinding, CheckReport, Severity, check, skipped
from paco_core.io.files import read_json
from paco_core.tasks.base import Task
from paco_core.tasks.edits import EDITS
from paco_core.tasks.sets import SETS
from paco_core.tasks.table import recipes_of

RANKING_GAIN = 0.10  # accuracy of the trained reward above its base
GOLD_GAIN = 0.15  # gold consistency after training above before, at the training size
FOLLOWING_LOSS = 0.05  # gold prompt following may fall by so much

WARN: Severity = "WARN"
Figures = Mapping[str, float | None]
NOTHING = "the stage had nothing to measure; its out says why (skipped.json)"


@check(WARN)
def reward_ranks_better_than_base(metrics: Path) -> CheckFinding:
    """The trained reward beats its base on held-out rankings by the aim, and the interval excludes zero."""
    figures = read_json(metrics)
    if not figures:
        return skipped(NOTHING)
    gain, low = figures["reward_minus_base.accuracy"], figures["reward_minus_base.accuracy_low"]
    return CheckFinding(
        _above(gain, RANKING_GAIN) and _above(low, 0.0),
        f"held-out ranking accuracy {_text(figures['base.accuracy'])} -> {_text(figures['reward.accuracy'])}, "
        f"gain {_text(gain)} (95% interval from {_text(low)}), aim {RANKING_GAIN} or more",
        _present({"gain": gain, "gain_low": low, "instances": figures["instances"]}),
    )


@check(WARN)
def every_ranking_was_scored(metrics: Path) -> CheckFinding:
    """No judge failed on any instance; a failed one is left out of the means, so many would bias them."""
    figures = read_json(metrics)
    if not figures:
        return skipped(NOTHING)
    suffix = ".unscorable_share"
    failed = {k.removesuffix(suffix): v for k, v in figures.items() if k.endswith(suffix) and v != 0.0}
    words = ", ".join(f"{name} on {_text(share)} of the instances" for name, share in failed.items())
    return CheckFinding(
        not failed,
        f"failed: {words}" if failed else "every model scored every instance",
        _present({f"{name}_share": share for name, share in failed.items()}),
    )


@check(WARN)
def every_question_was_answered(metrics: Path) -> CheckFinding:
    """No question of T2IS-Bench, or about a story, failed; what has a failed one has no figure in that dimension."""
    figures = read_json(metrics)
    if not figures:
        return skipped(NOTHING)
    failed = figures["failed"]
    text = f"{failed:g} questions failed" if failed else "every evaluator answered every question"
    return CheckFinding(
        failed == 0, text, _present({k: figures[k] for k in ("failed", "sets", "stories") if k in figures})
    )


def policies_gain_consistency(root: Path) -> list[CheckReport]:
    """:func:`policy_gains_consistency` of a project's painters of sets, at each size."""
    file = root / paths.metrics_file(paths.T2IS.name)
    return [policy_gains_consistency(file, name, recipe.train_size, size) for name, recipe, size in _sizes(root, SETS)]


def policies_still_follow_prompts(root: Path) -> list[CheckReport]:
    """:func:`policy_still_follows_prompts` of a project's painters of sets, at each size."""
    file = root / paths.metrics_file(paths.T2IS.name)
    return [policy_still_follows_prompts(file, name, size) for name, _, size in _sizes(root, SETS)]


def policies_keep_characters(root: Path) -> list[CheckReport]:
    """:func:`policy_keeps_characters` of a project's painters of sets, at each size."""
    file = root / paths.metrics_file(paths.T2IS.name)
    return [policy_keeps_characters(file, name, size) for name, _, size in _sizes(root, SETS)]


def policies_gain_edits(root: Path) -> list[CheckReport]:
    """:func:`policy_gains_edits` of a project's editors, at each size."""
    file = root / paths.metrics_file(paths.GEDIT.name)
    return [policy_gains_edits(file, name, size) for name, _, size in _sizes(root, EDITS)]


def _sizes(root: Path, task: Task) -> Iterator[tuple[str, PolicyRecipe, int]]:
    """Recipes of a task, by name, with each size at which they are evaluated."""
    for name, recipe in recipes_of(task, load(root / PARAMS_FILE).policies).items():
        yield from ((name, recipe, size) for size in recipe.eval_sizes)


def policy_gains_consistency(metrics: Path, policy: str, train_size: int, size: int) -> CheckReport:
    """Training lifted gold consistency (the judge's, where there is no gold metric) on unseen prompts.

    At the training size the gain must reach the aim; at any other its interval must exclude zero.

    Args:
        metrics: metrics file of the stage ``t2is``.

    Raises:
        DataError: when the file is missing.
    """
    aim = GOLD_GAIN if size == train_size else 0.0
    return _gain(
        f"{policy}_gains_consistency_at_{size}px", metrics, policy, size, ("gold_consistency", "consistency"), aim
    )


def policy_gains_edits(metrics: Path, policy: str, size: int) -> CheckReport:
    """Training lifted the gold editing score (the reward, where there is no gold metric) on unseen pictures.

    Args:
        metrics: metrics file of the stage ``gedit``.

    Raises:
        DataError: when the file is missing.
    """
    return _gain(f"{policy}_gains_edits_at_{size}px", metrics, policy, size, ("gold_editing", "editing"), 0.0)


def _gain(name: str, metrics: Path, policy: str, size: int, measures: tuple[str, str], aim: float) -> CheckReport:
    """A gain of the first measure, or the second where there is no gold metric, is certain and reaches the aim."""
    figures, measure, key = _measured(metrics, policy, size, measures)
    gain, low = figures.get(f"{key}.change"), figures.get(f"{key}.change_low")
    return CheckReport(
        name,
        _above(gain, aim) and _above(low, 0.0),
        WARN,
        f"{measure} at {size} px {_text(figures.get(f'{key}.before'))} -> {_text(figures.get(f'{key}.after'))}, gain "
        f"{_text(gain)} (95% interval from {_text(low)}), aim{f' {aim} or more' if aim else ': interval above zero'}",
        _present({"gain": gain, "gain_low": low}),
    )


def policy_still_follows_prompts(metrics: Path, policy: str, size: int) -> CheckReport:
    """Gold prompt following (CLIP's text match, where there is no gold metric) did not fall.

    Args:
        metrics: metrics file of the stage ``t2is``.

    Raises:
        DataError: when the file is missing.
    """
    figures, measure, key = _measured(metrics, policy, size, ("gold_following", "clip_t"))
    change = figures.get(f"{key}.change")
    return CheckReport(
        f"{policy}_still_follows_prompts_at_{size}px",
        change is not None and change >= -FOLLOWING_LOSS,
        WARN,
        f"{measure} at {size} px changed by {_text(change)}, allowed −{FOLLOWING_LOSS}",
        _present({"change": change}),
    )


def policy_keeps_characters(metrics: Path, policy: str, size: int) -> CheckReport:
    """Training made panels more like the characters, and not more panels into copies.

    Measured by the identity in panels that are no copies, or without ground truth by the reward model. The interval of
    the gain must exclude zero, and the interval of the rise of copies must not.

    Args:
        metrics: metrics file of the stage ``t2is``.

    Raises:
        DataError: when the file is missing.
    """
    name, copies = f"{policy}_keeps_characters_at_{size}px", f"{policy}.px{size}.{COPIES}"
    figures, measure, key = _measured(metrics, policy, size, ("gold_identity_new", "characters"))
    if not all(f"{place}.change" in figures for place in (key, copies)):
        return CheckReport.skipped(name, WARN, "nothing measures characters of the prompts")
    values = {
        "gain": figures[f"{key}.change"],
        "gain_low": figures[f"{key}.change_low"],
        "more_copies": figures[f"{copies}.change"],
        "more_copies_low": figures[f"{copies}.change_low"],
    }
    return CheckReport(
        name,
        _above(values["gain_low"], 0.0) and not _above(values["more_copies_low"], 0.0),
        WARN,
        f"{measure} at {size} px {_text(figures[f'{key}.before'])} -> {_text(figures[f'{key}.after'])}, gain "
        f"{_text(values['gain'])} (95% interval from {_text(values['gain_low'])}); copied panels changed by "
        f"{_text(values['more_copies'])} (from {_text(values['more_copies_low'])}); aim: only the first interval is "
        "above zero",
        _present(values),
    )


def _measured(metrics: Path, policy: str, size: int, measures: tuple[str, str]) -> tuple[Figures, str, str]:
    """The figures; the first of two measures where a policy has it at a size, else the second; and its key."""
    figures: Figures = read_json(metrics)
    keys = {measure: f"{policy}.px{size}.{measure}" for measure in measures}
    measure = measures[0] if f"{keys[measures[0]]}.change" in figures else measures[1]
    return figures, measure, keys[measure]


def figures_hold(now: Figures, before: Figures | None) -> CheckReport:
    """No figure moved further than chance explains: its 95% interval still overlaps that of the last version.

    Compared is every figure ``x`` that comes with ``x_low`` and ``x_high`` in both.

    Args:
        now: figures of the present version, as in the stage's metrics file.
        before: those of the version before, None when there is none.
    """
    name = "figures_hold"
    if before is None:
        return CheckReport(name, True, WARN, "there is no earlier version to compare with", {"compared": 0})
    compared_keys = [k for k in now if all(f"{k}{end}" in side for end in ("_low", "_high") for side in (now, before))]
    compared = [k for k in compared_keys if k in before and None not in (now[k], before[k])]
    moved = {k: (before[k], now[k]) for k in compared if _apart(k, now, before)}
    words = "; ".join(f"{k} {_text(a)} -> {_text(b)}" for k, (a, b) in moved.items())
    text = f"moved beyond their intervals: {words}" if moved else f"{len(compared)} figures hold"
    return CheckReport(name, not moved, WARN, text, {"compared": len(compared), "moved": len(moved)})


def _apart(key: str, now: Figures, before: Figures) -> bool:
    ends = [side[f"{key}{end}"] for side in (now, before) for end in ("_low", "_high")]
    if any(end is None for end in ends):
        return False
    low, high, low_before, high_before = (float(end) for end in ends if end is not None)
    return low > high_before or high < low_before


@check(WARN)
def report_is_complete(report: Path) -> CheckFinding:
    """Nothing is missing from the page, whose ``metrics.json`` this is."""
    metrics = read_json(report)
    missing, left_out = metrics["missing"], metrics.get("skipped", [])  # which earlier reports lack
    words = "; ".join(f"{m['what']}: run `{m['make']}`" for m in missing)
    every = "every part of the page has its data"
    if left_out:
        every += f", but for {len(left_out)} that were skipped: {'; '.join(s['reason'] for s in left_out)}"
    text = f"missing: {words}" if missing else every
    return CheckFinding(not missing, text, {"missing": len(missing), "skipped": len(left_out)})


def _above(value: float | None, bound: float) -> bool:
    return value is not None and value >= bound and value > 0.0


def _text(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f}"


def _present(values: Figures) -> dict[str, str | int | float]:
    return {name: "not measured" if value is None else value for name, value in values.items()}
