"""A training of each family by `Trainer.run`, and again from its checkpoint, on small random weights.

    python -m speed.gpu_trainer                                  # every case on a GPU; a table
    python -m speed.gpu_trainer flux klein_edit --device cpu --dtypes float32

The weights are written to a folder, loaded by ``from_pretrained`` and moved, as those of a real model are: what a model
caches on its way to the device is cached here, too. The reward is the darkness of a picture.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from paco_core.data.prompts.edit_prompts import storybook_edit_prompts
from paco_core.grpo.prompt_split import PromptSplit, held_out_edits
from paco_core.grpo.trainer import Trainer
from paco_core.policies import base
from paco_core.rewards.base import RewardBatch
from tests.support import grpo_toys, tiny, tiny_pipelines

CASES: dict[str, tuple[str, Callable[[Path], Path], str | None]] = {
    "flux": ("flux", tiny.tiny_flux, None),
    "flux_kontext": ("flux_kontext", tiny.tiny_kontext, None),
    "qwen_image_edit": ("qwen_image_edit", tiny_pipelines.qwen_image_edit, None),
    "plus_2509": ("qwen_image_edit_plus", tiny_pipelines.qwen_image_edit_plus, None),
    "plus_2511": ("qwen_image_edit_plus", partial(tiny_pipelines.qwen_image_edit_plus, zero_cond_t=True), None),
    "qwen_image": ("qwen_image", tiny_pipelines.qwen_image, None),
    "z_image": ("z_image", tiny_pipelines.z_image, None),
    "qwen_21": ("qwen_image_21", tiny_pipelines.qwen_image_21, "sets"),
    "qwen_21_edit": ("qwen_image_21", tiny_pipelines.qwen_image_21, "edits"),
    "klein": ("flux2_klein", tiny_pipelines.flux2_klein, "sets"),
    "klein_edit": ("flux2_klein", tiny_pipelines.flux2_klein, "edits"),
    "flux3": ("flux3_klein", tiny_pipelines.flux3_klein, "sets"),
    "flux3_edit": ("flux3_klein", tiny_pipelines.flux3_klein, "edits"),
}
NOISE: dict[str, dict[str, Any]] = {
    "ppo": {"noise_steps": [1], "dynamics": "flow_sde"},
    "nft": {"noise_steps": [], "dynamics": "ode"},
}


REWARDS: dict[str, Any] = {
    "terms": {"darkness": {"weight": 1.0}}, "aggregator": "weighted_sum", "advantage_std": "group",
}  # fmt: skip


class Darkness:
    """1 where a picture is black, 0 where it is white."""

    name = "darkness"

    def __init__(self) -> None:
        self.causes: dict[str, int] = {}

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        return np.array([1 - np.asarray(picture, dtype=float).mean() / 255 for picture in batch.whole])


def split(*, edits: bool) -> PromptSplit:
    """Four prompts of sets to train on, or the editing prompts of five pictures, and unseen ones."""
    if not edits:
        return PromptSplit(grpo_toys.TRAIN[:4], grpo_toys.UNSEEN[:1])
    edit_prompts = storybook_edit_prompts(8, 32, 0)
    edit_prompts.hold_out(3, 0)
    return held_out_edits(edit_prompts.records, lambda _record: [Image.new("RGB", (64, 64), (200, 40, 40))], 3, 0)


def trainer(
    case: str, model: Path, loss: str, dtype: str, device: str, epochs: int, changes: Mapping[str, Any] | None = None
) -> Trainer:
    """A training of a case on its small model.

    Args:
        changes: of the recipe.
    """
    family, _, task = CASES[case]
    chosen = {"task": task} if task else {}
    recipe = grpo_toys.recipe(
        family=family, device=device, dtype=dtype, loss=loss, guidance=2.0, train_size=64, eval_sizes=[64],
        rewards=REWARDS, epochs=epochs, eval_every=9, eval_prompts=1, lora={"rank": 2, "alpha": 4, "targets": None},
        gradient_checkpointing=True, max_sequence_length=16, clip_range=0.05,
        **{**chosen, **NOISE[loss], **(changes or {})},
    )  # fmt: skip
    policy = base.load_policy(family, str(model), device, dtype, **chosen)  # type: ignore[arg-type]
    prompts = split(edits=policy.edits)
    return grpo_toys.trainer(
        policy=policy, recipe=recipe, rewards={"darkness": Darkness()},
        train=prompts.trained, unseen=prompts.unseen, reference=prompts.reference,
    )  # fmt: skip


def weights(out: Path) -> str:
    """Digest of an adapter's weights."""
    files = sorted((out / "adapter").glob("*.safetensors"))
    return hashlib.md5(b"".join(path.read_bytes() for path in files), usedforsecurity=False).hexdigest()


def measure(case: str, model: Path, loss: str, dtype: str, device: str, folder: Path) -> dict[str, Any]:
    """Train two epochs at a stretch, and two with a break; a training that fails is a row with its error."""
    row, begun = {"case": case, "loss": loss, "dtype": dtype}, time.monotonic()
    uninterrupted, resumed, checkpoints = folder / "whole", folder / "broken", folder / "checkpoints"
    try:
        outcome = trainer(case, model, loss, dtype, device, 2).run(uninterrupted, folder / "other")
        trainer(case, model, loss, dtype, device, 1).run(resumed, checkpoints)
        trainer(case, model, loss, dtype, device, 2).run(resumed, checkpoints)
    except Exception as error:  # a failed case is a row of the table  # noqa: BLE001
        return row | {"error": f"{type(error).__name__}: {str(error)[:120]}"}
    rows = grpo_toys.figures(outcome)
    gap = max((figures.get("update/ratio_gap", 0.0) for figures in rows), default=0.0)
    is_equal = "yes" if weights(uninterrupted) == weights(resumed) else "NO"
    return row | {"ratio gap": gap, "resumes to the same bytes": is_equal, "seconds": time.monotonic() - begun}


def rows_of(cases: list[str], dtypes: list[str], device: str) -> list[dict[str, Any]]:
    """A row of each case, loss and number format."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            torch.manual_seed(1)
            model = CASES[case][1](Path(folder) / case)
            for loss in NOISE:
                for dtype in dtypes:
                    place = Path(folder) / f"{case}-{loss}-{dtype}"
                    rows.append(measure(case, model, loss, dtype, device, place))
                    print(rows[-1], file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)}; all of them by default")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "mixed"])
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    if unknown := [case for case in args.cases if case not in CASES]:
        parser.error(f"no case {unknown[0]!r}; there are: {', '.join(CASES)}")
    print(json.dumps(rows_of(args.cases or list(CASES), args.dtypes, args.device)))


if __name__ == "__main__":
    main()
