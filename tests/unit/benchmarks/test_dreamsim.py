"""DreamSim from safetensors: the published computation, step by step, and a conversion that runs no code."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn import functional

from paco_core.benchmarks.dreamsim import CONFIG, DreamSim, read_branches
from paco_core.benchmarks.dreamsim_conversion import IMAGENET, OPENAI, convert, main
from paco_core.io.files import DataError

WIDTH, DEPTH, SIDE, PATCH, RANK, ALPHA, SPACE = 128, 2, 32, 16, 4, 0.5, 24  # two heads of 64, as the real ones' are
Tensors = dict[str, torch.Tensor]


def tower(seed: int, *, clip: bool) -> Tensors:
    """Random weights in the names of DINO's code, which DreamSim uses for its CLIP towers, too."""
    torch.manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape) * 0.2

    tensors = {
        "cls_token": drawn(1, 1, WIDTH),
        "pos_embed": drawn(1, (SIDE // PATCH) ** 2 + 1, WIDTH),
        "patch_embed.proj.weight": drawn(WIDTH, 3, PATCH, PATCH),
        "patch_embed.proj.bias": torch.zeros(WIDTH) if clip else drawn(WIDTH),
        "norm.weight": 1 + drawn(WIDTH),
        "norm.bias": drawn(WIDTH),
    }
    if clip:
        tensors |= {"pos_drop.weight": 1 + drawn(WIDTH), "pos_drop.bias": drawn(WIDTH), "proj": drawn(WIDTH, SPACE)}
    for block in range(DEPTH):
        for name, shape in (
            ("attn.qkv", (3 * WIDTH, WIDTH)),
            ("attn.proj", (WIDTH, WIDTH)),
            ("mlp.fc1", (4 * WIDTH, WIDTH)),
            ("mlp.fc2", (WIDTH, 4 * WIDTH)),
        ):
            tensors[f"blocks.{block}.{name}.weight"] = drawn(*shape)
            tensors[f"blocks.{block}.{name}.bias"] = drawn(shape[0])
        for name in ("norm1", "norm2"):
            tensors[f"blocks.{block}.{name}.weight"] = 1 + drawn(WIDTH)
            tensors[f"blocks.{block}.{name}.bias"] = drawn(WIDTH)
    return tensors


def lora(branches: int) -> Tensors:
    torch.manual_seed(99)
    shapes = {"A": (RANK, WIDTH), "B": (3 * WIDTH, RANK)}
    return {
        f"base_model.model.extractor_list.{branch}.model.blocks.{block}.attn.qkv.lora_{side}.weight": torch.randn(shape)
        for branch in range(branches)
        for block in range(DEPTH)
        for side, shape in shapes.items()
    }


def release(folder: Path) -> Path:
    """DreamSim 0.2's files in little, and the DINO backbone beside them."""
    (folder / "ensemble_lora").mkdir(parents=True)
    torch.save({"state_dict": tower(2, clip=True)}, folder / "clip_vitb16_pretrain.pth.tar")
    torch.save({"state_dict": tower(3, clip=True)}, folder / "open_clip_vitb16_pretrain.pth.tar")
    save_file(tower(1, clip=False), folder / "dino.safetensors")
    save_file(lora(3), folder / "ensemble_lora" / "adapter_model.safetensors")
    config = {"r": RANK, "lora_alpha": ALPHA, "target_modules": ["qkv"], "bias": "none"}
    (folder / "ensemble_lora" / "adapter_config.json").write_text(json.dumps(config))
    return folder


def converted(checkpoint: Path) -> Path:
    convert(checkpoint, checkpoint.parent / "dreamsim", "ensemble", checkpoint / "dino.safetensors")
    return checkpoint.parent / "dreamsim"


def little(folder: Path) -> Path:
    """A converted DreamSim of random weights below ``folder``."""
    return converted(release(folder / "released"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return release(tmp_path / "released")


def pictures(count: int) -> list[Image.Image]:
    draws = np.random.default_rng(0)
    return [Image.fromarray(draws.integers(0, 256, (40 + n, 50, 3), dtype=np.uint8)) for n in range(count)]


def slowly(image: Image.Image, weights: Tensors, adapter: Tensors, branch: int, kind: str) -> torch.Tensor:
    """One branch on one picture, as the published code goes about it: LoRA beside the weights, block by block."""
    clip, epsilon = kind != "dino", 1e-6 if kind == "dino" else 1e-5
    mean, std = (torch.tensor(v)[:, None, None] for v in (OPENAI if clip else IMAGENET))
    small = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    pixels = (torch.from_numpy(np.array(small)).permute(2, 0, 1) / 255 - mean) / std

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.layer_norm(x, (WIDTH,), weights[f"{name}.weight"], weights[f"{name}.bias"], epsilon)

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    patches = functional.conv2d(
        pixels[None], weights["patch_embed.proj.weight"], weights["patch_embed.proj.bias"], PATCH
    )
    x = torch.cat([weights["cls_token"][0], patches[0].flatten(1).T]) + weights["pos_embed"][0]
    if clip:
        x = norm(x, "pos_drop")
    for block in range(DEPTH):
        here, matrices = f"blocks.{block}", f"base_model.model.extractor_list.{branch}.model.blocks.{block}.attn.qkv"
        y = norm(x, f"{here}.norm1")
        low = y @ adapter[f"{matrices}.lora_A.weight"].T @ adapter[f"{matrices}.lora_B.weight"].T
        heads = linear(y, f"{here}.attn.qkv") + ALPHA / RANK * low
        q, k, v = heads.reshape(-1, 3, WIDTH // 64, 64).permute(1, 2, 0, 3)
        mixed = (q @ k.transpose(-2, -1) / 8).softmax(-1) @ v
        x = x + linear(mixed.transpose(0, 1).flatten(1), f"{here}.attn.proj")
        wide = linear(norm(x, f"{here}.norm2"), f"{here}.mlp.fc1")
        x = x + linear(
            wide * torch.sigmoid(1.702 * wide) if kind == "clip" else functional.gelu(wide), f"{here}.mlp.fc2"
        )
    return norm(x, "norm")[0] @ weights["proj"] if clip else x[0]


def test_the_similarity_is_the_published_one(checkpoint: Path) -> None:
    images = pictures(3)
    kinds = [("dino", tower(1, clip=False)), ("clip", tower(2, clip=True)), ("open_clip", tower(3, clip=True))]
    rows = [
        torch.cat([slowly(image, weights, lora(3), n, kind) for n, (kind, weights) in enumerate(kinds)])
        for image in images
    ]
    centred = [row / row.norm() - (row / row.norm()).mean() for row in rows]
    expected = [functional.cosine_similarity(centred[0], other, dim=0).item() for other in centred]
    found = DreamSim(converted(checkpoint)).embed(images)
    assert found.shape == (3, WIDTH + 2 * SPACE)
    assert found @ found[0] == pytest.approx(expected, abs=1e-5)
    assert expected[0] == pytest.approx(1.0) and max(expected[1:]) < 0.999


def test_one_branch_alone_and_through_the_command(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkpoint / "dino_vitb16_single_lora").mkdir()
    torch.save(lora(1), checkpoint / "dino_vitb16_single_lora" / "adapter_model.bin")
    config = (checkpoint / "ensemble_lora" / "adapter_config.json").read_text()
    (checkpoint / "dino_vitb16_single_lora" / "adapter_config.json").write_text(config)
    out = checkpoint.parent / "single"
    main([str(checkpoint), str(out), "--kind", "dino_vitb16", "--dino", str(checkpoint / "dino.safetensors")])
    assert "consistency_rank.dreamsim" in capsys.readouterr().out
    assert DreamSim(out).embed(pictures(2)).shape == (2, WIDTH)
    assert DreamSim(out).embed([]).shape == (0, 0)


class Trap:
    """What a pickle may do when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("sprung"),))


def test_a_checkpoint_that_carries_code_is_refused_and_nothing_is_run(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkpoint)
    torch.save({"state_dict": {"proj": Trap()}}, checkpoint / "clip_vitb16_pretrain.pth.tar")
    with pytest.raises(DataError, match=r"clip_vitb16_pretrain.pth.tar: holds more than tensors"):
        converted(checkpoint)
    assert not (checkpoint / "sprung").exists() and not (checkpoint.parent / "dreamsim").exists()
    pickle.load(io.BytesIO(pickle.dumps(Trap())))  # the trap does spring where it is let
    assert (checkpoint / "sprung").exists()


def test_what_is_wrong_with_a_checkpoint_is_said(checkpoint: Path) -> None:
    out = checkpoint.parent / "dreamsim"
    with pytest.raises(DataError, match="--dino"):
        convert(checkpoint, out, "ensemble")
    with pytest.raises(DataError, match="clip_vitb32_single_lora: no LoRA there"):
        convert(checkpoint, out, "clip_vitb32")
    adapter = checkpoint / "ensemble_lora" / "adapter_model.safetensors"
    save_file(lora(2), adapter)
    with pytest.raises(DataError, match="open_clip_vitb16: has 2 blocks, its LoRA is for 0"):
        converted(checkpoint)
    save_file({"base_model.model.head.weight": torch.ones(1)}, adapter)
    with pytest.raises(DataError, match=r"holds base_model.model.head.weight, which is not a LoRA"):
        converted(checkpoint)
    assert not out.exists()


def test_a_folder_that_is_none_is_named(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"no converted DreamSim there .{CONFIG} is missing"):
        read_branches(tmp_path)
    folder = converted(checkpoint)
    tensors = load_file(folder / "dino_vitb16.safetensors")
    del tensors["blocks.1.attn.proj.bias"]
    save_file(tensors, folder / "dino_vitb16.safetensors")
    with pytest.raises(DataError, match=r"dino_vitb16.safetensors: not the tensors of a vision transformer .*blocks.1"):
        DreamSim(folder)
    (folder / CONFIG).write_text('{"branches": [{"weights": "../dino.safetensors"}]}')
    with pytest.raises(DataError, match="not a list of branches"):
        read_branches(folder)
