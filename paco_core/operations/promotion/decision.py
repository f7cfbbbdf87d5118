"""Whether a candidate becomes champion: its gates, its figures, and the paired test against the incumbent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from paco_core.io.answer import to_jsonable
from paco_core.io.check_report import CheckReport
from paco_core.operations.promotion.measuring import pair_up
from paco_core.operations.promotion.paired import Paired, paired
from paco_core.operations.promotion.shared_gain import gains, unshared
from paco_core.tasks.table import task_of

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.config.params import Params
    from paco_core.config.params_benchmarks import ConsistencyRankParams, GeditParams, T2isParams


@dataclass(frozen=True)
class Rule:
    """What decides: a measure that must rise, and measures that must not fall."""

    measure: str
    guards: tuple[str, ...]


def rule_for(params: Params, name: str) -> Rule:
    """Accuracy on held-out rankings for the reward; a policy's consistency or editing, by truth where there is one."""
    if name == "reward":
        return Rule("accuracy", ())
    recipe = params.policies.recipes[name]
    success = task_of(recipe).success(params.world)
    measured = params.world == "storybook" or success.constraint in recipe.rewards.terms
    return Rule(success.goal, (success.constraint,) if success.constraint and measured else ())


def benchmark_of(params: Params, name: str) -> ConsistencyRankParams | GeditParams | T2isParams:
    """The parameters of the benchmark that measures the reward, or a policy."""
    if name == "reward":
        return params.consistency_rank
    return task_of(params.policies.recipes[name]).numbers(params)


@dataclass(frozen=True)
class Side:
    """One version: which, and its mean figures."""

    version: str
    md5: str
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Decision:
    """What was decided and why; ``as_dict`` is what MLflow and Dagster keep of it."""

    name: str
    promoted: bool
    reason: str
    rule: Rule
    candidate: Side
    incumbent: Side | None
    gates: tuple[CheckReport, ...]
    test: Paired | None = None
    guards: Mapping[str, Paired] = field(default_factory=dict)
    judges: Mapping[str, Paired] = field(default_factory=dict)  # gains by both judges of the hack meter, and drift
    cut_prompts: int = 0  # of the cases, longer than the policy reads

    def as_dict(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = to_jsonable(asdict(self))
        return cleaned

    def metrics(self) -> dict[str, float]:
        """Flat figures for MLflow."""
        metrics = {"promoted": float(self.promoted), "cut_prompts": float(self.cut_prompts)}
        metrics |= {f"candidate/{name}": value for name, value in self.candidate.figures.items()}
        if self.incumbent is not None:
            metrics |= {f"incumbent/{name}": value for name, value in self.incumbent.figures.items()}
        for name, test in {self.rule.measure: self.test, **self.guards, **self.judges}.items():
            if test is not None:
                metrics |= test.metrics(f"difference/{name}")
        return metrics

    def text(self) -> str:
        lines = [f"{self.name} version {self.candidate.version}: {self.reason}"]
        for gate in self.gates:
            lines.append(f"  gate {gate.name}: {'passed' if gate.passed else 'FAILED'} ({gate.description})")
        for name, test in {self.rule.measure: self.test, **self.guards}.items():
            if test is not None and self.incumbent is not None:
                mine, theirs = self.candidate.figures[name], self.incumbent.figures[name]
                lines.append(
                    f"  {name}: candidate {mine:.4f}, incumbent (version {self.incumbent.version}) {theirs:.4f}, "
                    f"difference {test.text()} over {test.prompts} prompts, {test.cases} cases"
                )
        lines += [f"  {name}: difference {test.text()}" for name, test in self.judges.items()]
        return "\n".join(lines)


def blocked(name: str, rule: Rule, candidate: Side, incumbent: Side | None, gates: Sequence[CheckReport]) -> Decision:
    """A candidate that a gate stops is not measured."""
    failed = ", ".join(gate.name for gate in gates if not gate.passed)
    return Decision(
        name, False, f"stays challenger: blocking checks failed ({failed})", rule, candidate, incumbent, tuple(gates)
    )


def first(name: str, rule: Rule, candidate: Side, gates: Sequence[CheckReport]) -> Decision:
    """There is nobody to beat."""
    return Decision(name, True, "becomes the first champion", rule, candidate, None, tuple(gates))


def decide(
    name: str,
    rule: Rule,
    candidate: tuple[str, str, pd.DataFrame],
    incumbent: tuple[str, str, pd.DataFrame],
    gates: Sequence[CheckReport],
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> Decision:
    """Compare two measured versions, each (version, md5, table), on the cases that both have.

    The candidate wins when the whole 95% interval of the measure's difference lies above zero, that of no guard lies
    below it, and the held-out judge shares the gain (:func:`.shared_gain.unshared`) where the recipe has one.
    """
    pairs = pair_up(candidate[2], incumbent[2])
    common = {m: pairs[[f"{m}_first", f"{m}_second"]].dropna() for m in (rule.measure, *rule.guards)}
    sides = [
        Side(side[0], side[1], {m: float(scores[f"{m}_{suffix}"].mean()) for m, scores in common.items()})
        for side, suffix in ((candidate, "first"), (incumbent, "second"))
    ]
    tests = {
        measure: paired(
            pairs[f"{measure}_first"], pairs[f"{measure}_second"], [str(p) for p in pairs["prompt_id"]],
            resamples=resamples, seed=seed,
        )
        for measure in (rule.measure, *rule.guards)
    }  # fmt: skip
    test, guards = tests[rule.measure], {g: tests[g] for g in rule.guards}
    judges = gains(pairs, resamples=resamples, seed=seed)
    unshared_reason = unshared(judges)
    fallen = [g for g, t in guards.items() if t.is_worse]
    if not test.is_better:
        reason = f"stays challenger: {rule.measure} is not shown to be better, {test.text()}"
    elif fallen:
        reason = f"stays challenger: {rule.measure} rose {test.text()}, but {fallen[0]} fell {guards[fallen[0]].text()}"
    elif unshared_reason:
        reason = f"stays challenger: {rule.measure} rose {test.text()}, but {unshared_reason}"
    else:
        reason = f"becomes champion: {rule.measure} rose {test.text()}"
    won = test.is_better and not fallen and unshared_reason is None
    return Decision(name, won, reason, rule, sides[0], sides[1], tuple(gates), test, guards, judges)
