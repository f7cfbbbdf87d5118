"""Logged models for MLflow users: load one, download it, read its metrics, and find the run that produced it."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
from diffusers import FluxPipeline
from mlflow.exceptions import MlflowException
from PIL import Image

from paco_core.config.params import load
from paco_core.policies import base
from paco_core.policies.adapter_base import adapter_base
from paco_core.runtime.tracking import count_journals, models, open_run
from paco_core.runtime.tracking.models import Adapted
from tests.support.waiting import until

NAME = "flux_t2is"
MODEL = "paco-policy-flux_t2is"


@pytest.fixture(autouse=True)
def store(project: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    uri = f"sqlite:///{project / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    mlflow.set_tracking_uri(uri)
    return uri


def logged(client: mlflow.MlflowClient) -> list[Any]:
    return list(client.search_logged_models([e.experiment_id for e in client.search_experiments()]))


def train(root: Path, folder: Path, adapted: Adapted) -> str:
    """A run that logs an adapter and a figure of it; the run's id."""
    with open_run(root, "paco/policies", f"policies/{NAME}", {}) as tracker:
        tracker.adapter(MODEL, Path("data/policies") / NAME, folder, adapted, {"dvc.md5": "ab"})
        tracker.metrics({"policies/128.gold": 0.5}, measures="")
        tracker.metrics({"policies/epochs": 2.0})
    return str(tracker.run_id)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "pytorch_lora_weights.safetensors").write_bytes(b"weights")
    (folder / "README.md").write_text("card")
    return folder


@pytest.mark.slow
def test_a_painter_is_loaded_by_mlflow_and_paints_what_diffusers_paints(
    project: Path, repository: Path, tmp_path: Path
) -> None:
    params = load(project / "params.yaml")
    shutil.copytree(repository / "data/zoo/flux", project / "data/zoo/flux")
    policy = base.load_recipe_policy(params.policies.recipes[NAME], project)
    policy.add_adapter(params.policies.recipes[NAME].lora, 0)
    torch.manual_seed(0)
    with torch.no_grad():
        for weights in policy.trainable().values():  # else it starts as its base
            weights.add_(0.05 * torch.randn_like(weights))
    policy.save_adapter(tmp_path / "trained")
    train(project, tmp_path / "trained", adapter_base(project, params.policies.recipes[NAME]))
    shutil.rmtree(tmp_path / "trained")
    (model,) = logged(mlflow.MlflowClient())

    pipeline = mlflow.diffusers.load_model(f"models:/{model.model_id}")
    assert pipeline.base_model == str(project / "data/zoo/flux")
    pipe = FluxPipeline.from_pretrained(project / "data/zoo/flux")
    settings = {"height": 192, "width": 192, "num_inference_steps": 4, "guidance_scale": 3.5}
    prompt = "a small blue bear at night, flat style"

    def paint() -> Image.Image:
        torch.manual_seed(1)
        return pipe(prompt, **settings).images[0]

    before = paint()
    pipe.load_lora_weights(pipeline.adapter_path)
    torch.manual_seed(1)
    (png,) = mlflow.pyfunc.load_model(f"models:/{model.model_id}").predict(
        {"prompt": [prompt]}, params={"num_inference_steps": 4, "guidance_scale": 3.5}
    )
    with Image.open(io.BytesIO(png)) as image:
        assert image.size == (192, 192), "the size of the evaluation is the default"
        assert image.tobytes() == paint().tobytes() != before.tobytes()


@pytest.mark.slow
def test_a_model_holds_its_files_and_figures_and_runs_name_it(project: Path, adapter: Path, tmp_path: Path) -> None:
    run = train(project, adapter, Adapted("/zoo/flux"))
    client = mlflow.MlflowClient()
    (model,) = logged(client)
    assert (model.name, model.status, model.source_run_id) == (MODEL, "READY", run)
    assert model.tags["dvc.path"] == f"data/policies/{NAME}" and "mlflow.model.isExternal" not in model.tags
    assert {m.key: m.value for m in model.metrics} == {"policies/128.gold": 0.5}
    assert [o.model_id for o in client.get_run(run).outputs.model_outputs] == [model.model_id]
    copied = Path(mlflow.artifacts.download_artifacts(f"models:/{model.model_id}", dst_path=str(tmp_path / "out")))
    assert (copied / models.ADAPTER / "pytorch_lora_weights.safetensors").read_bytes() == b"weights"
    assert (copied / models.ADAPTER / "README.md").read_text() == "card"
    with pytest.raises(MlflowException, match="python_function"):
        mlflow.pyfunc.load_model(f"models:/{model.model_id}")  # an editor takes more than prompts

    with open_run(project, "paco/t2is", "t2is", {}) as tracker:
        tracker.metrics({"t2is/flux.gold": 0.75}, measures=run)
        tracker.metrics({"t2is/other.gold": 0.25}, measures="0" * 32)  # a run of another store
    (model,) = logged(client)
    assert {m.key: (m.value, m.run_id) for m in model.metrics}["t2is/flux.gold"] == (0.75, tracker.run_id)
    bench = client.get_run(str(tracker.run_id))
    assert [model_input.model_id for model_input in bench.inputs.model_inputs] == [model.model_id]
    assert bench.data.metrics == {"t2is/flux.gold": 0.75, "t2is/other.gold": 0.25}


@pytest.mark.slow
def test_a_model_whose_answer_was_lost_is_completed_and_not_made_twice(
    project: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = mlflow.MlflowClient.log_model_artifacts, [MlflowException("connection refused")]

    def flaky(client: mlflow.MlflowClient, *args: Any, **kwargs: Any) -> None:
        if failures:
            raise failures.pop()
        real(client, *args, **kwargs)

    monkeypatch.setattr(mlflow.MlflowClient, "log_model_artifacts", flaky)
    run = train(project, adapter, Adapted("/zoo/flux"))
    until(lambda: count_journals(project) == 0)
    (model,) = logged(mlflow.MlflowClient())
    assert not failures and (model.source_run_id, model.status) == (run, "READY")
    assert mlflow.diffusers.load_model(f"models:/{model.model_id}").base_model == "/zoo/flux"
