"""Operations: champions, nightly measurements and the audit, as assets that are no stages of ``dvc.yaml``."""

from datetime import timedelta
from typing import Any

import dagster as dg

from dagster_dvc.mirror import DATA_VERSION, USER_PROVIDED, Events
from paco_core.io import paths
from paco_core.operations.promotion import champions as registry
from paco_pipelines.defs.checks import as_result
from paco_pipelines.defs.graph import PROJECT, ROOT, TRANSLATOR, maker

#: Overdue after one missed run, failed after two: the interval of the schedule, and four hours for the run itself.
NIGHTLY = dg.FreshnessPolicy.time_window(warn_window=timedelta(hours=28), fail_window=timedelta(hours=52))
WEEKLY = dg.FreshnessPolicy.time_window(warn_window=timedelta(days=7, hours=4), fail_window=timedelta(days=14, hours=4))
POLICIES = TRANSLATOR.get_partitions_def(PROJECT.groups[maker(paths.POLICIES)])


def _decided(context: dg.AssetExecutionContext, name: str) -> dg.MaterializeResult[Any]:
    """Decide about the present version; the champion after it is the asset's data version."""
    from paco_core.operations.promote import promote

    decision = promote(ROOT, name, log=context.log.info)
    context.log.info(decision.text())
    champion = registry.Champions(ROOT).at(name, registry.CHAMPION)
    sides = {"candidate": decision.candidate, "incumbent": decision.incumbent}
    return dg.MaterializeResult(
        data_version=dg.DataVersion(champion.md5 if champion else "none"),
        metadata={
            "promoted": decision.promoted,
            "reason": decision.reason,
            "champion": f"version {champion.number}" if champion else "none",
            "decision": dg.MetadataValue.json(decision.as_dict()),
            **{
                f"{side}/{measure}": value
                for side, told_of in sides.items()
                if told_of is not None
                for measure, value in told_of.figures.items()
            },
            **({} if decision.test is None else {"difference": decision.test.difference}),
            **({} if decision.test is None else {"interval": f"{decision.test.low:+.4f} to {decision.test.high:+.4f}"}),
            **{f"gate/{gate.name}": "passed" if gate.passed else gate.description for gate in decision.gates},
        },
    )


