"""Memory by measurement: what is stored and shipped, what is measured again, and what a GPU had at its peak."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from paco_core.config import profiles
from paco_core.config.params import PolicyRecipe
from paco_core.io.files import DataError, read_json, write_json
from paco_core.planning import memory
from paco_core.planning.allocations import Allocated, measure
from paco_core.planning.gpu_hours import pass_flops
from paco_core.planning.gpu_speed import RECORD, measured_speeds
from paco_core.planning.models import model_config
from paco_core.planning.passes import Pass, PassMemory, side_multiple, tokens_per_pixel
from paco_core.planning.random_models import random_prompt
from paco_core.policies import base
from paco_core.tasks.base import PlannedPrompts
from tests.support.tiny import tiny_flux
from tests.support.tiny_pipelines import flux3_klein, qwen_image_21, z_image

SMALL = [Pass("train", (64, 64), 0, 2), Pass("sample", (64, 64), 0, 4)]


@pytest.fixture
def recipe(repository: Path) -> PolicyRecipe:
    """The demo's, of a smaller FLUX."""
    return profiles.read(repository, "storybook").policies.recipes["flux_t2is"].model_copy(update={"model": "flux"})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tiny_flux(tmp_path / "flux")
    return tmp_path


def look_up(root: Path, recipe: PolicyRecipe, passes: list[Pass]) -> PassMemory:
    config = model_config(root, recipe.model)
    assert config is not None
    return memory.measured_memory(root, recipe, config, passes)


def test_a_tensor_counts_while_it_is_alive() -> None:
    with torch.device("meta"), Allocated() as allocated:
        first = torch.empty(1000)
        view = first[:10]
        second = first + 1
        assert allocated.now == allocated.peak == 8000
        del first, second
        assert (allocated.now, allocated.peak) == (4000, 8000), "the view keeps its tensor"
        del view
        assert allocated.now == 0


def test_weights_and_adapter_are_those_of_the_model(root: Path, recipe: PolicyRecipe) -> None:
    measured = look_up(root, recipe, SMALL)
    policy: Any = base.load_policy("flux", str(root / "flux"), "cpu", "float32")
    for part, gb in ((policy.transformer, measured.transformer_gb), (policy.vae, measured.vae_gb)):
        assert sum(t.nbytes for t in (*part.parameters(), *part.buffers())) == pytest.approx(1e9 * gb)
    policy.add_adapter(recipe.lora, 0)
    assert measured.adapter_weights == sum(weight.numel() for weight in policy.trainable().values())
    optimizers = [recipe.model_copy(update={"optimizer": name}) for name in ("adamw", "adamw_8bit")]
    byte_counts = [memory._bytes_per_adapter_weight(variant) for variant in optimizers]
    assert byte_counts[0] - byte_counts[1] == 2 * 4 - 2 * 1, "two moments in float32, or in a byte each"


def test_a_transformer_of_patches_is_planned_as_it_runs(tmp_path: Path, recipe: PolicyRecipe) -> None:
    """Z-Image: its configuration has other names, and its tokens have the channels of 2 x 2 latents."""
    z_image(tmp_path / "model")
    rule = recipe.model_copy(update={"family": "z_image", "model": "model", "guidance": 4.0, "max_sequence_length": 40})
    config = model_config(tmp_path, "model")
    assert config is not None
    policy: Any = base.load_policy("z_image", str(tmp_path / "model"), "cpu", "float32")
    assert policy.noise((64, 64), [base.NoiseKey("p", 0, 0)]).shape == (1, 16, config.token_channels)
    assert config.blocks == len(policy.transformer.layers) + len(policy.transformer.noise_refiner)
    block = policy.transformer.layers[0].named_parameters()
    weights = sum(weight.numel() for name, weight in block if name.startswith(("attention.to_", "feed_forward.")))
    assert pass_flops(config, 1) == pytest.approx(config.blocks * 2 * weights, rel=0.02)
    measured = look_up(tmp_path, rule, SMALL)
    assert 1e9 * measured.transformer_gb == sum(p.nbytes for p in policy.transformer.parameters())
    policy.add_adapter(rule.lora, 0)
    assert measured.adapter_weights == sum(weight.numel() for weight in policy.trainable().values())
    assert min(measured.passes.values()) > 0


@pytest.mark.parametrize("task", ["sets", "edits"])
def test_a_modular_pipeline_is_planned_as_it_runs(tmp_path: Path, recipe: PolicyRecipe, task: Any) -> None:
    """FLUX 3 Klein: its text encoder has a vision tower, but does not see the reference images."""
    flux3_klein(tmp_path / "model")
    changes = {"family": "flux3_klein", "task": task, "model": "model", "guidance": 4.0, "max_sequence_length": 40}
    rule = recipe.model_copy(update=changes)
    config = model_config(tmp_path, "model")
    assert config is not None and config.text_patch is not None
    policy: Any = base.load_policy("flux3_klein", str(tmp_path / "model"), "cpu", "float32", task=task)
    assert policy.noise((64, 64), [base.NoiseKey("p", 0, 0)]).shape == (1, 16, config.token_channels)
    (row,) = random_prompt(policy, rule, config, (64, 64)).rows
    assert row["prompt_embeds"].shape == (40, config.text_width)
    assert ("image_latents 64x64" in row) == (task == "edits")
    measured = look_up(tmp_path, rule, [Pass("train", (64, 64), int(task == "edits"), 2)])
    assert 1e9 * measured.transformer_gb == sum(p.nbytes for p in policy.transformer.parameters())
    policy.add_adapter(rule.lora, 0)
    assert measured.adapter_weights == sum(weight.numel() for weight in policy.trainable().values())
    assert min(measured.passes.values()) > 0


