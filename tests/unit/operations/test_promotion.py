"""Champions: moved only by a better version, with its evidence, and given back by one command.

The operations behind ``paco promote``, ``paco champions``, ``paco rollback`` and ``paco fetch NAME@champion``.
"""

from __future__ import annotations

import json
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException

from dvc_project.lockfile import Lock
from paco_core.cli import provenance
from paco_core.config.params import HackMeter, load
from paco_core.config.params_rewards import RewardTerm
from paco_core.io.check_report import CheckReport
from paco_core.io.files import DataError
from paco_core.operations import promote as command
from paco_core.operations.named import copy_named_files
from paco_core.operations.promotion import decision as decisions
from paco_core.operations.promotion.champions import CHALLENGER, CHAMPION, Champions, recorded_md5
from paco_core.operations.promotion.decision import Rule
from paco_core.operations.promotion.paired import paired
from paco_core.operations.promotion.shared_gain import by_both_judges
from paco_core.runtime.provenance.chain import RECIPE_TAG, STAGE_TAG
from paco_core.runtime.tracking import Adapted, open_run
from paco_core.runtime.tracking.dvc_artifacts import DvcArtifactRepository
from paco_core.runtime.tracking.models import registered_name
from tests.support import provenance_world as world
from tests.support.promotion_stand import NAME, PASSED, POLICY, Stand, made_stand, table

RULE = Rule("gold_consistency", ("gold_following",))


# --- the test ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """200 draws with prompt effects: a test that took pictures for independent would cover far too seldom."""
    rng, covered = np.random.default_rng(7), 0
    prompts = [f"p{n}" for n in range(20) for _ in range(4)]
    for draw in range(200):
        values = np.repeat(rng.normal(0.05, 0.2, 20), 4) + rng.normal(0, 0.1, 80)
        comparison = paired(values, np.zeros(80), prompts, resamples=300, seed=draw)
        covered += comparison.low <= 0.05 <= comparison.high
    assert 0.9 <= covered / 200 <= 1.0


def test_failed_cases_are_left_out_of_both_sides_and_counted() -> None:
    nan = float("nan")
    comparison = paired([1.0, nan, 3.0, 4.0], [0.0, 1.0, nan, 2.0], ["a", "a", "b", "b"], resamples=50)
    assert (comparison.difference, comparison.cases, comparison.missing, comparison.prompts) == (1.5, 2, 2, 2)
    single_prompt = paired([1.0, 2.0], [0.0, 0.0], ["a", "a"])
    assert np.isnan(single_prompt.low) and not single_prompt.is_better and not single_prompt.is_worse
    assert paired([nan], [nan], ["a"]).cases == 0
    with pytest.raises(ValueError):
        paired([1.0], [1.0, 2.0], ["a"])


@pytest.mark.parametrize(
    ("gain", "fall", "promoted"), [(0.2, 0.0, True), (0.0, 0.0, False), (-0.2, 0.0, False), (0.2, 0.2, False)]
)
def test_who_wins(gain: float, fall: float, promoted: bool) -> None:
    decision = decisions.decide(
        NAME, RULE, ("2", "b", table(gain, fall, seed=2)), ("1", "a", table(0.0)), [PASSED], resamples=300
    )
    assert decision.promoted is promoted
    assert decision.test is not None and decision.test.prompts == 24 and decision.test.cases == 48
    assert decision.test.low <= decision.test.difference <= decision.test.high


@pytest.mark.parametrize(("held_out", "promoted"), [(0.15, True), (0.0, False), (float("nan"), False)])
def test_a_gain_must_be_shared_by_the_held_out_judge(held_out: float, promoted: bool) -> None:
    def judged(trained: float, held_out_gain: float, seed: int) -> pd.DataFrame:
        scores, rng = table(0.2 if trained else 0.0, seed=seed), np.random.default_rng(seed)
        noise = rng.normal(0, 0.02, (2, len(scores)))
        return scores.assign(
            trained_judge=0.5 + trained + noise[0], held_out_judge=0.5 + 9 * (held_out_gain + noise[1])
        )

    sides = ("2", "b", judged(0.15, held_out, 2)), ("1", "a", judged(0.0, 0.0, 1))
    decision = decisions.decide(NAME, RULE, *sides, [PASSED], resamples=300)
    assert decision.promoted is promoted
    std = sides[1][2]["trained_judge"].std()  # of the incumbent's: whatever part of the scale a judge uses
    assert decision.metrics()["difference/trained_judge"] == pytest.approx(0.15 / std, abs=1)
    assert decisions.decide(NAME, RULE, ("2", "b", table(0.2, seed=2)), sides[1], [PASSED], resamples=300).promoted


