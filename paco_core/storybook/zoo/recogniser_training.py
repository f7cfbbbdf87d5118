"""Trains the recogniser: every trait at once, on drawings, spoilt drawings and VAE reconstructions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.files import atomic, write_json
from paco_core.storybook.recogniser import TRAITS, Recogniser, build_network, normalise, split_by_trait
from paco_core.storybook.world import VOCABULARY
from paco_core.storybook.zoo.fitting import Say, Schedule, fit
from paco_core.storybook.zoo.views import Views, drawn_views, random_panels, spoil

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Recipe:
    """Numbers of the recogniser's training."""

    side: int = 48
    width: int = 32
    pool: int = 16_000
    batch: int = 96
    steps: int = 1_200
    learning_rate: float = 2e-3
    vae_pool: int = 5_000
    vae_steps: int = 500
    vae_learning_rate: float = 7e-4
    seed: int = 0


def train(work_dir: Path, vae: Path | None, recipe: Recipe | None = None, say: Say | None = print) -> Recogniser:
    """Train on drawings, then, with ``vae`` (folder of an AutoencoderKL), also on its reconstructions.

    Checkpoints lie in ``work_dir``; each phase resumes from its own.
    """
    import torch

    recipe = recipe or Recipe()
    torch.manual_seed(recipe.seed)
    network = build_network(recipe.width)
    views = drawn_views(random_panels(recipe.pool, recipe.seed), recipe.side, recipe.seed)
    schedule = Schedule(recipe.steps, recipe.learning_rate)
    _phase(network, views, schedule, recipe=recipe, folder=work_dir / "drawings", say=say)
    if vae is not None:
        panels = random_panels(recipe.vae_pool, recipe.seed + 1)
        views = drawn_views(panels, recipe.side, recipe.seed + 1, vae=vae) + views
        schedule = Schedule(recipe.vae_steps, recipe.vae_learning_rate)
        _phase(network, views, schedule, recipe=recipe, folder=work_dir / "reconstructions", say=say)
    return Recogniser(network, recipe.side)


def build(work_dir: Path, out_dir: Path, vae: Path | None, say: Say | None = print) -> None:
    """Train (or resume) in ``work_dir`` and write the member's folder."""
    export(train(work_dir, vae, say=say), out_dir)


def figures(folder: Path, vae: Path) -> dict[str, float]:
    """The card's figures: share of traits read right on 32 and 64 px panels, drawn and reconstructed."""
    recogniser = Recogniser.from_pretrained(folder)
    measured: dict[str, float] = {}
    for size in (32, 64):
        for kind, decoder in (("drawings", None), ("reconstructions", vae)):
            views = drawn_views(random_panels(640, 9_000 + size), recogniser.side, 9_000, (size,), decoder)
            shares = accuracy(recogniser, views)
            measured[f"accuracy_{kind}_{size}px"] = sum(shares.values()) / len(shares)
            measured[f"worst_trait_{kind}_{size}px"] = min(shares.values())
    return measured


def export(recogniser: Recogniser, folder: Path) -> None:
    """Write ``config.json`` and ``model.safetensors``, whole or not at all."""
    from safetensors.torch import save_file

    first = recogniser.network[0]  # type: ignore[index]
    config = {
        "side": recogniser.side,
        "width": first.out_channels,
        "vocabulary": {trait: list(words) for trait, words in VOCABULARY.items()},
    }
    with atomic(folder) as part:
        part.mkdir(parents=True)
        weights = {name: value.detach().contiguous() for name, value in recogniser.network.state_dict().items()}
        save_file(weights, part / "model.safetensors")
        write_json(part / "config.json", config)


def accuracy(recogniser: Recogniser, views: Views) -> dict[str, float]:
    """Share of pictures read right, a trait; ``views`` must have the recogniser's side."""
    import torch

    with torch.inference_mode():
        logits = torch.cat([recogniser.network(normalise(part)) for part in views.pixels.split(512)])
    guesses = {trait: head.argmax(dim=1) for trait, head in split_by_trait(logits).items()}
    return {trait: (guesses[trait] == views.labels[:, k]).float().mean().item() for k, trait in enumerate(TRAITS)}


def _phase(
    network: torch.nn.Module,
    views: Views,
    schedule: Schedule,
    *,
    recipe: Recipe,
    folder: Path,
    say: Say | None,
) -> None:
    import torch
    from torch.nn import functional

    def loss_at(step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
        rows = torch.randint(len(views), (recipe.batch,), generator=generator)
        heads = split_by_trait(network(spoil(views.pixels[rows], generator)))
        losses = [functional.cross_entropy(heads[trait], views.labels[rows, k]) for k, trait in enumerate(TRAITS)]
        return torch.stack(losses).mean()

    network.train()
    fit(network, loss_at, schedule, folder, f"recogniser ({folder.name})", say)
    network.eval()
