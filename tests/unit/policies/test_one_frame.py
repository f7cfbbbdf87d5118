"""The autoencoder of Qwen-Image, asked for one picture: what it makes of a film of one frame."""

from __future__ import annotations

import torch

from paco_core.policies.one_frame import one_frame


def test_one_frame_is_what_the_video_autoencoder_makes_of_it() -> None:
    from diffusers import AutoencoderKLQwenImage

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vae = AutoencoderKLQwenImage(
            base_dim=8, z_dim=4, dim_mult=[1, 1, 2], num_res_blocks=1, temperal_downsample=[False, True]
        ).eval()
        frames = torch.randn(2, 3, 5, 16, 16)
    with torch.inference_mode():
        picture, film = (vae.encode(x).latent_dist.mode() for x in (frames[:, :, :1], frames))
        decoded = vae.decode(picture).sample
        one_frame(vae)
        assert (vae.encode(frames[:, :, :1]).latent_dist.mode() - picture).abs().max() < 1e-5
        assert (vae.decode(picture).sample - decoded).abs().max() < 1e-5
        assert (vae.encode(frames).latent_dist.mode() - film).abs().max() < 1e-5
