"""CLIP-T, CLIP-I, CLIPScore and PickScore."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from paco_core.config.params import RewardTerm
from paco_core.data.records.records import split_panels
from paco_core.io.files import DataError
from paco_core.models.open_clip import OpenClip
from paco_core.rewards import registry
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.sources import Sources
from tests.support.pretended_cuda import pretended
from tests.support.reward_batches import image_batch, make_record, panels, picture


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An open_clip folder with random weights and open_clip's own tokenizer."""
    import torch
    from open_clip.model import CLIP
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("clip")
    config = {
        "embed_dim": 8,
        "vision_cfg": {"image_size": 16, "layers": 1, "width": 64, "patch_size": 8},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 1},
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        weights = CLIP(**config).state_dict()
    save_file({name: value.contiguous() for name, value in weights.items()}, folder / "open_clip_model.safetensors")
    preprocess = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": preprocess}))
    return folder


def test_clip_t_is_the_mean_cosine_of_each_panel_with_its_own_text(clip_folder: Path) -> None:
    import open_clip
    import torch

    reward = registry.build_reward("clip_t", RewardTerm(weight=1.0, model=str(clip_folder)))
    model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{clip_folder}")
    tokenizer = open_clip.get_tokenizer(f"local-dir:{clip_folder}")
    texts = split_panels(make_record().prompt, make_record().layout)[1]
    assert texts == ["a cat", "a dog", "a cow", "a hen"]
    with torch.no_grad():
        text = torch.nn.functional.normalize(model.eval().encode_text(tokenizer(texts)), dim=-1)
        pixels = torch.stack([preprocess(panel) for panel in panels()])
        image = torch.nn.functional.normalize(model.encode_image(pixels), dim=-1)
    expected = (text * image).sum(dim=1)
    batch = RewardBatch([make_record(), make_record()], [panels(), panels()[::-1]])
    values = reward(batch)
    assert values[0] == pytest.approx(float(expected.mean()), abs=1e-5)
    assert values[1] == pytest.approx(float((text * image.flip(0)).sum(dim=1).mean()), abs=1e-5)
    assert expected.std() > 1e-3
    assert np.array_equal(reward(batch), values)


def test_clip_i_is_the_mean_cosine_of_the_pairs_and_clips_are_shared(clip_folder: Path) -> None:
    sources = Sources()
    term = RewardTerm(weight=1.0, model=str(clip_folder))
    clip_i, clip_t = registry.build_reward("clip_i", term, sources), registry.build_reward("clip_t", term, sources)
    assert len(sources.clips) == 1 and clip_i.clip is clip_t.clip  # type: ignore[attr-defined]
    clip = sources.clips[(str(clip_folder), "cpu")]
    rows = clip.images(panels()).double().numpy()
    expected = np.mean([rows[i] @ rows[j] for i in range(4) for j in range(i + 1, 4)])
    copies = [panels()[0]] * 4
    values = clip_i(RewardBatch([make_record(), make_record()], [panels(), copies]))
    assert values.tolist() == pytest.approx([expected, 1.0], abs=1e-6) and expected < 0.999


def test_pictures_and_texts_follow_the_model(clip_folder: Path) -> None:
    """A device's name may mean another GPU in another thread."""
    clip = OpenClip(str(clip_folder), "cpu")
    clip.model = clip.model.to("meta")
    assert {tensor.device.type for tensor in (clip.images(panels()), clip.texts(["a cat"]), clip)} == {"meta"}


def test_clip_is_float16_on_a_gpu_and_embeds_as_on_a_processor(clip_folder: Path) -> None:
    import torch

    images, texts = panels(), ["a cat", "a dog"]
    exact = OpenClip(str(clip_folder), "cpu")
    with pretended():
        clip = OpenClip(clip_folder, "cuda", half_on_gpu=True)
        assert {weight.dtype for weight in clip.model.parameters()} == {torch.float16}
        for actual, expected in ((clip.images(images), exact.images(images)), (clip.texts(texts), exact.texts(texts))):
            assert actual.is_cuda and actual.dtype == torch.float32
            torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=5e-3)


def test_clip_score_is_that_of_the_whole_picture(clip_folder: Path) -> None:
    reward = registry.build_reward("clip_score", RewardTerm(weight=1.0, model=str(clip_folder)))
    clip = reward.clip  # type: ignore[attr-defined]
    batch = image_batch(picture(), picture(1))
    cosines = (clip.images(batch.whole) @ clip.texts([make_record().prompt]).T)[:, 0].numpy()
    assert reward(batch).tolist() == pytest.approx([2.5 * max(c, 0.0) for c in cosines], abs=1e-6)
    with pytest.raises(ValueError, match="panels only"):
        reward(RewardBatch([make_record()], [panels()]))


def test_pickscore_is_the_scaled_cosine_over_26(tmp_path: Path) -> None:
    import torch
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor

    from zoo.text import build_tokenizer

    tokenizer = build_tokenizer()
    text = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {**text, "image_size": 16, "patch_size": 8}
    text |= {"vocab_size": len(tokenizer), "max_position_embeddings": 32, "eos_token_id": tokenizer.eos_token_id}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)).save_pretrained(tmp_path)
    size = {"height": 16, "width": 16}
    CLIPProcessor(CLIPImageProcessor(size=size, crop_size=size), tokenizer).save_pretrained(tmp_path)
    reward = registry.build_reward("pickscore", RewardTerm(weight=1.0, model=str(tmp_path)))
    batch = image_batch(picture(), picture(1), prompt="a red cat")
    model, processor = reward.model, reward.processor  # type: ignore[attr-defined]
    inputs = processor(images=list(batch.whole), text=["a red cat"] * 2, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits_per_image[:, 0].double().numpy()
    values = reward(batch)
    assert values.tolist() == pytest.approx((logits / 26).tolist(), abs=1e-6)
    assert abs(values[0] - values[1]) > 1e-6
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="nothing"):
        registry.build_reward("pickscore", RewardTerm(weight=1.0, model=str(tmp_path / "nothing")))
    with pytest.raises(DataError, match="nowhere"):
        registry.build_reward("pickscore", RewardTerm(weight=1.0, model=str(tmp_path / "nowhere")))
