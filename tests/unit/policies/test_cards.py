"""The example on each policy's card, run word by word: plain diffusers paints as the policy does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from paco_core.config.params import Params, PolicyLora, parse
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.model_card import policy_model_card
from paco_core.grpo.prompt_split import PromptSplit
from paco_core.grpo.rollout import Sampling, rollout
from paco_core.grpo.trainer import RunContext
from paco_core.policies import base
from tests.support.tiny import tiny_flux, tiny_kontext
from tests.support.tiny_pipelines import (
    flux2_klein,
    flux3_klein,
    qwen_image,
    qwen_image_21,
    qwen_image_edit,
    qwen_image_edit_plus,
    z_image,
)

SIZE, PLACE = (64, 64), "data/policies/mine"
MODELS: dict[str, Callable[[Path], Path]] = {
    "flux": tiny_flux,
    "flux_kontext": tiny_kontext,
    "qwen_image_edit": qwen_image_edit,
    "qwen_image_edit_plus": partial(qwen_image_edit_plus, zero_cond_t=True),
    "qwen_image": qwen_image,
    "flux2_klein": partial(flux2_klein, gain=1),
    "flux3_klein": partial(flux3_klein, gain=1),
    "z_image": z_image,
    "qwen_image_21": partial(qwen_image_21, gain=1, sample_sigmas=[1.0, 0.8, 0.5, 0.2]),
}
RECIPES = {
    "flux": "flux_t2is",
    "flux_kontext": "kontext_edit",
    "qwen_image_edit": "qwen_edit",
    "qwen_image_edit_plus": "qwen_edit",
    "qwen_image": "flux_t2is",
    "flux2_klein": "kontext_edit",
    "flux3_klein": "kontext_edit",
    "z_image": "flux_t2is",
    "qwen_image_21": "flux_t2is",
}


def settings(repository: Path, family: str, dtype: str, **changes: Any) -> Params:
    tree = yaml.safe_load((repository / "params.yaml").read_text())
    tree["policies"]["defaults"].update(dtype=dtype, eval_steps=3)
    settings = {"family": family, "model": "model", "eval_sizes": [32, 64], "start": None}
    settings |= {"max_sequence_length": 48, "guidance": 2.5}
    tree["policies"]["recipes"] = {"mine": tree["policies"]["recipes"][RECIPES[family]] | settings | changes}
    return parse(tree)


def generate(policy: Any, record: PromptRecord, picture: Image.Image, params: Params) -> np.ndarray:
    """What the policy paints from the generator's seed 0."""
    recipe = params.policies.recipes["mine"]
    references = ([picture], [[SIZE]]) if policy.edits else (None, ())
    encoded = policy.encode([record.prompt], recipe.max_sequence_length, *references)

    class Seed:
        generator_seed = 0

    trajectory = rollout(policy, encoded, [0], [Seed()], Sampling.for_policy(policy, SIZE, 3, recipe.guidance))  # type: ignore[list-item]
    return np.asarray(policy.decode(trajectory.latents, SIZE)[0], dtype=int)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("family", "changes", "dtype"),
    [
        ("flux", {}, "float32"),
        ("flux_kontext", {"reference_size": 32}, "bfloat16"),
        ("qwen_image_edit", {"reference_size": 32}, "bfloat16"),
        ("qwen_image_edit_plus", {"reference_size": 1024}, "float32"),
        ("qwen_image_edit_plus", {"reference_size": 32}, "bfloat16"),
        ("qwen_image", {"max_sequence_length": 128}, "float32"),
        ("flux2_klein", {}, "float32"),
        ("z_image", {}, "float32"),
        ("z_image", {"guidance": 1.0}, "float32"),
        ("qwen_image_21", {}, "float32"),
        ("qwen_image_21", {"guidance": 1.0}, "bfloat16"),
        ("qwen_image_21", {"task": "edits"}, "float32"),
        ("qwen_image_21", {"task": "edits", "reference_size": 96}, "float32"),
        ("flux2_klein", {"task": "edits"}, "float32"),
        ("flux2_klein", {"task": "edits", "reference_size": 1024}, "bfloat16"),
        ("flux3_klein", {}, "float32"),
        ("flux3_klein", {"task": "edits", "guidance": 1.0}, "float32"),
        ("flux3_klein", {"task": "edits", "reference_size": 1024}, "bfloat16"),
    ],
)
def test_the_example_on_a_card_paints_as_the_policy(
    repository: Path, tmp_path: Path, family: str, changes: dict[str, Any], dtype: str
) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        MODELS[family](tmp_path / "model")
    params = settings(repository, family, dtype, **changes)
    recipe = params.policies.recipes["mine"]
    options = {"task": recipe.task, "reference_size": recipe.reference_size}
    policy: Any = base.load_policy(family, str(tmp_path / "model"), "cpu", dtype, **options)
    policy.add_adapter(PolicyLora(rank=4, alpha=8), 0)
    generator = torch.Generator().manual_seed(5)
    for parameter in policy.trainable().values():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.1
    policy.save_adapter(tmp_path / PLACE / "adapter")
    record = PromptRecord(
        idx="p1", prompt='a "red" cat\'s beach', height=64, width=64, layout="1x1", theme="cats", category="Character",
        task_name="Multi-pose", criteria={},
    )  # fmt: skip
    rng = np.random.default_rng(4)
    small = Image.fromarray(rng.integers(0, 255, (4, 4, 3), dtype=np.uint8))
    picture = small.resize((80, 80), Image.Resampling.NEAREST)
    (tmp_path / PLACE / "samples/reference").mkdir(parents=True)
    picture.save(tmp_path / PLACE / "samples/reference/p1.png")
    split, context = PromptSplit([record], [record]), RunContext(final=Path(PLACE), benchmark="t2is")
    card = policy_model_card(recipe, policy, split, context, {"license": "apache-2.0"}, 1)
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    completed = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ}, capture_output=True, text=True, timeout=240
    )
    assert completed.returncode == 0, f"{code}\n{completed.stderr[-3000:]}"
    from_example = np.asarray(Image.open(tmp_path / "image.png").convert("RGB"), dtype=int)
    assert from_example.std() > 1
    difference = np.abs(from_example - generate(policy, record, picture, params))
    assert difference.max() <= (1 if dtype == "float32" else 40), "rounding of half precision alone"
