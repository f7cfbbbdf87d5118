"""Writes DreamSim's published checkpoint as a folder of safetensors, once.

    python -m paco_core.benchmarks.dreamsim_conversion CHECKPOINT OUT [--kind ensemble] [--dino model.safetensors]

CHECKPOINT is an unpacked release of DreamSim (0.2): ``clip_vitb16_pretrain.pth.tar``,
``open_clip_vitb16_pretrain.pth.tar``, ``ensemble_lora/``. Its files are read as tensors only (``weights_only``), so
that nothing in them is executed. The DINO backbone, which DreamSim takes from ``torch.hub``, is given as a file with
the same names: timm/vit_base_patch16_224.dino on the hub has it in safetensors. The LoRA is merged.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from paco_core.adapters.settings import Settings
from paco_core.benchmarks.dreamsim import PROJECTION, Branch, write_branches
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError, read_json
from paco_core.io.targets import checked
from paco_core.io.weights import read_tensors, refuse_not_finite

HEAD_WIDTH = 64  # of every published branch
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
OPENAI = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
LORA_NAME = re.compile(r"(?:extractor_list\.(\d+)\.)?(?:model\.)*blocks\.(\d+)\.attn\.qkv\.lora_([AB])\.weight$")


@dataclass(frozen=True)
class DreamSimModel:
    """A published model: its branches in order, and the folder of its LoRA."""

    names: tuple[str, ...]
    lora: str


KINDS = {
    "ensemble": DreamSimModel(("dino_vitb16", "clip_vitb16", "open_clip_vitb16"), "ensemble_lora"),
    "dino_vitb16": DreamSimModel(("dino_vitb16",), "dino_vitb16_single_lora"),
    "clip_vitb32": DreamSimModel(("clip_vitb32",), "clip_vitb32_single_lora"),
    "open_clip_vitb32": DreamSimModel(("open_clip_vitb32",), "open_clip_vitb32_single_lora"),
}


def convert(checkpoint: Path, out: Path, kind: str, dino: Path | None = None) -> None:
    """Write the folder ``out``.

    Raises:
        DataError: naming the file, when one is missing or holds something else.
    """
    checked(out, "new folder")
    model = KINDS[kind]
    lora, scale = _lora(checkpoint / model.lora)
    with atomic(out) as part:
        part.mkdir()
        branches = []
        for number, name in enumerate(model.names):
            if name.startswith("dino"):
                if dino is None:
                    raise DataError(
                        "--dino: the DINO backbone is not in DreamSim's checkpoint; give model.safetensors of "
                        "timm/vit_base_patch16_224.dino"
                    )
                tensors = _dino(_tensors(dino))
            else:
                tensors = _clip(_tensors(checkpoint / f"{name}_pretrain.pth.tar"), name)
            _merge(tensors, {key[1:]: value for key, value in lora.items() if key[0] == number}, scale, name)
            branches.append(_branch(name, tensors))
            _save(tensors, part / branches[-1].weights)
        write_branches(part, branches)


def _branch(name: str, tensors: Mapping[str, torch.Tensor]) -> Branch:
    mean, std = IMAGENET if name.startswith("dino") else OPENAI
    activation = "quick_gelu" if name.startswith("clip") else "gelu"  # open_clip's towers have the exact one
    epsilon = 1e-6 if name.startswith("dino") else 1e-5
    heads = tensors["cls_token"].shape[-1] // HEAD_WIDTH
    return Branch(f"{name}.safetensors", heads, activation, epsilon, mean, std)


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    """Named tensors of a file; of a pickle only what is a tensor or a plain container is read, else it is refused."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if path.suffix == ".safetensors":
        return read_tensors(path)[0]
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises several types; all mean that the file is not taken
        raise DataError(f"{path}: holds more than tensors, or is damaged ({str(error)[:200]})") from None
    content = content.get("state_dict", content) if isinstance(content, dict) else {}
    tensors = {str(name): value for name, value in content.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise DataError(f"{path}: holds no named tensors")
    refuse_not_finite(tensors, path)
    return tensors


def _clip(tensors: Mapping[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """CLIP's tower, which DreamSim stores in DINO's names, in timm's."""
    renamed = {key.replace("pos_drop.", "norm_pre."): value for key, value in tensors.items()}
    bias = renamed.pop("patch_embed.proj.bias", None)
    if bias is not None and bool(bias.any()):
        raise DataError(f"{name}: its patch embedding has a bias, which CLIP's does not have")
    missing = {PROJECTION, "norm_pre.weight", "norm.weight"} - renamed.keys()
    if missing:
        raise DataError(f"{name}: lacks {', '.join(sorted(missing))}; it is not a CLIP tower of DreamSim")
    return renamed


def _dino(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """DINO's tower without its last norm: DreamSim reads the class token before it."""
    return {name: value for name, value in tensors.items() if not name.startswith(("norm.", "head.", "fc_norm."))}


def _lora(folder: Path) -> tuple[dict[tuple[int, int, str], torch.Tensor], float]:
    """{(branch, block, "A" or "B"): matrix} and the scale of their product."""
    for name in ("adapter_config.json", "adapter_model"):
        if not any(folder.glob(f"{name}*")):
            raise DataError(f"{folder}: no LoRA there ({name} is missing); give a checkpoint of DreamSim 0.2")
    config = Settings(read_json(folder / "adapter_config.json"), folder / "adapter_config.json").config
    if set(config.target_modules or ()) != {"qkv"} or config.rank_pattern or config.alpha_pattern or config.use_rslora:
        raise DataError(f"{folder}: expected a plain LoRA of the layers qkv, its config says otherwise")
    files = [folder / f"adapter_model{suffix}" for suffix in (".safetensors", ".bin")]
    tensors = _tensors(next(path for path in (*files, files[0]) if path.is_file()))
    matrices = {}
    for name, value in tensors.items():
        found = LORA_NAME.search(name)
        if found is None:
            raise DataError(f"{folder}: holds {name}, which is not a LoRA of a qkv layer")
        matrices[int(found[1] or 0), int(found[2]), found[3]] = value
    return matrices, config.lora_alpha / config.r


def _merge(
    tensors: dict[str, torch.Tensor], lora: Mapping[tuple[int, str], torch.Tensor], scale: float, name: str
) -> None:
    """Add the LoRA of a branch to its weights.

    Raises:
        DataError: unless there is a pair of matrices that fits for every block, and for no other.
    """
    blocks = {int(key.split(".")[1]) for key in tensors if key.startswith("blocks.")}
    if lora.keys() != {(block, side) for block in blocks for side in "AB"}:
        raise DataError(f"{name}: has {len(blocks)} blocks, its LoRA is for {len({block for block, _ in lora})}")
    for block in blocks:
        key = f"blocks.{block}.attn.qkv.weight"
        change = lora[block, "B"].float() @ lora[block, "A"].float()
        if change.shape != tensors[key].shape:
            raise DataError(f"{name}: {key} is {list(tensors[key].shape)}, its LoRA is for {list(change.shape)}")
        tensors[key] = tensors[key].float() + scale * change


def _save(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    save_file({name: tensor.float().contiguous() for name, tensor in tensors.items()}, path)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("checkpoint", type=Path, help="an unpacked release of DreamSim")
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", choices=sorted(KINDS), default="ensemble")
    parser.add_argument(
        "--dino", type=Path, help="the DINO backbone: model.safetensors of timm/vit_base_patch16_224.dino"
    )
    args = parser.parse_args(argv)
    convert(args.checkpoint, args.out, args.kind, args.dino)
    print(f"{args.out}: name it in consistency_rank.dreamsim")


if __name__ == "__main__":
    main()
