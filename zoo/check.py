"""Measure the members of the zoo again, and compare the metrics with their cards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from diffusers import FluxPipeline

from paco_core.io.files import DataError, read_json
from paco_core.policies import base
from paco_core.storybook.prompts import StorybookPrompt, storybook_prompts
from paco_core.storybook.recogniser import Recogniser, gold_consistency, gold_following
from zoo import (
    clip,
    edit_figures,
    flux_kontext,
    klein_batches,
    klein_reader,
    qwen_vae,
    recogniser_training,
    set_batches,
    vlm_figures,
)
from zoo.names import NOT_IN_GIT, validate_names
from zoo.text import MAX_LENGTH
from zoo.vae import psnr

if TYPE_CHECKING:
    from PIL.Image import Image

#: Allowed differences from the card between machines: shares of correct answers differ by a few images, metrics of
#: generated images differ by more. PSNR is in dB.
TOLERANCES = {"psnr": 0.5, "gold": 0.08}
DEFAULT_TOLERANCE = 0.03
PROMPTS, PROMPT_SEED = 48, 9_400  # of the generators
SIZES = (64, 96, 128, 192, 256)  # grid sizes of FLUX's training, in pixels
#: Guidance of the editors: Kontext uses its training value; the rest need one forward pass.
GUIDANCE = {"flux_kontext": 3.5, "qwen_image_edit": 1.0, "flux2_klein": 1.0}


@dataclass(frozen=True)
class Figure:
    """A metric: its value on the card and its measured value."""

    name: str
    card: float
    measured: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether the two agree; a NaN agrees with nothing."""
        return abs(self.card - self.measured) <= self.tolerance


@dataclass(frozen=True)
class MemberReport:
    """The result of one member: its metrics, or the reason why there are none."""

    member: str
    figures: list[Figure] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the member loads, is carded, and every figure agrees."""
        return not self.problems and all(figure.ok for figure in self.figures)


def check(members: Sequence[str], zoo_dir: Path) -> list[MemberReport]:
    """Measure members and compare each metric with the member's ``card.json``.

    Args:
        members: if empty, those in git, and those that were built here.

    Raises:
        DataError: if a name is unknown.
    """
    validate_names(members)
    default = [member for member in MEASURES if member not in NOT_IN_GIT or (zoo_dir / member).is_dir()]
    return [_check_member(member, zoo_dir) for member in members or default]


def measure(member: str, zoo_dir: Path) -> dict[str, float]:
    """The figures of one member, as its card states them."""
    return MEASURES[member](zoo_dir)


def _check_member(member: str, zoo_dir: Path) -> MemberReport:
    try:
        card = read_json(zoo_dir / member / "card.json")["figures"]
    except (DataError, KeyError) as error:
        return MemberReport(member, problems=[f"no card to compare with: {error}"])
    try:
        measured = measure(member, zoo_dir)
    except OSError as error:
        return MemberReport(member, problems=[f"does not load: {error}"])
    problems = [f"{name}: measured, but not on the card" for name in measured if name not in card]
    figures = [
        Figure(name, float(card[name]), value, tolerance_of(name)) for name, value in measured.items() if name in card
    ]
    return MemberReport(member, figures, problems)


def tolerance_of(name: str) -> float:
    """Allowed distance between card and measurement, by the figure's first word."""
    return TOLERANCES.get(name.partition("_")[0], DEFAULT_TOLERANCE)


def _recogniser(zoo_dir: Path) -> dict[str, float]:
    return recogniser_training.measure_recogniser(zoo_dir / "recogniser", zoo_dir / "flux")


def _clip(zoo_dir: Path) -> dict[str, float]:
    return clip.measure_clip(zoo_dir / "clip", zoo_dir / "flux" / "vae")


def _vlm(member: str, zoo_dir: Path) -> dict[str, float]:
    return vlm_figures.measure_vlm(zoo_dir / member, zoo_dir / "flux", zoo_dir / "recogniser")


def _flux(zoo_dir: Path) -> dict[str, float]:
    """Reconstruction in dB, and the recognizer's readings of 2x2 grids of unseen prompts."""
    pipeline = FluxPipeline.from_pretrained(zoo_dir / "flux")
    pipeline.set_progress_bar_config(disable=True)
    recogniser = Recogniser.from_pretrained(zoo_dir / "recogniser")
    figures = {f"psnr_{size}px": psnr(pipeline.vae, size) for size in (32, 64)}
    for size in SIZES:
        consistency, following = paint_and_read(pipeline, recogniser, size)
        figures |= {f"gold_consistency_{size}px": consistency, f"gold_following_{size}px": following}
    return figures


def _flux_kontext(zoo_dir: Path) -> dict[str, float]:
    policy, sizes = _editor("flux_kontext", zoo_dir), [size for size, *_ in flux_kontext.SIZES]
    return edit_figures.measure_editor(
        policy, zoo_dir / "recogniser", GUIDANCE["flux_kontext"], flux_kontext.MAX_LENGTH, sizes
    )


