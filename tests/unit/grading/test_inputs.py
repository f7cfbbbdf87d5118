"""Adapters, prompts and base models of a comparison: what names, files and folders stand for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paco_core.config.params import load
from paco_core.grading.base_model import graded_base
from paco_core.grading.candidates import Candidate, find_candidates, project_candidates
from paco_core.grading.prompts import TEMPLATES, graded_prompts, panel_prompts, without_trigger
from paco_core.io.files import DataError
from paco_core.policies.families import FAMILIES
from paco_core.runtime.checkpoints import stage_folder
from paco_core.training.checkpoint import Checkpoint, save_checkpoint
from tests.support.small_project import lay_out


@pytest.mark.parametrize(
    ("name", "series", "step"),
    [
        ("fox-000010", "fox", 10),  # kohya
        ("fox_000002000", "fox", 2000),  # ai-toolkit
        ("checkpoint-500", "run", 500),  # diffusers, SimpleTuner
        ("2026-01-31_10-00-00-save-400-8-0", "2026-01-31_10-00-00", 400),  # OneTrainer
        ("fox", "fox", None),
        ("fox_step600", "fox", 600),
    ],
)
def test_the_step_in_a_name(tmp_path: Path, name: str, series: str, step: int | None) -> None:
    file = tmp_path / "run" / f"{name}.safetensors"
    file.parent.mkdir()
    file.touch()
    candidate = Candidate.from_source(file)
    assert (candidate.name, candidate.series, candidate.step) == (name, series, step)


def touch(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def test_folders_of_trainers(tmp_path: Path) -> None:
    weights = "pytorch_lora_weights.safetensors"
    touch(
        *(tmp_path / "run" / f"checkpoint-{step}" / weights for step in (500, 1000, 1500)), tmp_path / "run" / weights
    )
    touch(tmp_path / "kohya" / "fox-000002.safetensors", tmp_path / "kohya" / "fox-000010.safetensors")
    touch(tmp_path / "kohya" / "fox.safetensors", tmp_path / "kohya" / "sample" / "1.png")
    touch(tmp_path / "peft" / "adapter_model.safetensors", tmp_path / "peft" / "adapter_config.json")
    touch(tmp_path / "ours" / "adapter" / weights, tmp_path / "ours" / "prompts.json")
    candidates = find_candidates([tmp_path / name for name in ("run", "kohya", "peft", "ours")])
    assert [(c.name, c.step) for c in candidates] == [
        ("checkpoint-500", 500), ("checkpoint-1000", 1000), ("checkpoint-1500", 1500), ("run", None),
        ("fox-000002", 2), ("fox-000010", 10), ("fox", None), ("peft", None), ("ours", None),
    ]  # fmt: skip
    assert {c.series for c in candidates[:4]} == {"run"} and {c.series for c in candidates[4:7]} == {"fox"}
    assert find_candidates([tmp_path / "peft" / "adapter_model.safetensors"])[0].source == tmp_path / "peft"
    assert find_candidates(["owner/lora"])[0].source == "owner/lora"


def test_equal_names_get_their_folders_and_equal_files_are_one(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a/fox-1.safetensors", "b/fox-1.safetensors", "b/base.safetensors")]
    touch(*files)
    candidates = find_candidates([*files, files[0]])
    assert [c.name for c in candidates] == ["a/fox-1", "b/fox-1", "b/base"]
    assert [c.series for c in candidates] == ["a/fox", "b/fox", "b/base"]


def test_places_without_an_adapter_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        find_candidates([tmp_path / "lost.safetensors"])
    with pytest.raises(DataError, match="no adapter in this folder"):
        find_candidates([tmp_path])


def test_checkpoints_of_a_training_are_written_as_adapters(repository: Path, tmp_path: Path) -> None:
    project = lay_out(repository, tmp_path)
    recipe = load(project / "params.yaml").policies.recipes["flux_t2is"]
    names = {f"blocks.0.to_q.lora_{side}.default.weight": torch.ones(2, 2) for side in "AB"}
    for step in (2, 10):
        tensors = {f"{group}/{name}": value * step for group in ("ema", "weights") for name, value in names.items()}
        save_checkpoint(
            stage_folder(project, "policies@flux_t2is") / "key", Checkpoint("key", step, tensors, {}), keep=5
        )
    candidates = project_candidates(project, {"flux_t2is": recipe}, tmp_path / "out")
    assert [(c.name, c.series, c.step) for c in candidates] == [
        ("flux_t2is-2", "flux_t2is", 2), ("flux_t2is-10", "flux_t2is", 10),
    ]  # fmt: skip
    written = load_file(candidates[1].source)
    assert written.keys() == {f"blocks.0.to_q.{end}" for end in ("lora_A.weight", "lora_B.weight", "alpha")}
    assert (
        float(written["blocks.0.to_q.alpha"]) == recipe.lora.alpha
        and float(written["blocks.0.to_q.lora_A.weight"][0, 0]) == 10
    )


def test_prompts_of_a_text_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text(
        "a photo of [trigger]\n\n  a photo of [trigger]\nTwo cats. [LEFT]: a cat [RIGHT]: a sks fox\na dog\n"
    )
    records = graded_prompts(file, "sks fox", 64)
    assert [record.layout for record in records] == ["1x1", "1x2", "1x1"]
    assert records[0].prompt == records[0].theme == "a photo of sks fox"
    assert panel_prompts(records[1]) == ["a cat", "a sks fox"] and panel_prompts(records[2]) == ["a dog"]
    assert [record.prompt for record in without_trigger(records, "SKS fox")] == ["a dog"]


def test_prompts_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    for text, trigger, cause in (
        ("", "fox", "no prompt"), ("a [trigger]", None, "add --trigger"), ("a cat", "fox", "no prompt contains"),
        ("a <|im_end|>", None, "im_end"),
    ):  # fmt: skip
        file.write_text(text)
        with pytest.raises(DataError, match=cause):
            graded_prompts(file, trigger, 64)
    with pytest.raises(DataError, match="need a subject"):
        graded_prompts(None, None, 64)


def test_the_built_in_prompts_contain_the_trigger() -> None:
    records = graded_prompts(None, "sks fox", 512)
    assert len(records) == len(TEMPLATES) == 12 and without_trigger(records, "sks fox") == []
    assert {record.layout for record in records} == {"1x1"} and len({record.idx for record in records}) == 12


def test_the_base_model(repository: Path, tmp_path: Path) -> None:
    project = lay_out(repository, tmp_path)
    params = load(project / "params.yaml")
    first, by_folder = graded_base(project, params, None), graded_base(project, params, "data/zoo/flux")
    assert first == by_folder == graded_base(project, params, "flux_t2is")
    assert (first.family, first.size, first.steps) == ("flux", 192, params.t2is.steps)
    outside = graded_base(None, None, str(project / "data/zoo/flux"))
    assert (outside.family, (outside.guidance, outside.steps)) == ("flux", FAMILIES["flux"].recommended)
    with pytest.raises(DataError, match="neither a folder nor a hub id"):
        graded_base(project, params, "flux_t2si")
    with pytest.raises(DataError, match="contains a FluxKontextPipeline"):
        graded_base(None, None, str(project / "data/zoo/flux_kontext"))
    with pytest.raises(DataError, match="name the base model"):
        graded_base(None, None, None)
    with pytest.raises(DataError, match="no diffusers pipeline"):
        graded_base(None, None, str(tmp_path))
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "Flux2KleinPipeline", "is_distilled": True}))
    distilled = graded_base(None, None, str(tmp_path))
    assert (distilled.guidance, distilled.steps) == (1.0, 4)
    (tmp_path / "modular").mkdir()
    (tmp_path / "modular/modular_model_index.json").write_text(json.dumps({"_class_name": "Flux3ModularPipeline"}))
    assert graded_base(None, None, str(tmp_path / "modular")).family == "flux3_klein"


def test_a_file_without_a_tensor_is_no_reason_to_stop_the_search(tmp_path: Path) -> None:
    save_file({}, tmp_path / "empty.safetensors")
    assert [c.name for c in find_candidates([tmp_path / "empty.safetensors"])] == ["empty"]
