"""How the zoo's diffusers pipelines end their training: by Muon, the whole pipeline saved at every checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load_file, save_file

from paco_core.io.atomic import atomic
from paco_core.io.files import read_json, write_json
from zoo.fitting import Say, Schedule, fit
from zoo.muon import Muon

if TYPE_CHECKING:
    import torch
    from diffusers import DiffusionPipeline


def fit_pipeline(  # noqa: PLR0913 - a training and how it is saved
    parts: torch.nn.Module,
    loss_at: Callable[[int], torch.Tensor],
    schedule: Schedule,
    work: Path,
    out: Path,
    say: Say,
    *,
    hidden: Callable[[str, torch.Tensor], bool],
    pipeline: Callable[[], DiffusionPipeline],
    halved: Sequence[str] = ("transformer", "vae"),
) -> None:
    """Train ``parts`` (or go on training) with checkpoints in ``work``, and save their pipeline to ``out``.

    Args:
        loss_at: step number -> scalar loss with a graph.
        hidden: which weights, by name and value, Muon steps; AdamW steps the others.
        pipeline: puts the parts together.
        halved: components whose weights are stored in float16; diffusers loads them as float32 unless asked otherwise.
    """

    def export(_steps: int) -> None:
        parts.eval()
        with atomic(out, replace=True) as folder:
            pipeline().save_pretrained(folder)
            for component in halved:
                _halve(next((folder / component).glob("*.safetensors")))
            for file in folder.rglob("config.json"):
                _forget_origin(file)
        parts.train()

    optimizer = Muon(parts, schedule.learning_rate, hidden)
    fit(parts, loss_at, schedule, work, out.name, say, after=export, optimizer=optimizer)


def _forget_origin(file: Path) -> None:
    """Drop the path from which diffusers loaded a part: it means nothing on another machine."""
    config = read_json(file)
    if config.pop("_name_or_path", None) is not None:
        write_json(file, config)


def _halve(file: Path) -> None:
    tensors = {name: tensor.half() for name, tensor in load_file(file).items()}
    with atomic(file) as part:
        save_file(tensors, part, metadata={"format": "pt"})