def test_references_within_the_text_are_planned_as_they_run(tmp_path: Path, recipe: PolicyRecipe) -> None:
    """Qwen-Image-2.1: a side has 2 x n tokens, and the keys and values of references stay for all steps."""
    qwen_image_21(tmp_path / "model")
    changes = {"family": "qwen_image_21", "model": "model", "guidance": 1.0, "max_sequence_length": 40}
    sets = recipe.model_copy(update=changes)
    config = model_config(tmp_path, "model")
    assert config is not None and (side_multiple(tmp_path, sets), config.text_patch) == (32, 32)
    policy: Any = base.load_policy("qwen_image_21", str(tmp_path / "model"), "cpu", "float32")
    noise = policy.noise((64, 96), [base.NoiseKey("p", 0, 0)])
    assert noise.shape == (1, 64 * 96 * tokens_per_pixel(tmp_path, sets), config.token_channels)
    weights = [*policy.transformer.parameters(), *policy.transformer.buffers()]
    assert 1e9 * look_up(tmp_path, sets, SMALL).transformer_gb == sum(weight.nbytes for weight in weights)
    edits = sets.model_copy(update={"task": "edits", "reference_size": 256})
    passes = [Pass("train", (64, 96), 3, 2), Pass("sample", (64, 64), 1, 2), Pass("sample", (64, 64), 5, 2)]
    _, fewest, most = look_up(tmp_path, edits, passes).passes.values()
    cache_bytes = 4 * 256 * config.blocks * 2 * config.width * 4 * 2  # keys and values of four references, in float32
    assert (most - fewest) * 1e9 > cache_bytes


def test_text_encoders_that_stories_need_are_planned(tmp_path: Path, repository: Path) -> None:
    qwen_image_21(tmp_path / "model")
    tree = profiles.read(repository, "storybook")
    weights = []
    for panels in ("together", "one_by_one"):
        changes = {"family": "qwen_image_21", "model": "model", "guidance": 1.0, "panels": panels, "predecessors": None}
        rule = tree.policies.recipes["flux_t2is"].model_copy(update=changes)
        params = tree.model_copy(update={"policies": tree.policies.model_copy(update={"recipes": {"mine": rule}})})
        planned = memory.training_memory(params, "mine", tmp_path, PlannedPrompts([], 0, []))
        assert planned is not None
        weights.append(planned.weights_gb)
    stored = sum(file.stat().st_size for file in (tmp_path / "model/text_encoder").glob("*.safetensors"))
    assert (weights[1] - weights[0]) * 1e9 == pytest.approx(stored, rel=0.05)


