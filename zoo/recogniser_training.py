"""Training of the recognizer: all traits at once, on drawings, reconstructions and, at the end, generated images.

Images are augmented and moved by a few pixels. Otherwise, a recognizer may be right about every drawing, but change its
reading of one generated image in three when the image moves by two pixels. A ground-truth metric must not do this.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional

from paco_core.io.atomic import atomic
from paco_core.io.files import write_json
from paco_core.storybook.prompts import storybook_prompts
from paco_core.storybook.recogniser import (
    TRAITS,
    Recogniser,
    build_network,
    normalize_pixels,
    split_by_trait,
    to_pixels,
)
from paco_core.storybook.world import VOCABULARY
from zoo.fitting import Log, Schedule, fit
from zoo.views import (
    Views,
    drawn_views,
    generate_paintings,
    move,
    moved,
    paint_training_panels,
    random_panels,
    spoil,
)


@dataclass(frozen=True)
class RecogniserSettings:
    """Numbers of the recogniser's training."""

    side: int = 48
    width: int = 32
    pool: int = 16_000
    batch: int = 96
    steps: int = 1_200
    learning_rate: float = 2e-3
    vae_pool: int = 8_000
    vae_steps: int = 1_600
    vae_learning_rate: float = 1e-3
    painted_steps: int = 700
    painted_learning_rate: float = 7e-4
    move: int = 3  # px at ``side``
    sharpness: float = 2.0  # exponent of the teacher's probabilities
    seed: int = 0


def train(
    work_dir: Path, flux: Path | None, recipe: RecogniserSettings | None = None, log: Log | None = print
) -> Recogniser:
    """Train on drawings, then, with ``flux`` (a pipeline's folder), on its reconstructions and generated images.

    ``work_dir`` contains the checkpoints. Each phase resumes from its last one.
    """
    recipe = recipe or RecogniserSettings()
    torch.manual_seed(recipe.seed)
    network = build_network(recipe.width)
    views = drawn_views(random_panels(recipe.pool, recipe.seed), recipe.side, recipe.seed)
    schedule = Schedule(recipe.steps, recipe.learning_rate)
    _phase(network, views, schedule, recipe=recipe, folder=work_dir / "drawings", log=log)
    if flux is not None:
        panels = random_panels(recipe.vae_pool, recipe.seed + 1)
        views = drawn_views(panels, recipe.side, recipe.seed + 1, vae=flux / "vae") + views
        schedule = Schedule(recipe.vae_steps, recipe.vae_learning_rate)
        _phase(network, views, schedule, recipe=recipe, folder=work_dir / "reconstructions", log=log)
        paintings = to_pixels(paint_training_panels(flux, recipe.seed), recipe.side)
        schedule = Schedule(recipe.painted_steps, recipe.painted_learning_rate)
        targets = _settled_readings(network, paintings, recipe)
        folder = work_dir / "paintings"
        _phase(network, views, schedule, recipe=recipe, folder=folder, log=log, paintings=(paintings, targets))
    return Recogniser(network, recipe.side)


def build(work_dir: Path, out_dir: Path, flux: Path, log: Log | None = print) -> None:
    """Train (or resume) in ``work_dir`` and write the member's folder."""
    export(train(work_dir, flux, log=log), out_dir)


def measure_recogniser(folder: Path, flux: Path) -> dict[str, float]:
    """Metrics of the card: share of correct traits on 32 and 64 px panels, drawn and reconstructed; and the share of
    equal readings of a generated image that moves by two of 48 px.
    """
    recogniser = Recogniser.from_pretrained(folder)
    measured: dict[str, float] = {}
    for size in (32, 64):
        for kind, decoder in (("drawings", None), ("reconstructions", flux / "vae")):
            views = drawn_views(random_panels(640, 9_000 + size), recogniser.side, 9_000, (size,), decoder)
            shares = accuracy(recogniser, views)
            measured[f"accuracy_{kind}_{size}px"] = sum(shares.values()) / len(shares)
            measured[f"worst_trait_{kind}_{size}px"] = min(shares.values())
    paintings = to_pixels(generate_paintings(storybook_prompts(96, seed=9_100), 9_101, 64, flux), recogniser.side)
    steady_shares = steadiness(recogniser, paintings)
    measured["steady_paintings_64px"] = sum(steady_shares.values()) / len(steady_shares)
    measured["worst_steady_trait_paintings_64px"] = min(steady_shares.values())
    return measured


