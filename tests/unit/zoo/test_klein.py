"""Training data of the small klein: the outputs of its plain pipeline for prompts and images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import Flux2KleinPipeline

from paco_core.storybook.prompts import storybook_prompts
from tests.support import REPOSITORY
from zoo import flux2_klein, klein_reader
from zoo.fitting import Schedule
from zoo.vae import panel_batch

FOLDER = REPOSITORY / "data" / "zoo" / "flux2_klein"


@pytest.fixture(scope="module")
def pipeline() -> Any:
    return Flux2KleinPipeline.from_pretrained(FOLDER)


def test_texts_are_read_as_by_the_pipeline(pipeline: Any) -> None:
    """In training the layers that pass on are left out; the pipeline runs all 27."""
    prompts = [prompt.prompt for prompt in storybook_prompts(2, seed=5)]
    words = klein_reader.tokenise(pipeline.tokenizer, prompts, klein_reader.PAINT_LENGTH)
    expected, _ = pipeline.encode_prompt(prompts, max_sequence_length=klein_reader.PAINT_LENGTH)
    with torch.no_grad():
        actual = klein_reader.read(pipeline.text_encoder, words.input_ids, words.attention_mask)
    assert torch.allclose(actual, expected, atol=1e-4) and expected.std() > 0.1
    assert pipeline.text_encoder.config.num_hidden_layers == 27


def test_pictures_are_encoded_as_by_the_pipeline(pipeline: Any) -> None:
    pixels = panel_batch(64, 2, seed=3)
    with torch.no_grad():
        expected = pipeline._encode_vae_image(pixels, generator=None)
        actual = flux2_klein.encode(pipeline.vae, pixels)
    assert actual.shape == expected.shape == (2, 64, 4, 4)
    assert (actual - expected).abs().mean() < 0.05, "rounding of bfloat16"
    assert expected.std() == pytest.approx(1.0, abs=0.3), "the batch norm is of drawings"


def test_the_rate_falls_from_the_cosine_to_a_hundredth() -> None:
    schedule = flux2_klein.Cooled(steps=100, learning_rate=1.0, warmup=10, cosine_steps=200, cooling=20)
    plain = Schedule(steps=200, learning_rate=1.0, warmup=10)
    rates = [schedule.rate_at(step) for step in range(100)]
    assert rates[:81] == [plain.rate_at(step) for step in range(81)]
    assert rates[90] == pytest.approx(rates[80] * (1 - 0.99 / 2)) and 0 < rates[-1] < 0.1 * rates[80]