def test_each_judge_of_the_hack_meter_is_asked_by_its_own_model(repository: Path) -> None:
    recipe = load(repository / "params.yaml").policies.recipes[NAME]
    models: list[str] = []

    def measured_by(model: Path) -> pd.DataFrame:
        models.append(model.as_posix())
        return pd.DataFrame({"consistency": [len(models) / 10]})

    assert by_both_judges(recipe, Path("/p"), Path("/p/reward"), measured_by) == {}
    other = RewardTerm(weight=0.0, reward="consistency", model="other")
    rewards = recipe.rewards.model_copy(update={"terms": {**recipe.rewards.terms, "other": other}})
    meter = HackMeter(trained="consistency", held_out="other")
    watched = recipe.model_copy(update={"rewards": rewards, "hack_meter": meter})
    columns = by_both_judges(watched, Path("/p"), Path("/p/reward"), measured_by)
    assert models == ["/p/reward", "/p/other"]
    assert {name: list(column) for name, column in columns.items()} == {"trained_judge": [0.1], "held_out_judge": [0.2]}


def test_versions_without_a_common_case_are_not_compared() -> None:
    other = table(0.0)
    other["prompt_id"] = "q" + other["prompt_id"]
    with pytest.raises(DataError):
        decisions.decide(NAME, RULE, ("2", "b", table(0.1)), ("1", "a", other), [PASSED])


# --- the registry -----------------------------------------------------------------------------------------


