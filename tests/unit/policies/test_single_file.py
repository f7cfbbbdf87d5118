"""Weights of a transformer in one file, as image tools ship them: loaded exactly, or refused with the remedy."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import Flux2KleinPipeline
from safetensors.torch import load_file, save_file

from paco_core.config import profiles
from paco_core.config.params import Params, ParamsError, parse
from paco_core.config.references import references, weights_file
from paco_core.data.grids.text_to_image import TextToImage
from paco_core.io.files import DataError
from paco_core.planning.preflight import _missing_inputs
from paco_core.planning.stage_problems import stage_problems
from paco_core.policies import base, transformer
from paco_core.policies.families import FAMILIES
from paco_core.rewards.registry import validate_judge_folders
from paco_core.stages import declared

ZOO = "data/zoo/flux2_klein"
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
KEY = "policies.recipes.flux_t2is"
NAMES = {
    "x_embedder": "img_in",
    "context_embedder": "txt_in",
    "time_guidance_embed.timestep_embedder.linear_1": "time_in.in_layer",
    "time_guidance_embed.timestep_embedder.linear_2": "time_in.out_layer",
    "modulation_img.linear": "modulation_img.lin",
    "modulation_txt.linear": "modulation_txt.lin",
    "single_stream_modulation.linear": "single_stream_modulation.lin",
    "proj_out": "final_layer.linear",
    "single_transformer_blocks": "single_blocks",
    "transformer_blocks": "double_blocks",
    "attn.to_qkv_mlp_proj": "linear1",
    "attn.to_out.0": "img_attn.proj",
    "attn.to_add_out": "txt_attn.proj",
    "attn.to_out": "linear2",
    "ff_context.linear_in": "txt_mlp.0",
    "ff_context.linear_out": "txt_mlp.2",
    "ff.linear_in": "img_mlp.0",
    "ff.linear_out": "img_mlp.2",
    "attn.norm_added_q.weight": "txt_attn.norm.query_norm.scale",
    "attn.norm_added_k.weight": "txt_attn.norm.key_norm.scale",
}


def released(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a FLUX.2 transformer with the names of its authors, as ComfyUI reads them."""
    renamed: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        new = name
        norm = "norm" if name.startswith("single") else "img_attn.norm"
        for old, replacement in {
            **NAMES,
            "attn.norm_q.weight": f"{norm}.query_norm.scale",
            "attn.norm_k.weight": f"{norm}.key_norm.scale",
        }.items():
            new = new.replace(old, replacement)
        renamed[new] = tensor
    for name in [name for name in renamed if name.endswith(("attn.to_q.weight", "attn.add_q_proj.weight"))]:
        kind = "img" if "to_q" in name else "txt"
        parts = (
            [renamed.pop(name.replace("_q", f"_{letter}")) for letter in "qkv"]
            if kind == "img"
            else [renamed.pop(name.replace("add_q", f"add_{letter}")) for letter in "qkv"]
        )
        block = name.partition(".attn.")[0]
        renamed[f"{block}.{kind}_attn.qkv.weight"] = torch.cat(parts)
    scale, shift = renamed.pop("norm_out.linear.weight").chunk(2)
    renamed["final_layer.adaLN_modulation.1.weight"] = torch.cat([shift, scale])
    return {name: tensor.contiguous() for name, tensor in renamed.items()}


@pytest.fixture
def tensors(repository: Path) -> dict[str, torch.Tensor]:
    return load_file(repository / ZOO / WEIGHTS)


@pytest.fixture
def pipeline(repository: Path, tmp_path: Path) -> Path:
    """The other parts of klein: its folder, without the weights of the transformer."""
    folder = tmp_path / "klein"
    shutil.copytree(repository / ZOO, folder)
    (folder / WEIGHTS).unlink()
    return folder


def load(folder: Path, file: Path) -> Any:
    return base.load_policy("flux2_klein", str(folder), "cpu", "float32", transformer=file)


@pytest.mark.parametrize("names", ["authors", "diffusers"])
def test_a_file_of_an_image_tool_is_loaded_exactly(
    tensors: dict[str, torch.Tensor], pipeline: Path, tmp_path: Path, names: str
) -> None:
    stored = released(tensors) if names == "authors" else tensors
    assert names == "diffusers" or not set(stored) & set(tensors)
    save_file(stored, tmp_path / "klein.safetensors")
    loaded = load(pipeline, tmp_path / "klein.safetensors").transformer.state_dict()
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_a_file_with_other_tensors_is_refused(tensors: dict[str, torch.Tensor], pipeline: Path, tmp_path: Path) -> None:
    file = tmp_path / "klein.safetensors"
    save_file({**tensors, "vae.decoder.conv_in.weight": torch.zeros(4)}, file)
    with pytest.raises(DataError, match=r"klein.safetensors: contains .* numbers, and the Flux2Transformer2DModel"):
        _ = load(pipeline, file).transformer
    first = next(iter(tensors))
    save_file({f"other.{name}" if name == first else name: tensor for name, tensor in tensors.items()}, file)
    with pytest.raises(DataError, match=r"klein\.safetensors: "):
        _ = load(pipeline, file).transformer
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"klein\.safetensors: cannot be read"):
        _ = load(pipeline, file).transformer


def test_a_quantised_file_is_loaded_onto_the_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """diffusers ignores a device map here, and would leave the weights in main memory."""
    options: dict[str, Any] = {}
    monkeypatch.setattr(
        transformer, "transformer_quantization", lambda *_: {"quantization_config": "nf4", "device_map": {"": "cuda"}}
    )
    monkeypatch.setattr(transformer, "load_single_file", lambda *_, **keywords: options.update(keywords))
    transformer.load_transformer(
        Flux2KleinPipeline, "org/klein", device="cuda", dtype="bfloat16", base="nf4", file=tmp_path / "a.safetensors"
    )
    assert options == {"dtype": torch.bfloat16, "quantization_config": "nf4", "device": "cuda"}


