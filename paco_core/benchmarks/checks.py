"""Checks on what the benchmarks found. Each reads a stage's metrics file; Dagster, tests and people call the same.

They warn and do not block: a run that did not reach its aim is still a result to be looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from paco_core.io.check_report import CheckReport
from paco_core.io.files import read_json

RANKING_GAIN = 0.10  # accuracy of the trained reward above its base
GOLD_GAIN = 0.15  # gold consistency after training above before, at the training size
FOLLOWING_LOSS = 0.05  # gold prompt following may fall by so much

Figures = Mapping[str, float | None]
NOTHING = "the stage had nothing to measure; its out says why (skipped.json)"


def reward_ranks_better_than_base(metrics: Path) -> CheckReport:
    """The trained reward beats its base on held-out rankings by the aim, and the interval excludes zero.

    Args:
        metrics: metrics file of the stage ``consistency_rank``.

    Raises:
        DataError: when the file is missing.
    """
    figures = read_json(metrics)
    if not figures:
        return CheckReport.skipped("reward_ranks_better_than_base", "WARN", NOTHING)
    gain, low = figures["reward_minus_base.accuracy"], figures["reward_minus_base.accuracy_low"]
    return CheckReport(
        name="reward_ranks_better_than_base",
        passed=_above(gain, RANKING_GAIN) and _above(low, 0.0),
        severity="WARN",
        description=(
            f"held-out ranking accuracy {_text(figures['base.accuracy'])} -> {_text(figures['reward.accuracy'])}, "
            f"gain {_text(gain)} (95% interval from {_text(low)}), aim {RANKING_GAIN} or more"
        ),
        metadata=_known({"gain": gain, "gain_low": low, "instances": figures["instances"]}),
    )


def every_ranking_was_scored(metrics: Path) -> CheckReport:
    """No judge failed on any instance; a failed one is left out of the means, so many would bias them.

    Args:
        metrics: metrics file of the stage ``consistency_rank``.

    Raises:
        DataError: when the file is missing.
    """
    figures = read_json(metrics)
    if not figures:
        return CheckReport.skipped("every_ranking_was_scored", "WARN", NOTHING)
    suffix = ".unscorable_share"
    failed = {k.removesuffix(suffix): v for k, v in figures.items() if k.endswith(suffix) and v != 0.0}
    words = ", ".join(f"{name} on {_text(share)} of the instances" for name, share in failed.items())
    return CheckReport(
        name="every_ranking_was_scored",
        passed=not failed,
        severity="WARN",
        description=f"failed: {words}" if failed else "every judge scored every instance",
        metadata=_known({f"{name}_share": share for name, share in failed.items()}),
    )


def every_question_was_answered(metrics: Path) -> CheckReport:
    """No question of T2IS-Bench failed; a set with a failed one has no figure in that dimension.

    Args:
        metrics: metrics file of the stage ``t2is_bench``.

    Raises:
        DataError: when the file is missing.
    """
    figures = read_json(metrics)
    failed = figures["failed"]
    return CheckReport(
        name="every_question_was_answered",
        passed=failed == 0,
        severity="WARN",
        description=f"{failed:g} questions failed" if failed else "every judge answered every question",
        metadata=_known({"failed": failed, "sets": figures["sets"]}),
    )


def policy_gains_consistency(metrics: Path, policy: str, train_size: int, size: int) -> CheckReport:
    """Training lifted gold consistency (the judge's, where there is no gold metric) on unseen prompts.

    At the training size the gain must reach the aim; at any other its interval must exclude zero.

    Args:
        metrics: metrics file of the stage ``t2is``.

    Raises:
        DataError: when the file is missing.
    """
    figures = read_json(metrics)
    gold = f"{policy}.px{size}.gold_consistency"
    key = gold if f"{gold}.change" in figures else f"{policy}.px{size}.consistency"
    gain, low = figures.get(f"{key}.change"), figures.get(f"{key}.change_low")
    aim = GOLD_GAIN if size == train_size else 0.0
    return CheckReport(
        name=f"{policy}_gains_consistency_at_{size}px",
        passed=_above(gain, aim) and _above(low, 0.0),
        severity="WARN",
        description=(
            f"{key.rpartition('.')[2]} at {size} px {_text(figures.get(f'{key}.before'))} -> "
            f"{_text(figures.get(f'{key}.after'))}, gain {_text(gain)} (95% interval from {_text(low)})"
            + (f", aim {aim} or more" if aim else ", aim: interval above zero")
        ),
        metadata=_known({"gain": gain, "gain_low": low}),
    )


def policy_still_follows_prompts(metrics: Path, policy: str, size: int) -> CheckReport:
    """Gold prompt following (CLIP's text match, where there is no gold metric) did not fall.

    Args:
        metrics: metrics file of the stage ``t2is``.

    Raises:
        DataError: when the file is missing.
    """
    figures = read_json(metrics)
    gold = f"{policy}.px{size}.gold_following"
    key = gold if f"{gold}.change" in figures else f"{policy}.px{size}.clip_t"
    change = figures.get(f"{key}.change")
    return CheckReport(
        name=f"{policy}_still_follows_prompts_at_{size}px",
        passed=change is not None and change >= -FOLLOWING_LOSS,
        severity="WARN",
        description=(f"{key.rpartition('.')[2]} at {size} px changed by {_text(change)}, allowed −{FOLLOWING_LOSS}"),
        metadata=_known({"change": change}),
    )


def policy_gains_edits(metrics: Path, policy: str, size: int) -> CheckReport:
    """Training lifted the gold editing score (the reward, where there is no gold metric) on unseen pictures.

    Args:
        metrics: metrics file of the stage ``gedit``.

    Raises:
        DataError: when the file is missing.
    """
    figures = read_json(metrics)
    gold = f"{policy}.px{size}.gold_editing"
    key = gold if f"{gold}.change" in figures else f"{policy}.px{size}.editing"
    gain, low = figures.get(f"{key}.change"), figures.get(f"{key}.change_low")
    return CheckReport(
        name=f"{policy}_gains_edits_at_{size}px",
        passed=_above(gain, 0.0),
        severity="WARN",
        description=(
            f"{key.rpartition('.')[2]} at {size} px {_text(figures.get(f'{key}.before'))} -> "
            f"{_text(figures.get(f'{key}.after'))}, gain {_text(gain)} (95% interval from {_text(low)}), "
            "aim: above zero"
        ),
        metadata=_known({"gain": gain, "gain_low": low}),
    )


def figures_hold(now: Figures, before: Figures | None) -> CheckReport:
    """No figure moved further than chance explains: its 95% interval still overlaps that of the last version.

    Compared is every figure ``x`` that comes with ``x_low`` and ``x_high`` in both.

    Args:
        now: figures of the present version, as in the stage's metrics file.
        before: those of the version before, None when there is none.
    """
    name = "figures_hold"
    if before is None:
        return CheckReport(name, True, "WARN", "there is no earlier version to compare with", {"compared": 0})
    kept = [k for k in now if all(f"{k}{end}" in side for end in ("_low", "_high") for side in (now, before))]
    compared = [k for k in kept if k in before and None not in (now[k], before[k])]
    moved = {k: (before[k], now[k]) for k in compared if _apart(k, now, before)}
    words = "; ".join(f"{k} {_text(a)} -> {_text(b)}" for k, (a, b) in moved.items())
    return CheckReport(
        name=name,
        passed=not moved,
        severity="WARN",
        description=f"moved beyond their intervals: {words}" if moved else f"{len(compared)} figures hold",
        metadata={"compared": len(compared), "moved": len(moved)},
    )


def _apart(key: str, now: Figures, before: Figures) -> bool:
    ends = [side[f"{key}{end}"] for side in (now, before) for end in ("_low", "_high")]
    if any(end is None for end in ends):
        return False
    low, high, low_before, high_before = (float(end) for end in ends if end is not None)
    return low > high_before or high < low_before


def report_is_complete(report: Path) -> CheckReport:
    """Nothing is missing from the page.

    Args:
        report: ``data/report/metrics.json``.

    Raises:
        DataError: when the file is missing.
    """
    found = read_json(report)
    missing, left_out = found["missing"], found.get("skipped", [])  # which earlier reports lack
    words = "; ".join(f"{m['what']}: run `{m['make']}`" for m in missing)
    every = "every part of the page has its data"
    if left_out:
        every += f", but for {len(left_out)} that were skipped: {'; '.join(s['reason'] for s in left_out)}"
    return CheckReport(
        name="report_is_complete",
        passed=not missing,
        severity="WARN",
        description=f"missing: {words}" if missing else every,
        metadata={"missing": len(missing), "skipped": len(left_out)},
    )


def _above(value: float | None, bound: float) -> bool:
    return value is not None and value >= bound and value > 0.0


def _text(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f}"


def _known(values: Figures) -> dict[str, str | int | float]:
    return {name: "not measured" if value is None else value for name, value in values.items()}
