"""A promotion judges the bytes that it crowns, and compares with the version that it replaces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow import MlflowClient

from dvc_project.file_locks import is_held
from dvc_project.lockfile import Entry, Inputs, Lock
from paco_core.config.params import load
from paco_core.io.files import DataError
from paco_core.operations import promote as command
from paco_core.operations.promotion.champions import CHAMPION, LOCKS, MD5_TAG, Champions, Version
from paco_core.runtime.provenance.chain import RECIPE_TAG, STAGE_TAG
from paco_core.runtime.tracking import Adapted, open_run
from paco_core.runtime.tracking.models import registered_name
from tests.support import provenance_world as world
from tests.support.promotion_stand import NAME, POLICY, Stand, made_stand

WEIGHTS = Path(POLICY) / "adapter/weights.safetensors"


@pytest.fixture
def stand(project: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    """The weights "adapter" are champion. The values of `gains` are those of other weights."""
    promoted_stand = made_stand(project, monkeypatch)
    promoted_stand.gains |= {"worse": -0.3, "better": 0.3, "best": 0.6}
    command.promote(promoted_stand.root, NAME)
    return promoted_stand


def champion_of(root: Path) -> Version:
    champion = Champions(root).at(NAME, CHAMPION)
    assert champion is not None
    return champion


@pytest.mark.slow
@pytest.mark.parametrize(("recorded", "meanwhile"), [("worse", "better"), ("better", "worse")])
def test_the_recorded_version_is_measured_whatever_the_workspace_becomes(
    stand: Stand, recorded: str, meanwhile: str
) -> None:
    stand.retrain(recorded, stand.gains[recorded])
    decision = command.promote(stand.root, NAME, log=lambda _line: (stand.root / WEIGHTS).write_text(meanwhile))
    assert decision.promoted is (recorded == "better")
    assert champion_of(stand.root).number == ("2" if recorded == "better" else "1")


@pytest.mark.slow
def test_a_version_replaces_only_the_champion_that_it_was_compared_with(stand: Stand) -> None:
    stand.retrain("better", 0.3)
    assert command.promote(stand.root, NAME).promoted
    stand.retrain("candidate", 0.6)
    decision = command.promote(stand.root, NAME, log=lambda _line: command.roll_back(stand.root, NAME))
    assert decision.incumbent is not None and decision.incumbent.version == "2" and decision.test is not None
    assert decision.test.is_better and not decision.promoted
    assert champion_of(stand.root).number == "1"


@pytest.mark.slow
def test_aliases_move_under_the_lock_of_the_name(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    lock_states = []

    def watched(method: str) -> Callable[..., Any]:
        move = getattr(MlflowClient, method)

        def moved(client: MlflowClient, name: str, *arguments: str) -> Any:
            lock_states.append(is_held(stand.root / LOCKS / f"{name}.lock"))
            return move(client, name, *arguments)

        return moved

    for method in ("set_registered_model_alias", "delete_registered_model_alias"):
        monkeypatch.setattr(MlflowClient, method, watched(method))
    stand.retrain("better", 0.3)
    command.promote(stand.root, NAME)
    command.roll_back(stand.root, NAME)
    assert lock_states == [True] * 5  # challenger, champion, no challenger; champion, challenger


@pytest.mark.slow
def test_a_logged_model_of_other_bytes_is_no_source(stand: Stand) -> None:
    """Two runs of one recipe may train different weights: the one that MLflow has need not be the recorded one."""
    stand.retrain("better", 0.3)
    label, other = f"policies@{NAME}", stand.root / "other"
    other.mkdir()
    (other / "weights.safetensors").write_text("of another run")
    tags = {RECIPE_TAG: world.recipe(stand.root, label).digest, STAGE_TAG: label}
    with open_run(stand.root, "paco/policies", "training", tags) as tracker:
        tracker.adapter(registered_name(NAME), Path(POLICY), other, Adapted("base/model"), {})
    assert command.promote(stand.root, NAME).promoted
    mlflow.set_tracking_uri(f"sqlite:///{stand.root / 'mlflow.db'}")
    version = MlflowClient().get_model_version_by_alias(registered_name(NAME), CHAMPION)
    assert version.run_id == tracker.run_id and version.tags[MD5_TAG] == champion_of(stand.root).md5
    loaded = mlflow.diffusers.load_model(f"models:/{registered_name(NAME)}@champion")
    assert (Path(loaded.adapter_path) / "weights.safetensors").read_text() == "better"


def test_the_reward_is_judged_by_the_data_that_it_was_made_from(tmp_path: Path) -> None:
    deps = {"data/pairs": "1" * 32, "data/code/reward_merged.json": "2" * 32}
    outs = {"data/reward_merged": "3" * 32, "data/metrics/reward_merged.json": "4" * 32}
    lock = Lock({"reward_merged": Entry("reward_merged", "", Inputs(deps, {}), outs)})
    inputs = command._read_in_place(lock, "reward", None)
    assert inputs == {"data/pairs": "1" * 32, "data/metrics/reward_merged.json": "4" * 32}
    with pytest.raises(DataError, match="data/pairs"):
        command._require_recorded(tmp_path, inputs)


def test_a_policy_is_not_registered_with_another_base(repository: Path) -> None:
    recipe = load(repository / "params.yaml").policies.recipes[NAME]
    params = {"params.yaml": {f"policies.recipes.{NAME}": {"model": "data/zoo/earlier"}}}
    lock = Lock({f"policies@{NAME}": Entry(f"policies@{NAME}", "", Inputs({}, params), {POLICY: "1" * 32})})
    with pytest.raises(DataError, match="data/zoo/earlier"):
        command._require_base(lock, NAME, recipe)
    command._require_base(lock, NAME, recipe.model_copy(update={"model": "data/zoo/earlier"}))