def test_what_is_stored_is_not_measured_again(
    root: Path, recipe: PolicyRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = look_up(root, recipe, SMALL[:1])
    assert first.passes.keys() == {str(SMALL[0])} and (root / memory.CACHE).is_file()
    complete = look_up(root, recipe, SMALL)
    assert complete.passes == {**first.passes, str(SMALL[1]): complete.passes[str(SMALL[1])]}
    monkeypatch.setitem(sys.modules, "paco_core.planning.allocations", None)  # an import of it fails
    assert look_up(root, recipe, SMALL) == complete
    (root / memory.CACHE).write_text('{"broken": 1}')
    with pytest.raises(ImportError):
        look_up(root, recipe, SMALL)


def test_the_key_contains_all_that_a_measurement_reads(root: Path, recipe: PolicyRecipe) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.names = set[str]()

        def __getattr__(self, name: str) -> Any:
            self.names.add(name)
            return getattr(recipe, name)

    reads, keys, config = Recorder(), Recorder(), model_config(root, "flux")
    assert config is not None
    measure(reads, config, SMALL)  # type: ignore[arg-type]
    memory.memory_key(keys, config)  # type: ignore[arg-type]
    assert reads.names - keys.names <= {"model"}, "its name is for errors: the key contains its configuration"


def test_another_configuration_version_or_recipe_is_another_key(
    root: Path, recipe: PolicyRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(**changes: Any) -> str:
        config = model_config(root, "flux")
        assert config is not None
        return memory.memory_key(recipe.model_copy(update=changes), config)

    first = key()
    assert first == key(learning_rate=1.0, train_batch=1, epochs=1), "passes have their own names"
    changes: list[dict[str, Any]] = [{"dtype": "bfloat16"}, {"device": "cuda"}, {"max_sequence_length": 7}]
    assert len({first, *(key(**change) for change in changes)}) == 4
    file = root / "flux/transformer/config.json"
    write_json(file, read_json(file) | {"_name_or_path": "elsewhere"})
    assert key() == first, "it says where the weights came from"
    write_json(file, read_json(file) | {"num_layers": 7})
    assert key() != first
    monkeypatch.setattr(memory, "version", lambda _name: "0.0")
    assert key() not in (first, key(dtype="bfloat16"))


def test_a_configuration_that_cannot_be_built_names_its_model(root: Path, recipe: PolicyRecipe) -> None:
    file = root / "flux/transformer/config.json"
    write_json(file, read_json(file) | {"_class_name": "NoTransformer"})
    with pytest.raises(DataError, match="flux: diffusers .* builds no transformer NoTransformer"):
        look_up(root, recipe, SMALL)
    file.write_text("{}")
    with pytest.raises(DataError, match="transformer/config.json has no _class_name"):
        model_config(root, "flux")
    assert model_config(root, "somebody/unknown") is None


@pytest.fixture
def speed(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(repository))
    return importlib.import_module("speed.memory")


def test_no_shipped_measurement_is_stale(repository: Path, speed: Any) -> None:
    """After a change of a profile, a model of the zoo or a library: `python -m speed.memory`."""
    needed = dict[str, set[str]]()
    for _, recipe, passes in speed.passes_of_profiles(repository):
        config = model_config(repository, recipe.model)
        assert config is not None
        needed.setdefault(memory.memory_key(recipe, config), set()).update(map(str, passes))
    for key, measured in memory._read(memory.SHIPPED).items():
        assert measured.passes.keys() <= needed.get(key, set()), "no profile needs it: run `python -m speed.memory`"


def test_the_smallest_shipped_measurement_is_measured_again(repository: Path, speed: Any) -> None:
    shipped, profiles_with_passes = memory._read(memory.SHIPPED), speed.passes_of_profiles(repository)
    recipe, passes = next(
        (recipe, passes) for name, recipe, passes in profiles_with_passes if name == "storybook flux_t2is"
    )
    config = model_config(repository, recipe.model)
    assert config is not None
    stored, remeasured = shipped[memory.memory_key(recipe, config)], measure(recipe, config, passes[:2])
    assert remeasured.adapter_weights == stored.adapter_weights and remeasured.weights_gb == pytest.approx(
        stored.weights_gb
    )
    for run in passes[:2]:
        assert remeasured.passes[str(run)] == pytest.approx(stored.passes[str(run)], rel=0.01)


def rows_of_the_page(gpu: Any) -> list[dict[str, str]]:
    """The rows of docs/results/2026-11-26-h200.md that `make gpu` wrote."""
    figures = gpu.RECORDED.read_text().partition(gpu.BEGIN)[2].partition(gpu.END)[0]
    lines = figures.partition("### Policies")[2].partition("### Reward")[0].strip().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


@pytest.mark.usefixtures("speed")
def test_a_gpu_took_as_much_memory_as_its_plan(repository: Path) -> None:
    """FLUX.1-dev in the profile *paper*: no more than the plan with the tenth that is left free."""
    planned = memory.training_memory(profiles.read(repository, "paper"), "flux_t2is", repository)
    assert planned is not None
    rows = [row for row in rows_of_the_page(importlib.import_module("speed.gpu")) if row["policy"] == "flux_t2is"]
    training = [float(row["peak GB"]) for row in rows if row["side"] == "512" and row["phase"] != "evaluation"]
    (evaluation,) = (float(row["peak GB"]) for row in rows if (row["side"], row["phase"]) == ("1024", "evaluation"))
    for phase, peak in (("training", max(training)), ("evaluation at 1024 px", evaluation)):
        assert planned.phases_gb[phase] == pytest.approx(peak, rel=0.05)


@pytest.mark.usefixtures("speed")
def test_the_recorded_speeds_are_those_of_the_page(tmp_path: Path, repository: Path) -> None:
    gpu = importlib.import_module("speed.gpu")
    cells = [row for row in rows_of_the_page(gpu) if row["phase"] != "evaluation"]
    rows = [{**row, "side": int(row["side"]), "images/s": float(row["images/s"])} for row in cells]
    recorded, new = read_json(RECORD), gpu.speeds(rows, "NVIDIA H200")
    assert [(speed.model, speed.side) for speed in new] == [(row["model"], row["side"]) for row in recorded]
    for speed, row in zip(new, recorded, strict=True):
        assert (speed.sampled, speed.trained) == pytest.approx((row["sampled"], row["trained"]), rel=0.01)
    record = tmp_path / "speeds.json"
    write_json(record, [{**recorded[0], "gpu": "another"}, *recorded])
    gpu.write_speeds(record, new[:1])
    assert [row["gpu"] for row in read_json(record)] == ["another", "NVIDIA H200"]
    recipe = profiles.read(repository, "paper").policies.recipes["flux_t2is"]
    (speed,) = measured_speeds(recipe, [(512, 512)], [0])
    assert speed.seconds(157, 79) == pytest.approx(30)
    assert not measured_speeds(recipe, [(512, 512), (512, 1024)], [0]) + measured_speeds(recipe, [(512, 512)], [1])