def _qwen_image_edit(zoo_dir: Path) -> dict[str, float]:
    """Reconstruction in dB as well: it has an autoencoder of its own."""
    policy = _editor("qwen_image_edit", zoo_dir)
    figures = {f"psnr_{size}px": qwen_vae.psnr(policy.vae, size) for size in (64, 128)}
    return figures | edit_figures.measure_editor(policy, zoo_dir / "recogniser", GUIDANCE["qwen_image_edit"], 16)


def _flux2_klein(zoo_dir: Path) -> dict[str, float]:
    """Metrics as a generator of sets and stories and as an editor, with one forward pass per step."""
    policy: Any = base.load_policy("flux2_klein", str(zoo_dir / "flux2_klein"), "cpu", "float32", task="edits")
    recogniser = Recogniser.from_pretrained(zoo_dir / "recogniser")
    size, guidance = klein_batches.SIZE, GUIDANCE["flux2_klein"]
    consistency, following = paint_and_read(
        policy.pipeline, recogniser, size, guidance=guidance, length=klein_reader.PAINT_LENGTH
    )
    sets = {f"gold_consistency_{size}px": consistency, f"gold_following_{size}px": following}
    reader = zoo_dir / "recogniser"
    edits = edit_figures.measure_editor(policy, reader, guidance, klein_reader.EDIT_LENGTH, (size,))
    seconds = edit_figures.measure_second_reference(policy, reader, guidance)
    painter = base.load_policy("flux2_klein", str(zoo_dir / "flux2_klein"), "cpu", "float32", task="sets")
    return sets | edits | seconds | edit_figures.measure_stories(painter, reader, guidance)


def _generator(family: str, zoo_dir: Path) -> dict[str, float]:
    """The recognizer's readings of 2x2 grids of unseen prompts, with one forward pass per step."""
    policy = base.load_policy(family, str(zoo_dir / family), "cpu", "float32")
    recogniser = Recogniser.from_pretrained(zoo_dir / "recogniser")
    expected, figures = storybook_prompts(PROMPTS, PROMPT_SEED), dict[str, float]()
    prompts = [prompt.prompt for prompt in expected]
    for size in (2 * panel for panel in set_batches.SIZES):
        grids = edit_figures.generate_images(policy, prompts, None, size, 1.0, klein_reader.PAINT_LENGTH)
        consistency, following = read_grids(recogniser, expected, grids)
        figures |= {f"gold_consistency_{size}px": consistency, f"gold_following_{size}px": following}
    return figures


def _editor(family: str, zoo_dir: Path) -> Any:
    return base.load_policy(family, str(zoo_dir / family), "cpu", "float32")


def paint_and_read(
    pipeline: Any,
    recogniser: Any,
    size: int,
    prompts: int = PROMPTS,
    seed: int = PROMPT_SEED,
    *,
    guidance: float = 3.5,
    length: int = MAX_LENGTH,
) -> tuple[float, float]:
    """Mean gold consistency and following of one 2x2 grid of ``size`` px for each of some unseen prompts."""
    grids: list[Image] = []
    expected = storybook_prompts(prompts, seed)
    for start in range(0, prompts, 16):
        grids += pipeline(
            prompt=[prompt.prompt for prompt in expected[start : start + 16]],
            height=size,
            width=size,
            num_inference_steps=10,
            guidance_scale=guidance,
            max_sequence_length=length,
            generator=torch.Generator().manual_seed(seed + start),
        ).images
    return read_grids(recogniser, expected, grids)


def read_grids(recogniser: Any, expected: Sequence[StorybookPrompt], grids: Sequence[Image]) -> tuple[float, float]:
    """Mean gold consistency and following of one 2x2 grid per prompt."""
    readings = [recogniser.read(_quarters(grid)) for grid in grids]
    following = [gold_following(read, prompt.panels) for read, prompt in zip(readings, expected, strict=True)]
    return sum(map(gold_consistency, readings)) / len(grids), sum(following) / len(grids)


def _quarters(grid: Image) -> list[Image]:
    half = grid.width // 2
    return [grid.crop((x, y, x + half, y + half)) for y in (0, half) for x in (0, half)]


MEASURES: dict[str, Callable[[Path], dict[str, float]]] = {
    "flux": _flux,
    "qwen2_5_vl": partial(_vlm, "qwen2_5_vl"),
    "qwen3_vl": partial(_vlm, "qwen3_vl"),
    "clip": _clip,
    "recogniser": _recogniser,
    "flux_kontext": _flux_kontext,
    "qwen_image_edit": _qwen_image_edit,
    "flux2_klein": _flux2_klein,
    "z_image": partial(_generator, "z_image"),
    "flux3_klein": partial(_generator, "flux3_klein"),
    "qwen_image_21": partial(_generator, "qwen_image_21"),
}
