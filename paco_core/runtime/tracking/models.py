"""Logged models of MLflow: an adapter with its files, which MLflow loads, or a pointer to weights that DVC keeps.

An adapter has MLflow's flavor ``diffusers``: safetensors, and a file ``MLmodel`` with the name of the base. paco does
not write it by ``mlflow.diffusers.save_model``, which imports torch and peft, and asks a hub for the newest revision of
the base instead of the trained one.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ADAPTER = "adapter_weights"  # as mlflow.diffusers calls the folder
PIP = ("accelerate", "diffusers", "peft", "safetensors", "torch", "transformers")


def registered_name(name: str) -> str:
    """The name of the registered model of ``reward`` or of a recipe; its logged models have the same name."""
    return "paco-reward" if name == "reward" else f"paco-policy-{name}"


@dataclass(frozen=True)
class Adapted:
    """The base of an adapter.

    Attributes:
        base: an absolute folder, or the id of a model on a hub.
        defaults: settings of an image by the names of diffusers (``height``, ``num_inference_steps``), for
            ``mlflow.pyfunc``, which accepts prompts only; None for an editor, which needs images, too.
    """

    base: str
    defaults: Mapping[str, float] | None = None


def log_model(
    client: Any,
    experiment_id: str,
    run_id: str,
    name: str,
    tags: Mapping[str, str],
    adapter: Path | None = None,
    adapted: Adapted | None = None,
) -> str:
    """Create a model of a run, or complete one that an earlier attempt left; its id.

    The model belongs to the experiment of its run. MLflow's default is the experiment "Default": if a server created
    the store, only a server can store files there.

    Args:
        adapter: folder of an adapter, which is copied; without it the model is a pointer.
    """
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus
    from mlflow.utils.mlflow_tags import MLFLOW_MODEL_IS_EXTERNAL

    is_pointer = adapter is None or adapted is None
    model = model_of(client, experiment_id, run_id, name)
    if model is None:
        tags = {**tags, MLFLOW_MODEL_IS_EXTERNAL: "true"} if is_pointer else tags
        kind = None if is_pointer else "adapter"
        model = client.create_logged_model(experiment_id, name, run_id, tags=tags, model_type=kind)
    if model.status != LoggedModelStatus.READY:
        with tempfile.TemporaryDirectory(prefix="paco-model-") as folder:
            _write(Path(folder), model, adapter, adapted)
            client.log_model_artifacts(model.model_id, folder)
        if adapter is not None:
            client.log_model_artifacts(model.model_id, str(adapter), ADAPTER)
        client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
    return str(model.model_id)


def model_of(client: Any, experiment_id: str, run_id: str, name: str | None = None) -> Any:
    """The model that a run made, None if it made none."""
    condition = f"source_run_id = '{run_id}'" + (f" AND name = '{name}'" if name else "")
    models = client.search_logged_models([experiment_id], condition, max_results=1)
    return models[0] if models else None


def name_version(client: Any, model_id: str, registered: str, number: int) -> None:
    """Record on a model which registered version it is, as ``mlflow.register_model`` does: its page links to it."""
    from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS

    earlier = json.loads(client.get_logged_model(model_id).tags.get(MLFLOW_MODEL_VERSIONS, "[]"))
    versions = [*earlier, {"name": registered, "version": number}]
    client.set_logged_model_tags(model_id, {MLFLOW_MODEL_VERSIONS: json.dumps(versions)})


def is_loadable(model: Any) -> bool:
    """Whether MLflow has the files of a model, and not only a pointer."""
    from mlflow.utils.mlflow_tags import MLFLOW_MODEL_IS_EXTERNAL

    return model.status == "READY" and model.tags.get(MLFLOW_MODEL_IS_EXTERNAL) != "true"


def _write(folder: Path, model: Any, adapter: Path | None, adapted: Adapted | None) -> None:
    from mlflow.models import Model
    from mlflow.models.model import MLMODEL_FILE_NAME
    from mlflow.models.utils import get_external_mlflow_model_spec

    if adapter is None or adapted is None:
        get_external_mlflow_model_spec(model).save(str(folder / MLMODEL_FILE_NAME))
        return
    described = Model(
        run_id=model.source_run_id,
        model_id=model.model_id,
        model_uuid=model.model_id,
        artifact_path=model.artifact_location,
    )
    described.add_flavor(
        "diffusers",
        base_model=adapted.base,
        adapter_type="lora",
        adapter_weights=ADAPTER,
        diffusers_version=version("diffusers"),
        code=None,
    )
    if adapted.defaults is not None:
        _accept_prompts(described, adapted.defaults)
    described.model_size_bytes = sum(file.stat().st_size for file in adapter.rglob("*") if file.is_file())
    described.save(str(folder / MLMODEL_FILE_NAME))
    (folder / "requirements.txt").write_text("".join(f"{name}=={version(name)}\n" for name in PIP))


def _accept_prompts(described: Any, defaults: Mapping[str, float]) -> None:
    """Let ``mlflow.pyfunc`` load the model, with the settings of its evaluation as defaults; it returns PNG files."""
    from mlflow import pyfunc
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

    kinds = {int: DataType.integer, float: DataType.double}
    described.signature = ModelSignature(
        inputs=Schema([ColSpec(DataType.string, "prompt")]),
        outputs=Schema([ColSpec(DataType.binary, "image")]),
        params=ParamSchema([ParamSpec(name, kinds[type(value)], value) for name, value in defaults.items()]),
    )
    pyfunc.add_to_model(described, loader_module="mlflow.diffusers")
