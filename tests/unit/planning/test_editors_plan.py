"""The plan of an editor's training: sizes, work and memory by its configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paco_core.config.params import Params, PolicyLora, PolicyRecipe, parse
from paco_core.io.files import DataError
from paco_core.planning.footprint import KNOWN, architecture, footprint
from paco_core.planning.plan import plan
from paco_core.planning.workload import Workload
from paco_core.policies import adapters
from paco_core.policies.families import family_of

#: The configurations of the public models, as far as a plan reads them, and what is known of them.
FLUX = {
    "_class_name": "FluxTransformer2DModel", "in_channels": 64, "num_layers": 19, "num_single_layers": 38,
    "num_attention_heads": 24, "attention_head_dim": 128, "joint_attention_dim": 4096, "pooled_projection_dim": 768,
    "guidance_embeds": True,
}  # fmt: skip


QWEN = {
    "_class_name": "QwenImageTransformer2DModel", "in_channels": 64, "out_channels": 16, "num_layers": 60,
    "num_attention_heads": 24, "attention_head_dim": 128, "joint_attention_dim": 3584, "guidance_embeds": False,
}  # fmt: skip


PUBLIC = {
    "flux_kontext": ("black-forest-labs/FLUX.1-Kontext-dev", FLUX, {"block_out_channels": [128, 256, 512, 512]}, {}),
    "qwen_image_edit": (
        "Qwen/Qwen-Image-Edit",
        QWEN,
        {"temperal_downsample": [False, True, True]},
        {"vision_config": {"patch_size": 14, "spatial_merge_size": 2}},
    ),
}
_, *ENCODERS = PUBLIC["qwen_image_edit"][1:]
PUBLIC["qwen_image_edit_plus"] = ("Qwen/Qwen-Image-Edit-2511", QWEN | {"zero_cond_t": True}, *ENCODERS)


def configurations(folder: Path, family: str) -> dict[str, Any]:
    """Write a public model's configurations, without weights; the transformer's."""
    _, transformer, vae, encoder = PUBLIC[family]
    for part, config in {"transformer": transformer, "vae": vae, "text_encoder": encoder}.items():
        (folder / part).mkdir(parents=True)
        (folder / part / "config.json").write_text(json.dumps(config))
    return transformer


@pytest.mark.slow
@pytest.mark.parametrize("family", PUBLIC)
def test_an_editors_size_is_that_of_the_real_one(tmp_path: Path, params: Params, family: str) -> None:
    """At full size, on the meta device: weights, adapter, and the operations of a pass over picture and reference."""
    import diffusers
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    config = configurations(tmp_path / "model", family)
    found = architecture(tmp_path, "model")
    assert found is not None and found == KNOWN[PUBLIC[family][0]]
    with torch.device("meta"):
        transformer = getattr(diffusers, config["_class_name"]).from_config(config)
    assert sum(p.numel() for p in transformer.parameters()) == pytest.approx(found.parameters, rel=0.02)
    asked = editing(params, family)
    image, words = found.tokens(asked, 384)
    assert image == 2 * 24 * 24 and words == 128 + (0 if family == "flux_kontext" else 14 * 14)
    large = {"flux_kontext": 0, "qwen_image_edit": 37 * 37, "qwen_image_edit_plus": 14 * 14}  # 1024 and 384 over 28 px
    released = found.tokens(asked.model_copy(update={"reference_size": 1024}), 384)
    assert released == (24 * 24 + 64 * 64, 128 + large[family])
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counted:
        shared = {"hidden_states": torch.zeros(1, image, 64), "timestep": torch.zeros(1), "return_dict": False}
        text = torch.zeros(1, words, config["joint_attention_dim"])
        if family != "flux_kontext":
            transformer(encoder_hidden_states=text, img_shapes=[[(1, 24, 24)] * 2], **shared)
        else:
            transformer(
                encoder_hidden_states=text, guidance=torch.zeros(1), pooled_projections=torch.zeros(1, 768),
                txt_ids=torch.zeros(words, 3), img_ids=torch.zeros(image, 3), **shared,
            )  # fmt: skip
    assert counted.get_total_flops() == pytest.approx(found.pass_flops(image, words), rel=0.05)
    targets = family_of(family).lora_targets
    with torch.device("meta"):
        adapters.attach(transformer, PolicyLora(rank=64, alpha=128, targets=None), targets, 0)
    real = sum(p.numel() for p in transformer.parameters() if p.requires_grad)
    assert found.lora_parameters(64, targets) == real
    if family == "flux_kontext":
        assert real == 179_306_496, "as many as in the released adapters of FLUX"


def editing(params: Params, family: str, **recipe: Any) -> PolicyRecipe:
    """The paper's recipe for an editor."""
    rewards = {"terms": {"editing": {"weight": 1}}, "aggregator": "weighted_sum", "advantage_std": "group"}
    given = {
        "family": family, "model": PUBLIC[family][0], "train_size": 384, "eval_sizes": [384, 1024],
        "sampling_steps": 8, "noise_steps": [1], "shared_noise": False, "guidance": 4.0, "max_sequence_length": 128,
        "rewards": rewards,
    }  # fmt: skip
    tree = params.model_dump()
    tree["policies"]["recipes"][family] = tree["policies"]["recipes"]["flux_t2is"] | given | recipe
    return parse(tree).policies.recipes[family]


