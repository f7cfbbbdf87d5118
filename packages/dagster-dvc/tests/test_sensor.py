"""After one tick Dagster's stale marks are `dvc status`'s changed stages; a second tick reports nothing."""

from pathlib import Path

import dagster as dg
import pytest

import dvc_graphs as graphs
from dagster_dvc import DvcProject, DvcResource, build_dvc_assets, build_in_sync_checks
from dagster_dvc.sensor import mirror_lock

pytestmark = pytest.mark.slow


def test_a_chain_through_its_life(tmp_path: Path) -> None:
    root = graphs.make(tmp_path, graphs.CHAIN)
    with dg.DagsterInstance.ephemeral() as instance:
        assert graphs.agree(root, instance) == {"a", "b", "c"}
        graphs.dvc(root, "repro", "-q")
        assert graphs.agree(root, instance) == set()
        (root / "put.py").write_text(graphs.PUT + "# the same result\n")
        assert graphs.agree(root, instance) == {"a", "b", "c"}
        graphs.dvc(root, "repro", "-q")
        assert graphs.agree(root, instance) == set()
        (root / "params.yaml").write_text("a: {text: bye}\n")
        assert graphs.agree(root, instance) == {"a"}
        graphs.dvc(root, "repro", "-q", "--single-item", "a")
        assert graphs.agree(root, instance) == {"b"}
        # A run in Dagster after a run in the terminal.
        defs = graphs.definitions(root)
        dg.materialize(list(defs.assets or []), resources=defs.resources, selection='key:"b"', instance=instance)
        assert graphs.agree(root, instance) == {"c"}
        (root / "params.yaml").write_text("a: {text: hello}\n")
        assert graphs.agree(root, instance) == {"a", "c"}
    with dg.DagsterInstance.ephemeral() as cold:
        assert graphs.agree(root, cold) == {"a", "c"}


def test_a_location_that_was_loaded_before_a_change_says_so(tmp_path: Path) -> None:
    """Its code versions are those of the load: what ran in a terminal since then is stale until it is reloaded."""
    root = graphs.make(tmp_path, graphs.CHAIN)
    with dg.DagsterInstance.ephemeral() as instance:
        graphs.dvc(root, "repro", "-q")
        loaded, _ = graphs.tick(root, instance)
        (root / "params.yaml").write_text("a: {text: bye}\n")
        graphs.dvc(root, "repro", "-q")
        repository = loaded.get_repository_def()
        context = dg.build_sensor_context(instance=instance, repository_def=repository)
        message = repository.get_sensor_def("dvc_lock").evaluate_tick(context).skip_message or ""
        assert "a: another run is recorded" in message
        assert "a: changed since the code location was loaded; reload it" in message
        assert graphs.stale(loaded, instance, DvcProject(root)) == {"a"}
        assert graphs.agree(root, instance) == set(), "after a reload"


def test_items_that_differ_and_folders_that_gather_them(tmp_path: Path) -> None:
    root = graphs.make_items(tmp_path)
    graphs.dvc(root, "repro", "-q")
    with dg.DagsterInstance.ephemeral() as instance:
        assert graphs.agree(root, instance) == {"clock"}
        text = (root / "params.yaml").read_text()
        (root / "params.yaml").write_text(text.replace("a: 1e-3", "a: 2e-3"))
        assert graphs.agree(root, instance) == {"clock", "shard@a"}
        (root / "params.yaml").write_text(text.replace("shards: [a, 2", "shards: [a, b, 2").replace("{a:", "{b: 0, a:"))
        graphs.dvc(root, "repro", "-q", "--single-item", "shard@b")
        trained = {s.name for s in DvcProject(root).groups["train"].stages}
        assert graphs.agree(root, instance) == {"clock", *trained}
        graphs.dvc(root, "repro", "-q", "--single-item", "train@small-1")
        assert graphs.agree(root, instance) == {"clock", *trained} - {"train@small-1"}
    with dg.DagsterInstance.ephemeral() as cold:
        assert graphs.agree(root, cold) == {"clock", *trained} - {"train@small-1"}


def test_projects_that_share_an_instance_report_once_each(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in ("one", "two")]
    for root, text in zip(roots, ("hello", "bye"), strict=True):
        graphs.make(root, graphs.CHAIN, f"a: {{text: {text}}}\n")
        graphs.dvc(root, "repro", "-q")
    graphs.dvc(roots[1], "repro", "-q")
    (roots[1] / "params.yaml").write_text("a: {text: changed}\n")  # in_sync_with_dvc fails in one of them
    with dg.DagsterInstance.ephemeral() as instance:
        first = [graphs.tick(root, instance)[1] for root in roots]
        assert all("unknown to Dagster" in line for line in first)
        graphs.tick(roots[0], instance)  # its checks are about the newest event, which the other reported
        assert [graphs.tick(root, instance)[1] for root in (*roots, *roots)] == ["Dagster and dvc.lock agree"] * 4
        (roots[0] / "params.yaml").write_text("a: {text: new}\n")
        graphs.dvc(roots[0], "repro", "-q", "--single-item", "a")
        assert "a: another run is recorded" in graphs.tick(roots[0], instance)[1]
        assert "another run" not in graphs.tick(roots[1], instance)[1]
        assert [graphs.tick(root, instance)[1] for root in roots] == ["Dagster and dvc.lock agree"] * 2


CHECKED = """
stages:
  a:
    cmd: python put.py a.out ${a.text} && python put.py a.json "{}"
    deps: [put.py]
    params: [a]
    outs: [a.out]
    metrics: [a.json: {cache: false}]
"""


