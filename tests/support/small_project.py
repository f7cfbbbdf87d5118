"""A project with the embedded models in which nothing has run, and adapters that were moved a little."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

from paco_core.config.params import load
from paco_core.policies.base import load_recipe_policy


def lay_out(repository: Path, root: Path) -> Path:
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(repository / name, root)
    (root / "data").mkdir()
    (root / "data/zoo").symlink_to(repository / "data/zoo")
    return root


def lay_out_klein(repository: Path, root: Path) -> Path:
    """As :func:`lay_out`, with the zoo's FLUX.2 [klein] as the model of ``flux_t2is``, which generates stories."""
    lay_out(repository, root)
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["policies"]["recipes"]["flux_t2is"] |= {
        "family": "flux2_klein", "model": "data/zoo/flux2_klein", "panels": "one_by_one", "train_size": 128,
        "eval_sizes": [128], "guidance": 1.0, "max_sequence_length": 45,
    }  # fmt: skip
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    return root


def adapter(project: Path, recipe: str = "flux_t2is", by: float = 0.02) -> Path:
    """An adapter of a policy that was moved ``by`` so much."""
    import torch

    params = load(project / "params.yaml")
    policy = load_recipe_policy(params.policies.recipes[recipe], project)
    policy.add_adapter(params.policies.recipes[recipe].lora, seed=0)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(by)
    folder = project / "data/policies" / recipe / "adapter"
    policy.save_adapter(folder)
    return folder