def test_what_an_edit_takes_more(params: Params) -> None:
    """Twice the picture's tokens, unless references are smaller; and true guidance runs and keeps two passes."""
    both = {family: editing(params, family) for family in PUBLIC}
    need = {f: footprint(KNOWN[PUBLIC[f][0]], p, (1, 0)) for f, p in both.items()}
    kontext, qwen = need["flux_kontext"], need["qwen_image_edit"]
    dev = KNOWN["black-forest-labs/FLUX.1-dev"]
    plain = both["flux_kontext"].model_copy(update={"family": "flux"})
    alone = footprint(dev, plain, (1, 0))
    assert kontext.kept_gb == alone.kept_gb and kontext.weights_gb == alone.weights_gb
    assert kontext.activations_gb / alone.activations_gb == pytest.approx((1152 + 128) / (576 + 128))
    small = both["flux_kontext"].model_copy(update={"reference_size": 192})
    assert footprint(dev, small, (1, 0)).activations_gb / alone.activations_gb == pytest.approx(848 / 704)
    unguided = both["qwen_image_edit"].model_copy(update={"guidance": 1.0})
    once = footprint(KNOWN["Qwen/Qwen-Image-Edit"], unguided, (1, 0))
    many = {"train_batch": 64, "rollout_batch": 1}
    kept = [footprint(KNOWN["Qwen/Qwen-Image-Edit"], r.model_copy(update=many), (1, 0)).activations_gb
            for r in (both["qwen_image_edit"], unguided)]  # fmt: skip
    assert kept[0] == 2 * kept[1] and qwen.weights_gb == once.weights_gb == pytest.approx(2 * 40.8, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("family", PUBLIC)
def test_an_editors_plan_needs_its_configuration_only(tmp_path: Path, params: Params, family: str) -> None:
    configurations(tmp_path / "model", family)
    tree = params.model_dump()
    own = editing(params, family, model="model")
    tree["policies"]["recipes"][family] = own.model_dump(exclude=own.inherited())
    asked = parse(tree)
    found, passes = Workload.from_params(asked, family), 1 if family == "flux_kontext" else 2
    assert found.rollout_passes == 8 * passes * found.images_an_epoch and found.questions_a_picture == 2
    assert found.trained_passes == passes * found.images_an_epoch
    assert "GB per process: weights" in plan(asked, family, tmp_path)
    with pytest.raises(
        DataError,
        match="392 x 392 does not divide into 16 px tokens and 1x1 panels.* is 384 x 384",
    ):
        tree["policies"]["recipes"][family]["train_size"] = 392
        plan(parse(tree), family, tmp_path)


def test_a_transformer_of_another_kind_has_no_plan(tmp_path: Path) -> None:
    configurations(tmp_path / "model", "flux_kontext")
    file = tmp_path / "model" / "transformer" / "config.json"
    file.write_text(json.dumps({"_class_name": "SD3Transformer2DModel"}))
    with pytest.raises(DataError, match="is of a SD3Transformer2DModel; known kinds are FluxTransformer2DModel"):
        architecture(tmp_path, "model")
    file.write_text(json.dumps({name: value for name, value in FLUX.items() if name != "num_single_layers"}))
    with pytest.raises(DataError, match="names no 'num_single_layers'"):
        architecture(tmp_path, "model")
