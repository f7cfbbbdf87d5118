"""Tracking data of an earlier version: metrics that wait for MLflow, and champions in its registry."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import mlflow
from PIL import Image

from paco_core.operations.promotion.champions import CHAMPION, Champions
from paco_core.runtime.tracking import count_journals, send_left_over

WRITTEN = Path(__file__).parent / "written"
HOME = "/srv/project"  # where the journal was written


def test_figures_that_an_earlier_version_kept_are_sent(project: Path) -> None:
    home = project / ".paco/tracking/20261127T104653-54fb21ce"
    shutil.copytree(WRITTEN / "journal", home)
    picture = home / "files/3a0e8cb204ce/picture.png"
    picture.parent.mkdir()
    Image.new("RGB", (4, 4)).save(picture)
    events = (home / "events.jsonl").read_text()
    (home / "events.jsonl").write_text(events.replace(HOME, str(project)))
    delivery = send_left_over(project)
    assert (delivery.runs, delivery.events, delivery.waiting, delivery.problems) == (1, 10, 0, ())
    assert count_journals(project) == 0
    client = mlflow.MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    (run,) = client.search_runs(
        [e.experiment_id for e in client.search_experiments(filter_string="name='paco/prompts'")]
    )
    assert (run.info.run_name, run.info.status) == ("prompts/smoke/seed0", "FINISHED")
    assert run.data.params == {"prompts.count": "24", "profile": "smoke"}
    assert run.data.tags.items() >= {"paco.stage": "prompts", "paco.note": "kept"}.items()
    figures = dict(run.data.metrics)
    assert math.isnan(figures.pop("nothing")) and figures == {"prompts": 24.0, "loss": 0.5}
    assert [dataset_input.dataset.digest for dataset_input in run.inputs.dataset_inputs] == [
        "d0470738a6881f9e5bd2f26638a8f32a.dir"
    ]
    assert Path(client.download_artifacts(run.info.run_id, "notes/page.txt")).read_text() == "a page"
    (model,) = client.search_logged_models([run.info.experiment_id])
    assert model.tags["dvc.md5"] == "541add4100232c98b595e654e325bb5e.dir"


def test_a_champion_of_an_earlier_version_is_the_champion(project: Path) -> None:
    stored = json.loads((WRITTEN / "champion.json").read_text())
    client = mlflow.MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    client.create_registered_model(stored["name"])
    version = client.create_model_version(stored["name"], stored["source"], tags=stored["tags"])
    client.set_registered_model_alias(stored["name"], "champion", version.version)
    registry = Champions(project)
    champion = registry.at("reward", CHAMPION)
    assert registry.names() == ["reward"] and champion is not None
    assert (champion.path, champion.md5, champion.over) == (stored["tags"]["dvc.path"], stored["tags"]["dvc.md5"], None)
    assert registry.of_md5("reward", champion.md5) == champion
