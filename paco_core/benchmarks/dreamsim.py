"""DreamSim: similarity of two pictures as people see it (arXiv 2306.09344), from a folder of safetensors.

Vision transformers look at both pictures; a picture's embedding is what all of them say, one after the other, minus
its mean; the similarity is the cosine (one minus the published distance). The folder is written once from the
published checkpoint by :mod:`paco_core.benchmarks.dreamsim_conversion`: no code is fetched, no pickle is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from torchvision.transforms import InterpolationMode, functional

from paco_core.io.files import DataError, read_json, write_json
from paco_core.io.weights import read_tensors

if TYPE_CHECKING:
    from PIL.Image import Image

CONFIG = "dreamsim.json"
BATCH = 64
PROJECTION = "proj"  # (width, n): from the last layer to the space that CLIP was trained in


@dataclass(frozen=True)
class Branch:
    """One of the transformers, whose shape is that of its tensors."""

    weights: str  # a safetensors file beside the configuration, in timm's names
    heads: int
    activation: str  # "gelu", or "quick_gelu" as OpenAI's CLIP has it
    epsilon: float  # of the layer norms
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def write_branches(folder: Path, branches: Sequence[Branch]) -> None:
    """Write the configuration of a folder whose tensors are there."""
    write_json(folder / CONFIG, {"branches": [asdict(branch) for branch in branches]})


def read_branches(folder: Path) -> list[Branch]:
    """The branches that a folder's configuration names.

    Raises:
        DataError: naming the file, when it is missing or says anything else.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise DataError(f"{folder}: no converted DreamSim there ({CONFIG} is missing); see docs/how-to/reward-model.md")
    try:
        branches = [Branch(**branch) for branch in read_json(path)["branches"]]
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: not a list of branches ({error})") from None
    if not branches:
        raise DataError(f"{path}: names no branch")
    for branch in branches:
        if Path(branch.weights).name != branch.weights or not (folder / branch.weights).is_file():
            raise DataError(f"{path}: names {branch.weights!r}, but no such file is beside it")
    return branches


class DreamSim:
    """A converted DreamSim; gives the embeddings whose cosine is the similarity.

    Raises:
        DataError: when the folder is none, or its tensors are not those of a vision transformer.
    """

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.branches = []
        for branch in read_branches(folder):
            tensors, _ = read_tensors(folder / branch.weights)
            projection = tensors.pop(PROJECTION, None)
            tower = _tower(branch, tensors, folder / branch.weights).to(device).eval()
            self.branches.append((branch, tower, None if projection is None else projection.to(device)))

    def embed(self, images: Sequence[Image]) -> np.ndarray:
        """Embeddings of unit length, (N, width) in float64; the width is the sum of the branches'."""
        parts = []
        for start in range(0, len(images), BATCH):
            with torch.inference_mode():
                part = images[start : start + BATCH]
                rows = torch.cat([self._features(*branch, part) for branch in self.branches], -1)
            parts.append(rows.double().cpu().numpy())
        if not parts:
            return np.zeros((0, 0))
        found = np.concatenate(parts)
        found -= found.mean(axis=1, keepdims=True)
        unit: np.ndarray = found / np.linalg.norm(found, axis=1, keepdims=True)
        return unit

    def _features(
        self, branch: Branch, tower: Any, projection: torch.Tensor | None, images: Sequence[Image]
    ) -> torch.Tensor:
        """Features by one branch, (N, n): its class token, projected where it has a projection."""
        side = tower.patch_embed.img_size[0]
        sizes = [functional.resize(image, [side, side], InterpolationMode.BICUBIC) for image in images]
        pixels = [functional.normalize(functional.to_tensor(image), branch.mean, branch.std) for image in sizes]
        states: torch.Tensor = tower.forward_features(torch.stack(pixels).to(next(tower.parameters()).device))[:, 0]
        return states if projection is None else states @ projection


def _tower(branch: Branch, tensors: Mapping[str, torch.Tensor], path: Path) -> Any:
    """timm's vision transformer of the tensors' shape: CLIP's have a norm before the layers, DINO's class token is
    read before the norm after them, which its file lacks."""
    try:
        patch = tensors["patch_embed.proj.weight"].shape[-1]
        _, places, width = tensors["pos_embed"].shape
        tower = VisionTransformer(
            img_size=round((places - 1) ** 0.5) * patch,
            patch_size=patch,
            embed_dim=width,
            depth=1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blocks.")),
            num_heads=branch.heads,
            num_classes=0,
            pre_norm="norm_pre.weight" in tensors,
            final_norm="norm.weight" in tensors,
            norm_layer=partial(torch.nn.LayerNorm, eps=branch.epsilon),
            act_layer=branch.activation,
            weight_init="skip",
        )
        tower.load_state_dict(dict(tensors))
    except (KeyError, ValueError, RuntimeError, AssertionError) as error:
        text = " ".join(str(error).split())[:300]
        raise DataError(f"{path}: not the tensors of a vision transformer ({text})") from None
    return tower
