"""`paco check` asks of a machine only what the stages that do something need: models, disk, main memory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from dvc_project.project import stages_of
from paco_core.config import profiles
from paco_core.config.params import Params
from paco_core.config.references import references
from paco_core.models.hub import cached_snapshot
from paco_core.planning import disk, preflight, read_references
from paco_core.planning.disk import disk_needs, disk_problems
from paco_core.planning.models import model_config, model_gb
from paco_core.planning.preflight import check_project
from paco_core.planning.read_references import describe_references, parts_in_files
from paco_core.stages import declared

FLUX = "policies.recipes.flux_t2is"
KLEIN_KEYS = {"prompts.source", "reward.weights", f"{FLUX}.model", f"{FLUX}.rewards.terms.clip_t.model"}


def keys(params: Params, root: Path, *, with_declarations: bool = True) -> set[str]:
    stages = declared(root) if with_declarations else {}
    read = read_references.read_references(params, stages_of(root).values(), stages)
    return {reference.key for reference in read}


def snapshot(cache: Path, name: str, *files: str) -> Path:
    """A repository in a hub's cache, with empty weights, and other files that contain an empty JSON object."""
    repository = cache / f"models--{name.replace('/', '--')}"
    folder = repository / "snapshots" / "c0ffee"
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("" if file.endswith(".safetensors") else "{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c0ffee")
    return folder


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.mark.parametrize("profile", ["klein", "klein_48gb", "published", "one_gpu"])
def test_stages_that_do_nothing_read_no_model(repository: Path, profile: str) -> None:
    """Neither CLIP of benchmarks without cases, nor the base of a merged reward model."""
    assert keys(profiles.read(repository, profile), repository) == KLEIN_KEYS


def test_a_model_is_read_as_soon_as_a_stage_needs_it(repository: Path) -> None:
    params = profiles.read(repository, "klein")
    adapter = params.model_copy(update={"reward": params.reward.model_copy(update={"source": "adapter"})})
    assert keys(adapter, repository) == KLEIN_KEYS | {"reward.base"}
    vistory = params.vistory.model_copy(update={"source": "data/external/stories"})
    assert keys(params.model_copy(update={"vistory": vistory}), repository) == KLEIN_KEYS | {
        "vistory.source",
        "vistory.clip",
    }
    diverse = params.diverse_prompts.model_copy(update={"target": 10})
    assert keys(params.model_copy(update={"diverse_prompts": diverse}), repository) == KLEIN_KEYS | {
        "diverse_prompts.model"
    }


@pytest.mark.parametrize("profile", ["storybook", "paper", "klein", "rounds"])
def test_dvc_yaml_lists_each_parameter_that_names_a_model_or_file(repository: Path, profile: str) -> None:
    """Otherwise `paco check` would not look for it."""
    params = profiles.read(repository, profile)
    assert keys(params, repository, with_declarations=False) == {reference.key for reference in references(params)}


def test_disk_counts_downloads_the_merged_model_twice_and_results(repository: Path, hub_cache: Path) -> None:
    params = profiles.read(repository, "klein")
    read = list(read_references.read_references(params, stages_of(repository).values(), declared(repository)))
    klein, reward, clip = (model_gb(repository, read[n].value) for n in (2, 1, 3))
    needs = disk_needs(params, read, {"reward_merged"}, repository)
    assert list(needs.values()) == pytest.approx([klein + reward + clip, 2 * reward, disk.RESULTS_GB["real"]])
    assert sum(needs.values()) == pytest.approx(99.7, abs=0.1)
    snapshot(hub_cache, "X-GenGroup/PaCo-Reward-7B", "config.json", "model.safetensors")
    after = disk_needs(params, read, set(), repository)
    assert sum(needs.values()) - sum(after.values()) == pytest.approx(3 * reward), "cached and merged"


def test_a_full_disk_is_named_with_what_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "not" / "yet"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _place: SimpleNamespace(free=50e9))
    assert disk_problems({disk.DOWNLOADS: 30.0, "for images": 10.0}, tmp_path) == []
    (problem,) = disk_problems({disk.DOWNLOADS: 30.0, "for images": 30.0}, tmp_path)
    assert "50.0 GB free" in problem and "about 60 GB needed" in problem and "30.0 for images" in problem


@pytest.mark.parametrize(("memory", "problems"), [(32.0, 0), (4.0, 1)])
def test_klein_fits_32_gb_of_main_memory(
    repository: Path, monkeypatch: pytest.MonkeyPatch, memory: float, problems: int
) -> None:
    monkeypatch.setattr(preflight, "memory_gb", lambda: memory)
    report = check_project(repository, declared(repository), "klein")
    lines = [line for line in (*report.problems, *report.remarks) if line.startswith("memory: ")]
    assert len([line for line in report.problems if line.startswith("memory: ")]) == problems == len(lines)


