"""The small Z-Image and FLUX 3 Klein: training reads prompts as the pipelines do; equal weights are stored once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from diffusers import Flux2KleinPipeline, ZImagePipeline
from diffusers.modular_pipelines.flux3.encoders import Flux3TextEncoderStep

from paco_core.policies.flux3_parts import LAYERS
from paco_core.storybook.drawing import draw
from paco_core.storybook.prompts import storybook_prompts
from paco_core.storybook.world import Panel
from tests.support import REPOSITORY
from zoo import flux3_klein, set_batches, z_image
from zoo.build import AUTOENCODER, copy_linked_autoencoders, link_autoencoder
from zoo.flux import encode
from zoo.klein_reader import PAINT_LENGTH
from zoo.qwen3_vl_text import processor_of, text_encoder_of

ZOO = REPOSITORY / "data" / "zoo"


@pytest.fixture(scope="module")
def klein() -> Any:
    return Flux2KleinPipeline.from_pretrained(ZOO / "flux2_klein", transformer=None, vae=None)


@pytest.fixture(scope="module")
def pipeline() -> Any:
    return ZImagePipeline.from_pretrained(ZOO / "z_image")


def test_prompts_are_read_as_by_the_pipeline(pipeline: Any, klein: Any) -> None:
    prompts = ["", *(prompt.prompt for prompt in storybook_prompts(2, seed=5))]
    expected, _ = pipeline.encode_prompt(
        list(prompts), do_classifier_free_guidance=False, max_sequence_length=PAINT_LENGTH
    )
    actual = z_image.prompt_embeds(z_image.text_encoder_of(klein.text_encoder), klein.tokenizer, prompts)
    assert len({len(row) for row in actual}) > 1
    for row, other in zip(actual, expected, strict=True):
        assert torch.allclose(row, other, atol=1e-4) and other.std() > 0.1


def test_prompts_of_flux3_are_read_as_by_the_pipeline(klein: Any) -> None:
    prompts = ["", *(prompt.prompt for prompt in storybook_prompts(2, seed=5))]
    processor = processor_of(klein.tokenizer)
    encoder = text_encoder_of(klein.text_encoder, len(processor.tokenizer), layers=max(LAYERS))
    expected = [
        Flux3TextEncoderStep._get_qwen3_vl_prompt_embeds(encoder, processor, text, max_sequence_length=PAINT_LENGTH)
        for text in prompts
    ]
    actual = flux3_klein.prompt_embeds(klein.text_encoder, klein.tokenizer, prompts)
    assert torch.allclose(actual, torch.cat(expected), atol=1e-4) and actual.std() > 0.1
    assert klein.text_encoder.config.num_hidden_layers == 27


def test_the_loss_of_the_training_is_low_for_the_trained_transformer(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Drawings:
        def grid(self, size: int, panels: list[Panel], rng: random.Random) -> torch.Tensor:
            images = np.stack([np.asarray(draw(panel, size, rng)) for panel in panels])
            pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
            return torchvision.utils.make_grid(encode(pipeline.vae, pixels), nrow=2, padding=0)

    def loss(transformer: Any) -> float:
        with torch.no_grad():
            return z_image.flow_loss(transformer, pipeline.text_encoder, pipeline.tokenizer, Drawings(), 0).item()  # type: ignore[arg-type]

    monkeypatch.setattr(set_batches, "SIZES", {32: (1.0, 8)})
    assert loss(pipeline.transformer) == loss(pipeline.transformer) < 0.6 < loss(z_image.new_transformer())


def test_equal_autoencoders_are_stored_once(tmp_path: Path) -> None:
    def write(member: str, data: bytes) -> Path:
        weights = tmp_path / member / AUTOENCODER
        weights.parent.mkdir(parents=True)
        weights.write_bytes(data)
        return weights

    flux, equal, other = write("flux", b"weights"), write("equal", b"weights"), write("other", b"weightz")
    for _ in range(2):
        for member in ("flux", "equal", "other", "recogniser"):
            link_autoencoder(tmp_path / member, tmp_path / "flux")
    assert (flux.is_symlink(), equal.is_symlink(), other.is_symlink()) == (False, True, False)
    assert equal.read_bytes() == b"weights" and equal.readlink() == Path("../../flux") / AUTOENCODER
    link_autoencoder(tmp_path / "equal", tmp_path / "missing")
    copy_linked_autoencoders(tmp_path)  # before another FLUX is trained
    flux.write_bytes(b"others!")
    assert not equal.is_symlink() and equal.read_bytes() == b"weights" and other.read_bytes() == b"weightz"


@pytest.mark.parametrize("member", ["flux_kontext", "z_image"])
def test_members_use_the_autoencoder_of_flux(member: str) -> None:
    assert (ZOO / member / AUTOENCODER).resolve() == (ZOO / "flux" / AUTOENCODER).resolve()