@pytest.mark.parametrize("family", FAMILIES)
def test_diffusers_reads_one_file_of_every_family(family: str) -> None:
    transformer.validate_single_file(family)


def params_with(repository: Path, **recipe: object) -> Params:
    tree = profiles.resolve(repository, "klein")
    tree["policies"]["recipes"]["flux_t2is"] |= recipe
    return parse(tree)


def fault(params: Params, key: str, root: Path) -> str | None:
    (reference,) = (reference for reference in references(params) if reference.key == key)
    return reference.fault(root)


def test_check_names_the_key_for_one_file(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "tool" / "klein.safetensors"
    file.parent.mkdir()
    file.touch()
    for path in (file, file.parent):
        message = fault(params_with(repository, model=str(path)), f"{KEY}.model", repository)
        assert message is not None and "set its key transformer" in message and "from_single_file" in message
        params = params_with(repository, transformer=str(path))
        assert fault(params, f"{KEY}.transformer", repository) is None
        assert weights_file(repository, str(path)) == file
        assert not any("transformer" in problem for problem in stage_problems(params, repository, declared(repository)))
    (file.parent / "vae.safetensors").touch()
    for path, words in (
        (file.parent, "contains 2 safetensors files"),
        (file.with_name("klein.ckpt"), "is missing; "),
        (tmp_path, "contains 0 safetensors files"),
    ):
        message = fault(params_with(repository, transformer=str(path)), f"{KEY}.transformer", repository)
        assert message is not None and words in message
        with pytest.raises(DataError):
            weights_file(repository, str(path))


def test_check_names_a_round_that_would_generate_with_another_transformer(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.safetensors").touch()
    tree = profiles.resolve(repository, "rounds")
    recipe = tree["policies"]["recipes"][tree["rounds"]["recipe"]]

    def problems() -> list[str]:
        texts = stage_problems(parse(tree), repository, declared(repository))
        return [text for text in texts if text.startswith(f"{KEY}.transformer")]

    assert problems() == []
    recipe["transformer"] = str(tmp_path / "mine.safetensors")
    (problem,) = problems()
    assert "grids.model" in problem and "save_pretrained" in problem


def test_the_documented_script_saves_a_folder_that_grids_reads(
    repository: Path, tensors: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (repository / "docs/how-to/prompts-and-images.md").read_text()
    (script,) = (block.partition("```")[0] for block in page.split("```python\n")[1:] if "from_single_file" in block)
    assert script.count('"black-forest-labs/FLUX.2-klein-base-4B"') == script.count("torch.bfloat16") == 1
    script = script.replace("black-forest-labs/FLUX.2-klein-base-4B", str(repository / ZOO)).replace(
        "bfloat16", "float32"
    )
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, tmp_path / "my-klein.safetensors")
    monkeypatch.chdir(tmp_path)
    exec(script, {})
    tree = profiles.resolve(repository, "storybook")
    tree["grids"]["model"] = str(tmp_path / "models/my-klein")
    loaded = TextToImage.load(tree["grids"]["model"], parse(tree).grids).pipeline.transformer.state_dict()
    assert all(torch.equal(loaded[name], tensor + 1) for name, tensor in tensors.items())


@pytest.mark.parametrize(
    ("key", "marker"),
    [
        ("reward.base", "config.json"),
        ("consistency_rank.clip", "open_clip_config.json"),
        ("grids.model", "model_index"),
    ],
)
def test_a_folder_in_another_layout_is_named_with_the_file_that_is_missing(
    repository: Path, tmp_path: Path, key: str, marker: str
) -> None:
    tree = profiles.resolve(repository, "storybook")
    section, name = key.split(".")
    tree[section][name] = str(tmp_path)
    message = fault(parse(tree), key, repository)
    assert message is not None and f"has no {marker}" in message


@pytest.mark.parametrize(("source", "marker"), [("merged", "config.json"), ("adapter", "adapter_config.json")])
def test_a_published_reward_model_is_checked_by_its_source(
    repository: Path, tmp_path: Path, source: str, marker: str
) -> None:
    tree = profiles.resolve(repository, "klein")
    tree["reward"] |= {"source": source, "weights": str(tmp_path)}
    (problem,) = (text for text in _missing_inputs(parse(tree), repository) if text.startswith("reward.weights"))
    assert f"has no {marker}" in problem
    (tmp_path / marker).touch()
    assert not any(text.startswith("reward.weights") for text in _missing_inputs(parse(tree), repository))


def test_the_clip_of_a_reward_is_checked_before_a_run(repository: Path, tmp_path: Path) -> None:
    rewards = profiles.resolve(repository, "klein")["policies"]["recipes"]["flux_t2is"]["rewards"]
    rewards["terms"]["clip_t"]["model"] = str(tmp_path)
    recipe = params_with(repository, rewards=rewards).policies.recipes["flux_t2is"]
    with pytest.raises(DataError, match=r"terms.clip_t.model: .* has no open_clip_config.json"):
        validate_judge_folders(repository, recipe.rewards)
    (tmp_path / "open_clip_config.json").touch()
    validate_judge_folders(repository, recipe.rewards)


def test_a_tilde_is_the_folder_of_the_user(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    params = params_with(repository, transformer="~/klein.safetensors", model="~")
    recipe = params.policies.recipes["flux_t2is"]
    assert (recipe.transformer, recipe.model) == (str(tmp_path / "klein.safetensors"), str(tmp_path))
    with pytest.raises(ParamsError, match="transformer: .*no such user"):
        params_with(repository, transformer="~nobody-of-this-name/klein.safetensors")