def checked(root: Path, calls: list[str]) -> dg.RepositoryDefinition:
    """The assets of a project, with a check that passes, one that blocks and fails, and one that is broken."""

    @dg.asset_check(asset="a", description="Says what it saw")
    def sees(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        calls.append("sees")
        assert context.instance.get_latest_materialization_event(dg.AssetKey("a")) is not None
        return dg.AssetCheckResult(passed=True, metadata={"text": (root / "a.out").read_text()})

    @dg.asset_check(asset="a", blocking=True)
    def refuses() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=False, description="no", severity=dg.AssetCheckSeverity.WARN)

    @dg.asset_check(asset="a")
    def broken() -> dg.AssetCheckResult:
        raise ValueError("lost")

    project = DvcProject(root)
    return dg.Definitions(
        assets=build_dvc_assets(project),
        asset_checks=[sees, refuses, broken, *build_in_sync_checks(project)],
        resources={"dvc": DvcResource(project_dir=str(root))},
    ).get_repository_def()


def results(instance: dg.DagsterInstance, repository: dg.RepositoryDefinition) -> dict[str, dg.AssetCheckEvaluation]:
    executions = instance.event_log_storage.get_latest_asset_check_execution_by_key(
        list(repository.asset_graph.asset_check_keys)
    )
    evaluations = [record.event.asset_check_evaluation for record in executions.values() if record.event is not None]
    return {evaluation.check_name: evaluation for evaluation in evaluations if evaluation is not None}


def test_a_mirrored_version_has_its_check_results(tmp_path: Path) -> None:
    root = graphs.make(tmp_path, CHECKED)
    calls: list[str] = []
    repository = checked(root, calls)
    with dg.DagsterInstance.ephemeral() as instance:
        assert mirror_lock(DvcProject(root), instance, repository) == [] and calls == [], "nothing to look at yet"
        graphs.dvc(root, "repro", "-q")
        lines = mirror_lock(DvcProject(root), instance, repository)
        assert set(lines[1:]) == {
            "a: sees passed", "a: refuses failed", "a: broken failed", "a: in_sync_with_dvc passed",
        }  # fmt: skip
        evaluations = results(instance, repository)
        assert evaluations["sees"].passed and evaluations["sees"].metadata["text"].value == "hello"
        assert (
            not evaluations["refuses"].passed
            and evaluations["refuses"].blocking
            and evaluations["refuses"].description == "no"
        )
        assert "lost" in (evaluations["broken"].description or "")
        target = evaluations["sees"].target_materialization_data
        event = instance.fetch_materializations(dg.AssetKey("a"), limit=1).records[0]
        assert target is not None and target.storage_id == event.storage_id
        assert mirror_lock(DvcProject(root), instance, repository) == [] and calls == ["sees"], "each is asked once"
        (root / "params.yaml").write_text("a: {text: bye}\n")
        mirror_lock(DvcProject(root), instance, repository)
        assert not results(instance, repository)["in_sync_with_dvc"].passed
        # A run in Dagster asks them itself.
        result = repository.get_implicit_global_asset_job_def().execute_in_process(
            instance=instance, raise_on_error=False
        )
        assert len(result.get_asset_check_evaluations()) == 3 and calls == ["sees"] * 2
        assert mirror_lock(DvcProject(root), instance, repository) == []


def test_a_run_under_way_asks_its_checks_itself(tmp_path: Path) -> None:
    """Dagster shows the evaluation that was planned or reported last, so one more would hide the run's."""
    root = graphs.make(tmp_path, CHECKED)
    graphs.dvc(root, "repro", "-q")
    calls: list[str] = []
    repository = checked(root, calls)
    with dg.DagsterInstance.ephemeral() as instance:
        job = repository.get_implicit_global_asset_job_def()
        run = instance.create_run_for_job(job)
        planned = instance.event_log_storage.get_latest_asset_check_execution_by_key(
            list(repository.asset_graph.asset_check_keys)
        )
        assert len(planned) == 4, "it planned every check"
        assert mirror_lock(DvcProject(root), instance, repository) == ["a: unknown to Dagster"] and calls == []
        instance.report_run_canceled(run)
        assert len(mirror_lock(DvcProject(root), instance, repository)) == 4 and calls == ["sees"]


def test_a_version_whose_data_come_later_is_looked_at_then(tmp_path: Path) -> None:
    """`git pull` brings `dvc.lock` and the figures, `dvc pull` the data, and the mirror may look in between."""
    root = graphs.make(tmp_path, CHECKED)
    graphs.dvc(root, "repro", "-q")
    away = tmp_path / "away"
    (root / "a.out").rename(away)
    repository = checked(root, [])
    with dg.DagsterInstance.ephemeral() as instance:
        lines = mirror_lock(DvcProject(root), instance, repository)
        assert lines == ["a: unknown to Dagster", "a: in_sync_with_dvc failed"]
        (only,) = results(instance, repository).values()
        assert only.description == "a: a.out is missing", "no check looks at what is not there"
        assert mirror_lock(DvcProject(root), instance, repository) == []
        away.rename(root / "a.out")
        assert mirror_lock(DvcProject(root), instance, repository)[0] == "a: its outs are there now"
        assert results(instance, repository)["sees"].passed
        event = instance.get_latest_materialization_event(dg.AssetKey("a"))
        assert event is not None and event.asset_materialization is not None
        assert event.asset_materialization.metadata["dvc/files"].value == 1
        assert mirror_lock(DvcProject(root), instance, repository) == []
