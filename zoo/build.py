"""Trains the members of the zoo again, each resumable, and writes their cards."""

from __future__ import annotations

import filecmp
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from paco_core.io.atomic import atomic
from paco_core.io.files import DataError, read_json, write_json
from zoo import (
    clip,
    flux2_klein,
    flux3_klein,
    flux_kontext,
    qwen3_vl,
    qwen_image_21,
    qwen_image_edit,
    recogniser_training,
    vlm,
    vlm_training,
    z_image,
)
from zoo.card import ModelCard, write_card
from zoo.check import measure
from zoo.fitting import Log
from zoo.flux import build_flux
from zoo.names import validate_names
from zoo.vae import build_vae
from zoo.vlm_training import NewModel

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


def _vlm(member: str, new_model: NewModel, work: Path, zoo: Path, log: Log) -> None:
    folders = _built(zoo, "flux"), _built(zoo, "recogniser")
    vlm_training.build(work / member, zoo / member, *folders, new_model, log=log)


def _flux_kontext(work: Path, zoo: Path, log: Log) -> None:
    flux_kontext.build(work / "flux_kontext", zoo / "flux_kontext", _built(zoo, "flux"), log)


def _flux2_klein(work: Path, zoo: Path, log: Log) -> None:
    flux2_klein.build(work / "flux2_klein", zoo / "flux2_klein", _built(zoo, "flux"), log)


def _qwen_image_edit(work: Path, zoo: Path, log: Log) -> None:
    qwen_image_edit.build(work / "qwen_image_edit", zoo / "qwen_image_edit", _built(zoo, "qwen2_5_vl"), log)


def _z_image(work: Path, zoo: Path, log: Log) -> None:
    z_image.build(work / "z_image", zoo / "z_image", _built(zoo, "flux"), _built(zoo, "flux2_klein"), log)


def _flux3_klein(work: Path, zoo: Path, log: Log) -> None:
    flux3_klein.build(work / "flux3_klein", zoo / "flux3_klein", _built(zoo, "flux2_klein"), log)


