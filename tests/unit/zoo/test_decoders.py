"""Decoders of the zoo: more layers start as the same function, and the latents stay."""

from __future__ import annotations

import pytest
import torch

from zoo import qwen_vae, vae

PIXELS = 32


@pytest.mark.parametrize("module", [vae, qwen_vae], ids=["flux", "qwen"])
def test_a_deepened_autoencoder_is_the_same_function_and_all_of_its_decoder_learns(module: object) -> None:
    torch.manual_seed(0)
    shallow = module.new_vae().eval()  # type: ignore[attr-defined]
    deeper = module.deepened(shallow, 2).eval()  # type: ignore[attr-defined]
    pixels = torch.rand(2, 3, PIXELS, PIXELS) * 2 - 1
    if module is qwen_vae:
        pixels = pixels.unsqueeze(2)
    with torch.no_grad():
        latents = shallow.encode(pixels).latent_dist.mode()
        assert torch.equal(deeper.encode(pixels).latent_dist.mode(), latents)
        assert torch.equal(deeper.decode(latents).sample, shallow.decode(latents).sample)
    added = set(dict(deeper.decoder.named_parameters())) - set(dict(shallow.decoder.named_parameters()))
    assert added
    deeper.decode(latents).sample.square().mean().backward()
    moved = [name for name in added if deeper.decoder.get_parameter(name).grad is not None and "conv2.weight" in name]
    assert moved and all(bool(deeper.decoder.get_parameter(name).grad.any()) for name in moved)


def test_half_of_the_latents_get_no_noise_and_the_rest_at_most_the_limit() -> None:
    noise = vae.decoder_noise((4000, 4, 2, 2), torch.Generator().manual_seed(0))
    strengths = noise.flatten(1).std(1)
    assert 0.45 < float((strengths == 0).float().mean()) < 0.55
    assert 0.5 * vae.DECODER_NOISE < float(strengths.max()) < 2 * vae.DECODER_NOISE