@dg.asset(
    key=["champion", "reward"],
    deps=[maker(paths.REWARD_MERGED), maker(paths.CONSISTENCY_RANK)],
    group_name="operations",
    kinds={"mlflow"},
    owners=["team:reward"],
    pool="gpu",
)
def champion_reward(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
    """The reward in use: MLflow's alias `champion`.

    It moves to the present version only if the blocking checks pass and its accuracy on held-out rankings is
    better than the incumbent's in a paired bootstrap. `paco rollback reward` moves it back.
    """
    return _decided(context, "reward")


@dg.asset(
    key=["champion", "policies"],
    deps=[
        dg.AssetDep(maker(paths.POLICIES), partition_mapping=dg.IdentityPartitionMapping()),
        maker(paths.T2IS),
        maker(paths.GEDIT),
    ],
    partitions_def=POLICIES,
    group_name="operations",
    kinds={"mlflow"},
    owners=["team:policies"],
    pool="gpu",
)
def champion_policies(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
    """The policy in use of each recipe: MLflow's alias `champion`.

    Candidate and incumbent paint the same unseen prompts from the same noise; the alias moves if the blocking
    checks pass and the candidate wins in a paired bootstrap over prompts and seeds. `paco rollback NAME`
    moves it back.
    """
    return _decided(context, context.partition_key)


def _measured_again(context: dg.AssetExecutionContext, names: list[str]) -> dg.MaterializeResult[Any]:
    from paco_core.operations.reevaluation import reevaluate

    results = [reevaluate(ROOT, name, log=context.log.info) for name in names]
    metadata: dict[str, Any] = {}
    for result in results:
        start = f"{result.subject.name}/" if len(results) > 1 else ""
        metadata |= {f"{start}{measure}": value for measure, value in result.figures.items()}
        metadata[f"{start}version"] = result.subject.version
        if result.run_url:
            metadata[f"{start}mlflow_run"] = dg.MetadataValue.url(result.run_url)
        context.log.info(result.check.description)
    return dg.MaterializeResult(metadata=metadata, check_results=[as_result(*(result.check for result in results))])


def _not_worse(key: list[str]) -> list[dg.AssetCheckSpec]:
    text = "On cases that never change, it is not worse than the last time: paired bootstrap, 95%"
    return [dg.AssetCheckSpec("not_worse_than_last", asset=dg.AssetKey(key), blocking=True, description=text)]


@dg.asset(
    key=["nightly", "reward"],
    deps=[dg.AssetKey(["champion", "reward"])],
    group_name="operations",
    kinds={"mlflow", "http"},
    owners=["team:reward"],
    pool="gpu",
    check_specs=_not_worse(["nightly", "reward"]),
    freshness_policy=NIGHTLY,
)
def nightly_reward(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
    """The served champion reward on the held-out rankings and on fresh pairs; outside DVC's cache."""
    return _measured_again(context, ["reward"])


@dg.asset(
    key=["nightly", "policies"],
    deps=[dg.AssetDep(dg.AssetKey(["champion", "policies"]))],
    group_name="operations",
    kinds={"mlflow", "diffusers"},
    owners=["team:policies"],
    pool="gpu",
    check_specs=_not_worse(["nightly", "policies"]),
    freshness_policy=NIGHTLY,
)
def nightly_policies(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
    """Every champion policy on fixed and on fresh prompts; outside DVC's cache."""
    from paco_core.operations.reevaluation import policies

    return _measured_again(context, policies(ROOT))


@dg.asset(
    key=["audit", "reproducibility"],
    group_name="operations",
    kinds={"dvc"},
    owners=["team:data"],
    freshness_policy=WEEKLY,
    check_specs=[
        dg.AssetCheckSpec(
            "md5s_agree",
            asset=dg.AssetKey(["audit", "reproducibility"]),
            blocking=True,
            description="Cheap stages, run again in a separate folder, give the bytes that dvc.lock records",
        )
    ],
)
def audit_reproducibility(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
    """Stages that need no GPU pool and are in step with their record, run again in a folder of their own."""
    from paco_core.operations.audit import audit

    result = audit(ROOT, log=context.log.info)
    rows = [dg.TableRecord({"out": a.out, "recorded": a.recorded, "again": str(a.again)}) for a in result.outs]
    return dg.MaterializeResult(
        metadata={
            "outs": dg.MetadataValue.table(
                rows, dg.TableSchema([dg.TableColumn(name) for name in ("out", "recorded", "again")])
            ),
            "left_out": dg.MetadataValue.json(result.skipped),
        },
        check_results=[as_result(result.check)],
    )


# --- champions that were made in a terminal ---------------------------------------------------------------


def key_of(name: str) -> tuple[dg.AssetKey, str | None]:
    """The asset that stands for the champion of a name, and its partition."""
    if name == registry.REWARD:
        return dg.AssetKey(["champion", registry.REWARD]), None
    return dg.AssetKey(["champion", "policies"]), name


def mirror_champions(instance: dg.DagsterInstance, champions: registry.Champions | None) -> list[str]:
    """Report the champions that Dagster does not know; a line for each.

    Without them Dagster says of what measures a champion that its upstream assets have never been materialised.

    Args:
        champions: the registry; None where nothing was registered yet.
    """
    if champions is None:
        return []
    events, lines = Events(instance), list[str]()
    for name in champions.names():
        version = champions.at(name, registry.CHAMPION)
        if version is None:
            continue
        key, partition = key_of(name)
        last = events.last(key, partition)
        if last is None or last.version != version.md5:
            instance.report_runless_asset_event(
                dg.AssetMaterialization(
                    asset_key=key,
                    partition=partition,
                    tags={DATA_VERSION: version.md5, USER_PROVIDED: "true"},
                    metadata={"champion": f"version {version.number}", "mirrored": "made outside Dagster"},
                )
            )
            lines.append(f"champion of {name}: version {version.number}")
    return lines
