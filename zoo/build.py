"""Trains the members of the zoo again, each resumable, and writes their cards."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paco_core.io.files import DataError, read_json, write_json
from zoo import clip, flux2_klein, flux_kontext, qwen_image_edit, recogniser_training, vlm_training
from zoo.card import ModelCard, write_card
from zoo.check import measure
from zoo.fitting import Log
from zoo.flux import build_flux
from zoo.names import validate_names
from zoo.vae import build_vae

Build = Callable[[Path, Path, Log], None]


@dataclass(frozen=True)
class Member:
    """Training function of a member, ``(work folder, zoo folder, log)``, and the texts of its card."""

    card: ModelCard
    build: Build


def _flux(work: Path, zoo: Path, log: Log) -> None:
    _vae(work, log)
    build_flux(work / "flux", zoo / "flux", log)


def _recogniser(work: Path, zoo: Path, log: Log) -> None:
    recogniser_training.build(work / "recogniser", zoo / "recogniser", _built(zoo, "flux"), log)


def _clip(work: Path, zoo: Path, log: Log) -> None:
    clip.build(work / "clip", zoo / "clip", log=log)


def _vlm(work: Path, zoo: Path, log: Log) -> None:
    folders = _built(zoo, "flux"), _built(zoo, "recogniser")
    vlm_training.build(work / "qwen2_5_vl", zoo / "qwen2_5_vl", *folders, log=log)


def _flux_kontext(work: Path, zoo: Path, log: Log) -> None:
    flux_kontext.build(work / "flux_kontext", zoo / "flux_kontext", _built(zoo, "flux"), log)


def _flux2_klein(work: Path, zoo: Path, log: Log) -> None:
    flux2_klein.build(work / "flux2_klein", zoo / "flux2_klein", _built(zoo, "flux"), log)


def _qwen_image_edit(work: Path, zoo: Path, log: Log) -> None:
    qwen_image_edit.build(work / "qwen_image_edit", zoo / "qwen_image_edit", _built(zoo, "qwen2_5_vl"), log)


def _built(zoo: Path, member: str) -> Path:
    """Folder of a member from which another one learns."""
    if not (zoo / member).is_dir():
        raise DataError(f"{zoo / member}: missing, and other models are trained with it; run `paco zoo build {member}`")
    return zoo / member


def _vae(work: Path, log: Log) -> Path:
    """Folder of the autoencoder that all members share. It is trained if it does not exist."""
    build_vae(work / "vae", log)
    return work / "vae" / "final"


MEMBERS: dict[str, Member] = {
    "flux": Member(
        ModelCard(
            "flux",
            "Storybook FLUX",
            "An ordinary `FluxPipeline` of few parameters that paints storybook sets as 2x2 grids of 64 to "
            "192 px: an autoencoder with factor 8 and 16 channels, two small text encoders, and a "
            "transformer with guidance embedding.",
            "from diffusers import FluxPipeline\n\n"
            'pipeline = FluxPipeline.from_pretrained("data/zoo/flux")\n'
            "pipeline(prompt, height=64, width=64, num_inference_steps=10, max_sequence_length=40)",
            "The autoencoder first: L1, L2, edges and opponent colours on panels of 32 to 64 px, encoded "
            "singly, decoded singly and as grids. Then its decoder alone, with three residual blocks per level "
            "instead of one, on panels of 32 to 96 px; half of the latents have noise of up to 0.15 of their "
            "deviation. Transformer and text encoders together, by flow matching on the cached latents of every "
            "panel, put together to 2x2 grids; sigma logit-normal, shifted by FLUX's own formula over 16 to 144 "
            "tokens. Half of the training sets, and 70% of the last ones, stray from their prompt in a shared "
            "trait. A place loss teaches the T5 which panel a word is about. Muon for hidden matrices and "
            "convolutions, AdamW for the rest, cosine.",
            "Imperfect on purpose: part of its sets are inconsistent, so that reinforcement has something to "
            "gain. It reads storybook prompts in the 2x2 layout only; other layouts and sizes were never "
            "seen; guidance was always 3.5, so other values have no meaning.",
        ),
        _flux,
    ),
    "recogniser": Member(
        ModelCard(
            "recogniser",
            "Storybook recogniser",
            "A small convolutional network with one head a trait (species, colour, accessory, size, "
            "scene, style). It plays the human annotator and measures gold consistency and following; it "
            "is never a reward.",
            "from paco_core.storybook.recogniser import Recogniser\n\n"
            'Recogniser.from_pretrained("data/zoo/recogniser")',
            "Cross-entropy of every trait on drawings of 32 to 96 px, blurred, noisy and moved at random; then "
            "on reconstructions by FLUX's autoencoder among them; then also on what FLUX paints, where its own "
            "readings, averaged over 49 places of a picture and sharpened, are the target. AdamW, cosine.",
            "It knows the six traits of the storybook world and nothing else; on any other picture it "
            "names traits all the same.",
        ),
        _recogniser,
    ),
    "clip": Member(
        ModelCard(
            "clip",
            "Storybook CLIP",
            "An open_clip model of pictures and panel texts: the `clip_t` reward, and the text tower by "
            "which prompts are diversified.",
            'import open_clip\n\nopen_clip.create_model_and_transforms("local-dir:data/zoo/clip")\n'
            'open_clip.get_tokenizer("local-dir:data/zoo/clip")',
            "Symmetric contrast between panels and their own sentences, helped by throw-away trait heads; "
            "drawings of 32 to 96 px, blurred, noisy and shifted at random. AdamW, cosine. Half precision on disk.",
            "It knows the sentences of storybook panels; other words mean nothing to it.",
        ),
        _clip,
    ),
    "qwen2_5_vl": Member(
        ModelCard(
            "qwen2_5_vl",
            "Storybook Qwen2.5-VL",
            "A Qwen2.5-VL of few parameters, the base of the reward model: it describes panels and "
            "compares one trait at a time.",
            "from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration\n\n"
            'Qwen2_5_VLForConditionalGeneration.from_pretrained("data/zoo/qwen2_5_vl")\n'
            'AutoProcessor.from_pretrained("data/zoo/qwen2_5_vl")',
            "The vision tower first, with throw-away trait heads; then which traits two panels share, read by "
            "throw-away heads from inner states; then dialogues about one panel and about one trait of two "
            "panels, in the sentence shapes of the real instructions, then with reconstructions among the "
            "pictures, and in the end mostly with what FLUX paints, as the recogniser reads it. Some pairs are one "
            "picture twice, some a picture before and after an edit, with questions about one trait of it. Muon. "
            "Whether two panels are consistent overall, or an edit as it should be, is never asked: that is left to "
            "the reward model.",
            "Panels are read at 56 px (4 visual tokens); other sizes are scaled to it. Its language is "
            "the storybook's.",
        ),
        _vlm,
    ),
    "flux_kontext": Member(
        ModelCard(
            "flux_kontext",
            "Storybook FLUX Kontext",
            "An ordinary `FluxKontextPipeline` of few parameters that changes storybook panels of 64 and 128 px as an "
            "instruction asks: the storybook FLUX, with the reference's latents beside the noisy ones.",
            "from diffusers import FluxKontextPipeline\n\n"
            'pipeline = FluxKontextPipeline.from_pretrained("data/zoo/flux_kontext")\n'
            'settings = {"height": 64, "width": 64, "max_area": 64 * 64, "num_inference_steps": 10}\n'
            'pipeline(panel, "Make the cat big.", _auto_resize=False, max_sequence_length=8, **settings)',
            "Transformer and text encoders of the storybook FLUX, new words with new embeddings, trained on by flow "
            "matching on edits of one trait, reference and picture of one size. 64 drawings at a time show every "
            "combination of two words a trait, the character in one place: 384 edits. A quarter of the edits changes "
            "a second shared trait unasked, a tenth nothing at all. Muon for hidden matrices, AdamW for the rest.",
            "Imperfect on purpose, so that reinforcement has something to gain. It reads the storybook's instructions "
            "only, and reference pictures of the size that is painted; guidance was always 3.5.",
        ),
        _flux_kontext,
    ),
    "qwen_image_edit": Member(
        ModelCard(
            "qwen_image_edit",
            "Storybook Qwen-Image-Edit",
            "An ordinary `QwenImageEditPipeline` of few parameters that changes storybook panels of 64 and 128 px as "
            "an instruction asks: Qwen-Image's video autoencoder on single pictures, a double-stream transformer, and "
            "the lower half of the storybook Qwen2.5-VL to read panel and instruction.",
            "from diffusers import QwenImageEditPipeline\n\n"
            'QwenImageEditPipeline.from_pretrained("data/zoo/qwen_image_edit")',
            "The autoencoder first: L1, L2, edges and opponent colours on panels of 64 and 128 px; then its decoder "
            "alone, with three residual blocks per level instead of one. Then the "
            "transformer alone, by flow matching on edits of one trait, drawn as those of the storybook Kontext, with "
            "one instruction in ten left empty. Its reader rests: two of the four language layers of the storybook "
            "Qwen2.5-VL, and a tokenizer in which the pipeline's fixed opening takes the 64 tokens that it drops. "
            "Muon for hidden matrices and convolutions, AdamW for the rest.",
            "Imperfect on purpose, so that reinforcement has something to gain. It reads the storybook's instructions "
            "only, and reference pictures of the size that is painted: `QwenImageEditPipeline.__call__` brings every "
            "reference to a million pixels, so paint with the family `qwen_image_edit` of paco_core.policies.",
        ),
        _qwen_image_edit,
    ),
    "flux2_klein": Member(
        ModelCard(
            "flux2_klein",
            "Storybook FLUX.2 [klein]",
            "An ordinary `Flux2KleinPipeline` of few parameters that paints storybook sets as 2x2 grids of 64 px, "
            "panels of 64 px with up to four panels before them, and changes panels as an instruction asks, or as a "
            "second picture shows: one model for all.",
            "from diffusers import Flux2KleinPipeline\n\n"
            'pipeline = Flux2KleinPipeline.from_pretrained("data/zoo/flux2_klein")\n'
            'settings = {"height": 64, "width": 64, "num_inference_steps": 10, "guidance_scale": 1.0}\n'
            "pipeline(prompt=prompt, max_sequence_length=45, **settings)\n"
            'pipeline(prompt="Make the cat big.", image=panel, max_sequence_length=13, **settings)\n'
            'text = "Replace the cat with the animal of the second picture."\n'
            "pipeline(prompt=text, image=[panel, other], max_sequence_length=13, **settings)",
            "The storybook FLUX's autoencoder with a batch norm in place of scaling and shift, its statistics taken "
            "over drawings. Transformer and text encoder from nothing, by flow matching on cached latents: sets as "
            "those of the storybook FLUX (half of them stray from their prompt) and edits as those of the storybook "
            "Kontext, in turn, one prompt in ten left empty. Sigma logit-normal, shifted as the pipeline shifts it for "
            "ten steps. A place loss teaches the text encoder which panel a word is about. The pipeline reads a Qwen3 "
            "at layers 9, 18 and 27: three layers are trained, the others pass their input on. Then on from these "
            "weights, half of the steps edits, the others sets, panels of stories with none to four of those before "
            "them (of half of the stories some panels are off in a shared trait), and edits that take a trait from a "
            "second picture; and once more on the same with more edits. Muon for hidden matrices, AdamW for the rest; "
            "the rate falls fast in the last steps of all three.",
            "Imperfect on purpose, so that reinforcement has something to gain, and trained for a fraction of the "
            "storybook FLUX's time. It reads storybook prompts and instructions only, at 64 px, with references of "
            "64 px: none to four for a panel of a story, one or two for an edit. Prompts of sets take 45 tokens, those "
            "of panels 17 and instructions 13, padding included.",
        ),
        _flux2_klein,
    ),
}


def build(
    members: Sequence[str],
    work_dir: Path,
    out_dir: Path,
    resume: bool = True,
    log: Log = print,
) -> None:
    """Train ``members`` (all if empty) into ``out_dir/<member>`` and write their cards.

    All members are trained before the first one is measured, because the measurements depend on each other: the
    recognizer reads FLUX's images, and the readers are measured on reconstructions by FLUX's autoencoder. ``work_dir``
    contains the checkpoints. With ``resume``, a training continues from its last checkpoint.

    Raises:
        DataError: if a name is unknown, or a member learns from another one that does not exist yet.
    """
    validate_names(members)
    chosen = [name for name in MEMBERS if name in members or not members]
    if not resume:
        for name in [*chosen, "vae"]:
            shutil.rmtree(work_dir / name, ignore_errors=True)
    minutes = {}
    for name in chosen:
        with _Stopwatch(work_dir / name / "minutes.json") as watch:
            MEMBERS[name].build(work_dir, out_dir, log)
        minutes[name] = watch.minutes
    for name in chosen:
        log(f"{name}: measuring")
        write_card(out_dir / name, MEMBERS[name].card, measure(name, out_dir), minutes[name])
        log(f"{name}: done in {minutes[name]:.0f} minutes of training, see {out_dir / name / 'README.md'}")


class _Stopwatch:
    """Adds up minutes over interrupted and resumed trainings."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.minutes = float(read_json(file)["minutes"]) if file.is_file() else 0.0
        self._start = 0.0

    def __enter__(self) -> _Stopwatch:
        self._start = time.monotonic()
        return self

    def __exit__(self, *exc: object) -> None:
        self.minutes += (time.monotonic() - self._start) / 60
        write_json(self.file, {"minutes": round(self.minutes, 2)})