def test_a_model_in_the_cache_is_not_downloaded(
    repository: Path, hub_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = profiles.read(repository, "klein")
    read = [reference for reference in references(params) if reference.key in KLEIN_KEYS - {"prompts.source"}]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert len(describe_references(read, repository)[0]) == 3
    snapshot(hub_cache, "X-GenGroup/PaCo-Reward-7B", "config.json", "model.safetensors")
    remarks, problems = describe_references(read, repository)
    assert {remark.partition(":")[0] for remark in remarks} == KLEIN_KEYS - {"prompts.source", "reward.weights"}
    assert problems == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    remarks, problems = describe_references(read, repository)
    assert remarks == [] and len(problems) == 2 and all("HF_HUB_OFFLINE" in problem for problem in problems)


def test_a_transformer_in_a_file_is_not_asked_of_the_cache(
    repository: Path, hub_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    params = profiles.read(repository, "klein")
    recipe = params.policies.recipes["flux_t2is"]
    folder = snapshot(hub_cache, recipe.model, "vae/config.json", "vae/a.safetensors")
    parts = {"vae": ["diffusers", "AutoencoderKLFlux2"], "transformer": ["diffusers", "Flux2Transformer2DModel"]}
    (folder / "model_index.json").write_text(json.dumps(parts))
    read = [reference for reference in references(params) if reference.key == f"{FLUX}.model"]
    assert parts_in_files(params) == {} and len(describe_references(read, repository)[1]) == 1
    recipes = {"flux_t2is": recipe.model_copy(update={"transformer": "klein.safetensors"})}
    policies = params.policies.model_copy(update={"recipes": recipes})
    skipped = parts_in_files(params.model_copy(update={"policies": policies}))
    assert describe_references(read, repository, skipped) == ([], [])


def test_an_incomplete_snapshot_is_not_a_model(hub_cache: Path) -> None:
    """A download that was interrupted, a pipeline without one of its parts, and a damaged index."""
    folder = snapshot(hub_cache, "org/model", "config.json")
    assert cached_snapshot("org/model") is None
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}))
    (folder / "1.safetensors").touch()
    assert cached_snapshot("org/model") is None
    (folder / "2.safetensors").touch()
    assert cached_snapshot("org/model") == folder
    index.write_text("{")
    assert cached_snapshot("org/model") is None
    pipeline = snapshot(hub_cache, "org/pipeline", "vae/config.json", "vae/a.safetensors")
    parts = {"_class_name": "FluxPipeline", "vae": ["diffusers", "AutoencoderKL"], "image_encoder": [None, None]}
    (pipeline / "model_index.json").write_text(json.dumps(parts | {"transformer": ["diffusers", "Flux"]}))
    assert cached_snapshot("org/pipeline") is None
    assert cached_snapshot("org/pipeline", skipped=["transformer"]) == pipeline
    (pipeline / "model_index.json").write_text(json.dumps(parts))
    assert cached_snapshot("org/pipeline") == pipeline
    assert cached_snapshot("org/none") is None


def test_a_modular_snapshot_is_complete_without_the_upsampler(hub_cache: Path) -> None:
    """Which is in another repository, and which paco does not load."""
    folder = snapshot(hub_cache, "org/modular", "vae/config.json", "vae/a.safetensors")
    hints = {"vae": "AutoencoderKLFlux2", "prompt_upsampler": "Qwen3_5ForConditionalGeneration"}
    parts: dict[str, object] = {
        name: [None, None, {"type_hint": ["diffusers", hint], "subfolder": name}] for name, hint in hints.items()
    }
    (folder / "modular_model_index.json").write_text(json.dumps(parts))
    assert cached_snapshot("org/modular") == folder
    parts["transformer"] = [None, None, {"type_hint": ["diffusers", "Flux3Transformer2DModel"]}]
    (folder / "modular_model_index.json").write_text(json.dumps(parts))
    assert cached_snapshot("org/modular") is None
    assert cached_snapshot("org/modular", skipped=["transformer"]) == folder


def test_sizes_of_an_unknown_model_are_read_from_the_cache(repository: Path, hub_cache: Path) -> None:
    assert model_config(repository, "org/mine") is None and model_gb(repository, "org/mine") == 0.0
    folder = snapshot(hub_cache, "org/mine", "transformer/a.safetensors", "vae/a.safetensors")
    for part in ("transformer", "vae"):
        (folder / part / "config.json").write_text(json.dumps({"_class_name": part}))
    (folder / "transformer" / "a.safetensors").write_bytes(bytes(2000))
    config = model_config(repository, "org/mine")
    assert config is not None and config.transformer["_class_name"] == "transformer"
    assert model_gb(repository, "org/mine") == pytest.approx(2e-6)