def steadiness(recogniser: Recogniser, pixels: torch.Tensor, step: int = 2) -> dict[str, float]:
    """Share of equal readings per trait of images, uint8 (n, 3, side, side), moved by ``step`` px in four
    directions.
    """

    def words(pictures: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.inference_mode():
            return {trait: head.argmax(dim=1) for trait, head in split_by_trait(recogniser.network(pictures)).items()}

    clean = normalize_pixels(pixels)
    still = words(clean)
    moved_words = [words(moved(clean, *way)) for way in ((step, 0), (-step, 0), (0, step), (0, -step))]
    return {
        trait: sum((still[trait] == other[trait]).float().mean().item() for other in moved_words) / len(moved_words)
        for trait in TRAITS
    }


def export(recogniser: Recogniser, folder: Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` atomically."""
    first = recogniser.network[0]  # type: ignore[index]
    config = {
        "side": recogniser.side,
        "width": first.out_channels,
        "vocabulary": {trait: list(words) for trait, words in VOCABULARY.items()},
    }
    with atomic(folder, replace=True) as part:
        part.mkdir(parents=True)
        weights = {name: value.detach().contiguous() for name, value in recogniser.network.state_dict().items()}
        save_file(weights, part / "model.safetensors")
        write_json(part / "config.json", config)


def accuracy(recogniser: Recogniser, views: Views) -> dict[str, float]:
    """Share of correct readings per trait; ``views`` must have the recognizer's size."""
    with torch.inference_mode():
        logits = torch.cat([recogniser.network(normalize_pixels(part)) for part in views.pixels.split(512)])
    guesses = {trait: head.argmax(dim=1) for trait, head in split_by_trait(logits).items()}
    return {trait: (guesses[trait] == views.labels[:, k]).float().mean().item() for k, trait in enumerate(TRAITS)}


def _settled_readings(network: torch.nn.Module, paintings: torch.Tensor, recipe: RecogniserSettings) -> torch.Tensor:
    """Probabilities (images, words) averaged over all moves, and sharpened: the teacher of the last phase."""
    network.eval()
    clean = normalize_pixels(paintings)
    steps = range(-recipe.move, recipe.move + 1)
    total = torch.zeros(())
    with torch.inference_mode():
        for down in steps:
            for right in steps:
                views = moved(clean, down, right).split(512)
                logits = torch.cat([network(part) for part in views])
                total = total + torch.cat([head.softmax(dim=1) for head in split_by_trait(logits).values()], dim=1)
        mean = total / len(steps) ** 2
        sharp = [head**recipe.sharpness for head in split_by_trait(mean).values()]
        return torch.cat([head / head.sum(dim=1, keepdim=True) for head in sharp], dim=1).clone()


def _phase(
    network: torch.nn.Module,
    views: Views,
    schedule: Schedule,
    *,
    recipe: RecogniserSettings,
    folder: Path,
    log: Log | None,
    paintings: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """Cross-entropy on labelled views. With ``paintings`` (pixels, target probabilities), half of each batch are
    generated images.
    """

    def augment(pixels: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return network(move(spoil(pixels, generator), recipe.move, generator))

    def loss_at(step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
        rows = torch.randint(len(views), (recipe.batch,), generator=generator)
        heads = split_by_trait(augment(views.pixels[rows], generator))
        losses = [functional.cross_entropy(heads[trait], views.labels[rows, k]) for k, trait in enumerate(TRAITS)]
        if paintings is not None:
            rows = torch.randint(len(paintings[0]), (recipe.batch,), generator=generator)
            heads, targets = split_by_trait(augment(paintings[0][rows], generator)), split_by_trait(paintings[1][rows])
            losses += [functional.cross_entropy(heads[trait], targets[trait]) for trait in TRAITS]
        return torch.stack(losses).mean()

    network.train()
    fit(network, loss_at, schedule, folder, f"recogniser ({folder.name})", log)
    network.eval()
