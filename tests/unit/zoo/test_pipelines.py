"""Trainings of the zoo's pipelines: what lies in the folder, and that a finished one is only saved again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from zoo.fitting import Schedule, fit_pipeline

SCHEDULE = Schedule(steps=4, learning_rate=0.1, warmup=1, checkpoint_every=2)


class Saved:
    """Stands for a pipeline of two components."""

    def __init__(self, parts: nn.Module) -> None:
        self.parts = parts

    def save_pretrained(self, save_directory: str) -> None:
        folder = Path(save_directory)
        assert not self.parts.training, "dropout would be on"
        for name in ("transformer", "text_encoder"):
            (folder / name).mkdir(parents=True)
            (folder / name / "config.json").write_text('{"_name_or_path": "elsewhere/flux", "layers": 4}')
            save_file({k: v.contiguous() for k, v in self.parts.state_dict().items()}, folder / name / "m.safetensors")
        parts = {"vae": ["diffusers", "VAE", {"pretrained_model_name_or_path": save_directory, "subfolder": "vae"}]}
        (folder / "modular_model_index.json").write_text(json.dumps({"_class_name": "Modular", **parts}))


def test_a_training_is_saved_halved_and_a_finished_one_is_not_trained_again(tmp_path: Path) -> None:
    out, steps = tmp_path / "zoo" / "small", list[int]()

    def train() -> nn.Module:
        torch.manual_seed(0)
        parts = nn.Linear(4, 4)

        def loss_at(step: int) -> torch.Tensor:
            steps.append(step)
            return parts(torch.ones(1, 4)).square().mean()

        fit_pipeline(
            parts, loss_at, SCHEDULE, tmp_path / "work", out, lambda _line: None,
            hidden=lambda name, _weight: name == "weight", pipeline=lambda: Saved(parts),
        )  # type: ignore[arg-type,return-value]  # fmt: skip
        assert parts.training
        return parts

    trained = train()
    saved = [load_file(out / name / "m.safetensors")["weight"] for name in ("transformer", "text_encoder")]
    assert steps == [0, 1, 2, 3]
    assert json.loads((out / "transformer" / "config.json").read_text()) == {"layers": 4}
    index = json.loads((out / "modular_model_index.json").read_text())
    assert index["vae"][-1] == {"pretrained_model_name_or_path": "data/zoo/small", "subfolder": "vae"}
    assert all(weight.dtype == torch.float16 and torch.equal(weight, trained.weight.half()) for weight in saved)
    shutil.rmtree(out)
    train()
    assert steps == [0, 1, 2, 3] and torch.equal(load_file(out / "text_encoder" / "m.safetensors")["weight"], saved[1])