def _qwen_image_21(work: Path, zoo: Path, log: Log) -> None:
    qwen_image_21.build(work / "qwen_image_21", zoo / "qwen_image_21", _built(zoo, "flux2_klein"), log)


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
            "A `FluxPipeline` with few parameters. It generates storybook sets as 2x2 grids of 64 to 256 px. It "
            "contains an autoencoder (factor 8, 16 channels), two small text encoders, and a transformer with "
            "guidance embedding.",
            "from diffusers import FluxPipeline\n\n"
            'pipeline = FluxPipeline.from_pretrained("data/zoo/flux")\n'
            "pipeline(prompt, height=64, width=64, num_inference_steps=10, max_sequence_length=40)",
            "1. The autoencoder learns to reconstruct panels of 32 to 64 px (L1, L2, edges and opponent colors).\n2. "
            "Its decoder is trained further, with three residual blocks per level, on panels of 32 to 96 px. Half of "
            "the latents have noise of up to 0.15 of their standard deviation.\n3. The transformer and the text "
            "encoders learn by flow matching on cached latents of 2x2 grids. Sigma is logit-normal, shifted by FLUX's "
            "formula over 16 to 144 tokens. Half of the sets differ from their prompt in a shared trait, and 70% in "
            "the last steps. A place loss teaches the T5 encoder which panel a word describes.\n4. The training "
            "continues for 12,500 steps, mostly on panels of 64 to 128 px, and 65% of the sets differ from their "
            "prompt.\n\nMuon trains hidden matrices and convolutions, AdamW the rest.",
            "The errors of this model are intended: part of its sets are inconsistent, so reinforcement learning can "
            "improve it. It supports storybook prompts in the 2x2 layout only. Guidance was always 3.5 in training, "
            "so other values have no meaning.",
        ),
        _flux,
    ),
    "recogniser": Member(
        ModelCard(
            "recogniser",
            "Storybook recognizer",
            "A small convolutional network with one head per trait (species, color, accessory, size, scene, style). "
            "It is the annotator of the demo, and it measures ground-truth consistency and prompt following. It is "
            "never a reward.",
            "from paco_core.storybook.recogniser import Recogniser\n\n"
            'Recogniser.from_pretrained("data/zoo/recogniser")',
            "Cross-entropy of each trait on drawings of 32 to 96 px with random blur, noise and shifts. Then "
            "reconstructions by FLUX's autoencoder are added. Then images that FLUX generated are added. The target "
            "of a generated image is the recognizer's own prediction, averaged over 49 shifts and sharpened. AdamW "
            "with a cosine schedule.",
            "It supports the six traits of the storybook only. For any other image, it still returns a trait.",
        ),
        _recogniser,
    ),
    "clip": Member(
        ModelCard(
            "clip",
            "Storybook CLIP",
            "An open_clip model of images and panel texts. It computes the reward `clip_t`, and its text encoder "
            "selects diverse prompts.",
            'import open_clip\n\nopen_clip.create_model_and_transforms("local-dir:data/zoo/clip")\n'
            'open_clip.get_tokenizer("local-dir:data/zoo/clip")',
            "Contrastive training on panels and their sentences, with temporary trait heads. The images are drawings "
            "of 32 to 96 px with random blur, noise and shifts. AdamW with a cosine schedule. The weights are stored "
            "in float16.",
            "It supports the sentences of storybook panels only.",
        ),
        _clip,
    ),
    "qwen2_5_vl": Member(
        ModelCard(
            "qwen2_5_vl",
            "Storybook Qwen2.5-VL",
            "A Qwen2.5-VL with few parameters. It is the base of the reward model. It describes panels and compares "
            "one trait of two panels.",
            "from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration\n\n"
            'Qwen2_5_VLForConditionalGeneration.from_pretrained("data/zoo/qwen2_5_vl")\n'
            'AutoProcessor.from_pretrained("data/zoo/qwen2_5_vl")',
            "1. The vision encoder learns the traits, with temporary heads.\n2. Temporary heads on hidden states "
            "learn which traits two panels share.\n3. The complete model learns dialogues about one panel, or about "
            "one trait of two panels, in the form of the real instructions. Reconstructions are added. Most images of "
            "the last steps are generated by FLUX and labeled by the recognizer. Some pairs contain one image twice, "
            "or an image before and after an edit.\n\nMuon. No dialogue asks if two panels are consistent, or if an "
            "edit is correct. The reward model learns these answers.",
            "Panels are resized to 56 px (4 visual tokens). It supports the language of the storybook only.",
        ),
        partial(_vlm, "qwen2_5_vl", vlm.build_model),
    ),
    "qwen3_vl": Member(
        ModelCard(
            "qwen3_vl",
            "Storybook Qwen3-VL",
            "A Qwen3-VL with few parameters and one level of deepstack features. It is another base of the reward "
            "model: set `reward.base: data/zoo/qwen3_vl`.",
            "from transformers import AutoProcessor, Qwen3VLForConditionalGeneration\n\n"
            'Qwen3VLForConditionalGeneration.from_pretrained("data/zoo/qwen3_vl")\n'
            'AutoProcessor.from_pretrained("data/zoo/qwen3_vl")',
            "The training is that of the storybook Qwen2.5-VL.",
            "Panels are resized to 56 px: 16 patches of 14 px, 4 visual tokens. It supports storybook texts only.",
        ),
        partial(_vlm, "qwen3_vl", qwen3_vl.build_model),
    ),
    "flux_kontext": Member(
        ModelCard(
            "flux_kontext",
            "Storybook FLUX Kontext",
            "A `FluxKontextPipeline` with few parameters. It edits storybook panels of 64 to 192 px by an "
            "instruction. It is the storybook FLUX with the latents of a reference image as additional tokens.",
            "from diffusers import FluxKontextPipeline\n\n"
            'pipeline = FluxKontextPipeline.from_pretrained("data/zoo/flux_kontext")\n'
            'settings = {"height": 64, "width": 64, "max_area": 64 * 64, "num_inference_steps": 10}\n'
            'pipeline(panel, "Make the cat big.", _auto_resize=False, max_sequence_length=8, **settings)',
            "The transformer and text encoders of the storybook FLUX, with new embeddings for new words, are trained "
            "on edits of one trait by flow matching. The weights in git start from an earlier FLUX, before its last "
            "8,000 steps. Each group has 64 drawings, one per combination of two words for six traits, and gives 384 "
            "edits. A quarter of the edits also changes a second shared trait, and a tenth changes nothing. Muon "
            "trains hidden matrices, AdamW the rest.",
            "The errors of this model are intended: some edits change a second trait, so reinforcement learning can "
            "improve it. It supports the instructions of the storybook only, and references of the size of the "
            "generated image. Guidance was always 3.5 in training.",
        ),
        _flux_kontext,
    ),
    "qwen_image_edit": Member(
        ModelCard(
            "qwen_image_edit",
            "Storybook Qwen-Image-Edit",
            "A `QwenImageEditPipeline` with few parameters. It edits storybook panels of 64 and 128 px by an "
            "instruction. It contains Qwen-Image's video autoencoder for single images, a double-stream transformer, "
            "and the lower half of the storybook Qwen2.5-VL as its text encoder.",
            "from diffusers import QwenImageEditPipeline\n\n"
            'QwenImageEditPipeline.from_pretrained("data/zoo/qwen_image_edit")',
            "1. The autoencoder learns to reconstruct panels of 64 and 128 px (L1, L2, edges and opponent "
            "colors).\n2. Its decoder is trained further, with three residual blocks per level.\n3. The transformer "
            "is trained by flow matching on edits of one trait, drawn as those of the storybook Kontext. One "
            "instruction in ten is empty. The text encoder is not trained: it has two of the four language layers of "
            "the storybook Qwen2.5-VL. Its tokenizer encodes the fixed beginning of the pipeline's template in the "
            "64 tokens that the pipeline drops.\n\nMuon trains hidden matrices and convolutions, AdamW the rest.",
            "The errors of this model are intended: some edits change a second trait, so reinforcement learning can "
            "improve it. It supports the instructions of the storybook only, and references of the size of the "
            "generated image. `QwenImageEditPipeline.__call__` resizes each reference to a million pixels, so "
            "generate with the family `qwen_image_edit` of paco_core.policies.",
        ),
        _qwen_image_edit,
    ),
    "flux2_klein": Member(
        ModelCard(
            "flux2_klein",
            "Storybook FLUX.2 [klein]",
            "A `Flux2KleinPipeline` with few parameters. It generates storybook sets as 2x2 grids of 64 px. It "
            "generates panels of 64 px with up to four preceding panels as references. It edits panels by an "
            "instruction or by a second image.",
            "from diffusers import Flux2KleinPipeline\n\n"
            'pipeline = Flux2KleinPipeline.from_pretrained("data/zoo/flux2_klein")\n'
            'settings = {"height": 64, "width": 64, "num_inference_steps": 10, "guidance_scale": 1.0}\n'
            "pipeline(prompt=prompt, max_sequence_length=45, **settings)\n"
            'pipeline(prompt="Make the cat big.", image=panel, max_sequence_length=13, **settings)\n'
            'text = "Replace the cat with the animal of the second picture."\n'
            "pipeline(prompt=text, image=[panel, other], max_sequence_length=13, **settings)",
            "The autoencoder is that of the storybook FLUX, with a batch norm in place of scaling and shift. Its "
            "statistics are those of drawings. The transformer and the text encoder learn from random weights by flow "
            "matching on cached latents.\n\n1. Batches of sets (half of them differ from their prompt) and of edits "
            "(as for the storybook Kontext) alternate. One prompt in ten is empty. Sigma is logit-normal, shifted as "
            "in the pipeline for ten steps. A place loss teaches the text encoder which panel a word describes. The "
            "pipeline reads layers 9, 18 and 27 of a Qwen3: three are trained, and the rest return their input.\n2. "
            "Half of the steps are edits. The rest are sets, panels of stories with zero to four preceding panels, "
            "and edits that copy a trait from a second image. In half of the stories some panels have a wrong shared "
            "trait.\n3. The training continues with more edits.\n\nMuon trains hidden matrices, AdamW the rest. "
            "The learning rate falls fast in the last steps of each part.",
            "The errors of this model are intended: part of its sets and stories are inconsistent, so reinforcement "
            "learning can improve it. Its training was shorter than that of the storybook FLUX. It supports "
            "storybook prompts and instructions only, at 64 px. References have 64 px: zero to four for a panel of a "
            "story, one or two for an edit. Prompts of sets have 45 tokens with padding, prompts of panels 17, and "
            "instructions 13.",
        ),
        _flux2_klein,
    ),
    "z_image": Member(
        ModelCard(
            "z_image",
            "Storybook Z-Image",
            "A `ZImagePipeline` with few parameters. It generates storybook sets as 2x2 grids of 64 and 128 px. It "
            "contains the autoencoder of the storybook FLUX, the text encoder of the storybook FLUX.2 [klein], and a "
            "single-stream transformer.",
            "from diffusers import ZImagePipeline\n\n"
            'pipeline = ZImagePipeline.from_pretrained("data/zoo/z_image")\n'
            'settings = {"height": 64, "width": 64, "num_inference_steps": 10, "guidance_scale": 0.0}\n'
            "pipeline(prompt, max_sequence_length=45, **settings)",
            "The transformer learns by flow matching on the cached latents of 2x2 grids. Half of the steps have "
            "panels of 32 px, half of 64 px. Half of the sets differ from their prompt in a shared trait. One prompt "
            "in ten is empty. Sigma is logit-normal, with the pipeline's fixed shift of 2. The autoencoder and the "
            "text encoder are not trained.\n\nMuon trains hidden matrices, AdamW the rest.",
            "The errors of this model are intended: part of its sets are inconsistent, so reinforcement learning can "
            "improve it. It supports storybook prompts in the 2x2 layout only.",
        ),
        _z_image,
    ),
    "flux3_klein": Member(
        ModelCard(
            "flux3_klein",
            "Storybook FLUX 3 Klein",
            "A `Flux3ModularPipeline` with few parameters. It generates storybook sets as 2x2 grids of 64 and 128 px. "
            "Its autoencoder is that of the storybook FLUX.2 [klein]. Its text encoder is a Qwen3-VL with the trained "
            "layers of that model. Its transformer has a block per kind of tokens before the joint blocks.",
            "from diffusers import Flux3AutoBlocks\n\n"
            'blocks = Flux3AutoBlocks()\nblocks.sub_blocks.pop("prompt_upsampler")\n'
            'pipeline = blocks.init_pipeline("data/zoo/flux3_klein")\npipeline.load_components()\n'
            "pipeline.update_components(guider=pipeline.guider.new(guidance_scale=1.0))\n"
            'settings = {"height": 64, "width": 64, "num_inference_steps": 10, "max_sequence_length": 45}\n'
            'pipeline(prompt=prompt, output="images", **settings)',
            "The transformer learns as that of the storybook Z-Image, on latents of the storybook FLUX.2 [klein]. The "
            "pipeline samples with a shift of 6.93, the training with a shift of 2.",
            "The errors of this model are intended: part of its sets are inconsistent, so reinforcement learning can "
            "improve it. It supports storybook prompts in the 2x2 layout only, and no reference images. Its weights "
            "are not in git.",
        ),
        _flux3_klein,
    ),
    "qwen_image_21": Member(
        ModelCard(
            "qwen_image_21",
            "Storybook Qwen-Image-2.1",
            "A `QwenImage21Pipeline` with few parameters. It generates storybook sets as 2x2 grids of 64 and 128 px. "
            "Its autoencoder has an alpha channel (factor 16, 64 channels). Its text encoder is a Qwen3-VL that starts "
            "with the trained layers of the storybook FLUX.2 [klein]. Its transformer is block-causal.",
            "from diffusers import QwenImage21Pipeline\n\n"
            'pipeline = QwenImage21Pipeline.from_pretrained("data/zoo/qwen_image_21")\n'
            "pipeline(prompt, height=64, width=64, num_inference_steps=10)",
            "1. The autoencoder learns to reconstruct panels of 32 and 64 px (L1, L2, edges and opponent colors).\n2. "
            "Transformer and text encoder learn as the transformer of the storybook Z-Image.",
            "The errors of this model are intended: part of its sets are inconsistent, so reinforcement learning can "
            "improve it. It supports storybook prompts in the 2x2 layout only, and no reference images. Its weights "
            "are not in git.",
        ),
        _qwen_image_21,
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
    if "flux" in chosen:
        copy_linked_autoencoders(out_dir)
    for name in chosen:
        with _Stopwatch(work_dir / name / "minutes.json") as watch:
            MEMBERS[name].build(work_dir, out_dir, log)
        link_autoencoder(out_dir / name, out_dir / "flux")
        minutes[name] = watch.minutes
    for name in chosen:
        log(f"{name}: measuring")
        write_card(out_dir / name, MEMBERS[name].card, measure(name, out_dir), minutes[name])
        log(f"{name}: done in {minutes[name]:.0f} minutes of training, see {out_dir / name / 'README.md'}")


AUTOENCODER = Path("vae") / "diffusion_pytorch_model.safetensors"


def link_autoencoder(member: Path, flux: Path) -> None:
    """Replace the autoencoder of a member by a link if it equals that of the FLUX, so its weights are stored once."""
    weights, original = member / AUTOENCODER, flux / AUTOENCODER
    if weights == original or not (weights.is_file() and original.is_file()):
        return
    if filecmp.cmp(weights, original, shallow=False):
        weights.unlink()
        weights.symlink_to(os.path.relpath(original, weights.parent))


def copy_linked_autoencoders(zoo: Path) -> None:
    """Replace links to the autoencoder of the FLUX by copies: a new FLUX must not change its siblings."""
    for weights in zoo.glob(f"*/{AUTOENCODER}"):
        if weights.is_symlink():
            with atomic(weights, replace=True) as part:
                shutil.copyfile(weights, part)


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