@pytest.fixture
def stand(project: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    return made_stand(project, monkeypatch)


@pytest.mark.slow
def test_a_life_of_champions(stand: Stand) -> None:
    first = command.promote(stand.root, NAME)
    assert first.promoted and first.incumbent is None
    again = command.promote(stand.root, NAME)
    assert not again.promoted and again.test is None

    stand.retrain("not better", 0.0)
    lost, champions = command.promote(stand.root, NAME), Champions(stand.root)
    champion, challenger = champions.at(NAME, CHAMPION), champions.at(NAME, CHALLENGER)
    assert not lost.promoted and champion and champion.number == "1" and challenger and challenger.number == "2"

    stand.retrain("better", 0.3)
    won = command.promote(stand.root, NAME)
    champion = champions.at(NAME, CHAMPION)
    assert won.promoted and champion and (champion.number, champion.over) == ("3", "1")
    assert won.incumbent and won.incumbent.version == "1", "the incumbent's bytes came from DVC's cache"

    command.roll_back(stand.root, NAME)
    champion = champions.at(NAME, CHAMPION)
    assert champion and champion.number == "1"
    with pytest.raises(DataError):
        command.roll_back(stand.root, NAME)

    # The old champion is not what lies in the workspace: its origin was recorded, its bytes are in the cache.
    origin = provenance.find_origin(stand.root, f"{NAME}@champion")
    assert not origin.present and origin.provenance.md5 == champion.md5
    assert provenance.check(stand.root, origin).breaks == ()

    # Nor need it be looked for there: its files are copied out, and stay when the cache is cleaned.
    out = stand.root / "mine" / "champion"
    assert copy_named_files(stand.root, f"{NAME}@champion", out) == 1
    copied = out / "weights.safetensors"
    assert copied.read_text() == "adapter" and not copied.is_symlink()
    with pytest.raises(DataError):
        copy_named_files(stand.root, f"{NAME}@champion", out)
    assert copy_named_files(stand.root, NAME, stand.root / "present") == 1
    assert (stand.root / "present/weights.safetensors").read_text() == "better"
    for name in ("reward@champion", "nobody", "x@best"):
        with pytest.raises(DataError):
            copy_named_files(stand.root, name, stand.root / "none")
    assert not (stand.root / "none").exists()


def experiment_of(run_id: str) -> str:
    return str(mlflow.get_experiment(mlflow.get_run(run_id).info.experiment_id).name)


@pytest.mark.slow
def test_mlflow_loads_the_champion_and_what_dvc_keeps(stand: Stand, tmp_path: Path) -> None:
    store = f"sqlite:///{stand.root / 'mlflow.db'}"
    mlflow.set_tracking_uri(store)
    command.promote(stand.root, NAME)
    champion = Champions(stand.root).at(NAME, CHAMPION)
    assert champion is not None
    stand.retrain("better", 0.3)

    uri = f"models:/{registered_name(NAME)}@champion"
    folder = Path(mlflow.artifacts.download_artifacts(uri, dst_path=str(tmp_path / "loaded")))
    assert (folder / "adapter_weights/weights.safetensors").read_text() == "adapter"
    assert mlflow.diffusers.load_model(uri).base_model == str(stand.root / "data/zoo/flux")
    version = mlflow.MlflowClient(store).get_model_version(registered_name(NAME), champion.number)
    assert version.run_id == champion.run_id and "paco/promotion" in experiment_of(str(version.run_id))

    client = mlflow.MlflowClient(store)
    pointers = {champion.md5: "adapter", recorded_md5(Lock.read(stand.root), NAME): "better"}
    client.create_registered_model("pointers")
    for number, (md5, text) in enumerate(pointers.items(), 1):  # from the cache, and as it lies in the workspace
        client.create_model_version("pointers", f"dvc://{POLICY}#{md5}")
        uri = f"models:/pointers/{number}"
        copied = Path(mlflow.artifacts.download_artifacts(uri, dst_path=str(tmp_path / f"pointer{number}")))
        assert (copied / "adapter/weights.safetensors").read_text() == text
        assert not (copied / "adapter/weights.safetensors").is_symlink()
        assert [item.path for item in mlflow.artifacts.list_artifacts(uri)] == ["adapter"]
    client.create_model_version("pointers", f"dvc://{POLICY}#{'0' * 32}.dir")
    with pytest.raises(DataError):
        mlflow.artifacts.download_artifacts("models:/pointers/3")
    with pytest.raises(MlflowException):
        DvcArtifactRepository(f"dvc://{POLICY}#{champion.md5}").log_artifact("x")


@pytest.mark.slow
def test_a_version_points_to_the_model_that_its_training_logged(stand: Stand) -> None:
    mlflow.set_tracking_uri(f"sqlite:///{stand.root / 'mlflow.db'}")
    recipe = world.recipe(stand.root, f"policies@{NAME}").digest
    for adapter in (None, stand.root / POLICY / "adapter"):  # a pointer, as earlier versions logged; then its files
        tags = {RECIPE_TAG: recipe, STAGE_TAG: f"policies@{NAME}"}
        with open_run(stand.root, "paco/policies", "training", tags) as tracker:
            if adapter is None:
                tracker.external_model(registered_name(NAME), Path(POLICY), {})
            else:
                tracker.adapter(registered_name(NAME), Path(POLICY), adapter, Adapted("base/model"), {})
        command.promote(stand.root, NAME)
        if adapter is None:
            stand.retrain("better", 0.3)
    versions = mlflow.MlflowClient().search_model_versions(f"name = '{registered_name(NAME)}'")
    second, first = sorted(versions, key=lambda version: -int(version.version))
    (trained,) = mlflow.get_run(str(tracker.run_id)).outputs.model_outputs
    model = mlflow.get_logged_model(trained.model_id)
    assert second.run_id == model.source_run_id == tracker.run_id and second.source == model.artifact_location
    linked_versions = json.loads(model.tags["mlflow.modelVersions"])
    assert linked_versions == [{"name": registered_name(NAME), "version": second.version}]
    assert first.run_id != tracker.run_id and experiment_of(str(first.run_id)) == "paco/policies"
    loaded = [mlflow.diffusers.load_model(f"models:/{registered_name(NAME)}/{number}") for number in (1, 2)]
    assert [pipeline.base_model for pipeline in loaded] == [str(stand.root / "data/zoo/flux"), "base/model"]


def test_a_failed_blocking_check_stops_even_a_first_champion(stand: Stand) -> None:
    stand.gates = [CheckReport("no_collapse", False, "ERROR", "collapsed"), PASSED]
    decision = command.promote(stand.root, NAME)
    assert not decision.promoted and "no_collapse" in decision.reason
    assert Champions(stand.root).at(NAME, CHAMPION) is None


def test_bytes_that_are_not_the_recorded_ones_are_not_registered(stand: Stand) -> None:
    (stand.root / POLICY / "adapter/weights.safetensors").write_text("by hand")
    for name in (NAME, "flux"):
        with pytest.raises(DataError):
            command.promote(stand.root, name)
