"""The plan of FLUX.2 [klein]: weights, adapter and operations of the real sizes, on the meta device."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from paco_core.config import profiles
from paco_core.config.params import Params, PolicyLora, parse
from paco_core.io.files import DataError
from paco_core.planning.footprint import KNOWN, architecture, footprint
from paco_core.planning.foreseen import trained_on, usable
from paco_core.planning.plan import plan
from paco_core.planning.squares import beside, resized
from paco_core.planning.workload import Workload
from paco_core.policies import adapters
from paco_core.policies.families import family_of

MODEL = "black-forest-labs/FLUX.2-klein-base-{}"
SIZES: dict[str, dict[str, Any]] = {
    "4B": {"num_layers": 5, "num_single_layers": 20, "num_attention_heads": 24, "joint_attention_dim": 7680},
    "9B": {"num_layers": 8, "num_single_layers": 24, "num_attention_heads": 32, "joint_attention_dim": 12288},
}


def configurations(folder: Path, size: str) -> dict[str, Any]:
    transformer = {"_class_name": "Flux2Transformer2DModel", "in_channels": 128, "attention_head_dim": 128,
                   "guidance_embeds": False, **SIZES[size]}  # fmt: skip
    parts = {"transformer": transformer, "vae": {"block_out_channels": [128, 256, 512, 512], "latent_channels": 32}}
    for part, config in parts.items():
        (folder / part).mkdir(parents=True)
        (folder / part / "config.json").write_text(json.dumps(config))
    return transformer


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_its_size_is_that_of_the_real_one(tmp_path: Path, size: str) -> None:
    config = configurations(tmp_path / "model", size)
    found = architecture(tmp_path, "model")
    assert found is not None and found == KNOWN[MODEL.format(size)]
    with torch.device("meta"):
        transformer = diffusers.Flux2Transformer2DModel.from_config(config)
    assert sum(p.numel() for p in transformer.parameters()) == pytest.approx(found.parameters, rel=0.02)
    image, words = 2 * 24 * 24, 512
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counted:
        transformer(
            hidden_states=torch.zeros(1, image, 128), encoder_hidden_states=torch.zeros(1, words, 3 * 4096)[
                ..., : config["joint_attention_dim"]
            ],
            timestep=torch.zeros(1), img_ids=torch.zeros(image, 4), txt_ids=torch.zeros(words, 4), return_dict=False,
        )  # fmt: skip
    assert counted.get_total_flops() == pytest.approx(found.pass_flops(image, words), rel=0.05)
    targets = family_of("flux2_klein").lora_targets
    with torch.device("meta"):
        adapters.attach(transformer, PolicyLora(rank=64, alpha=128, targets=None), targets, 0)
    assert found.lora_parameters(64, targets) == sum(p.numel() for p in transformer.parameters() if p.requires_grad)


def asked(repository: Path, task: str | None) -> Params:
    """The paper's numbers for klein, as a painter or an editor."""
    tree = profiles.resolve(repository, "paper")
    recipes = tree["policies"]["recipes"]
    like = recipes["kontext_edit" if task == "edits" else "flux_t2is"]
    recipes["klein"] = {**like, "family": "flux2_klein", "task": task, "model": MODEL.format("4B"), "guidance": 4.0}
    return parse(tree)


def test_a_plan_needs_no_weights(repository: Path) -> None:
    painter, editor = asked(repository, None), asked(repository, "edits")
    found = KNOWN[MODEL.format("4B")]
    rules = [params.policies.recipes["klein"] for params in (painter, editor)]
    assert found.tokens(rules[0], 512) == (32 * 32, rules[0].max_sequence_length)
    assert found.tokens(rules[1], 512)[0] == 2 * 32 * 32, "a reference of as many pixels beside the picture"
    once = rules[0].model_copy(update={"guidance": 1.0})
    assert [family_of("flux2_klein").passes_a_step(rule.guidance) for rule in (rules[0], once)] == [2, 1]
    assert Workload.from_params(painter, "klein").rollout_passes % 2 == 0
    assert "GB per process: weights 8.4" in plan(painter, "klein", repository).replace("~", "")


def test_a_task_that_the_family_does_not_do_is_refused(repository: Path) -> None:
    tree = profiles.resolve(repository, "paper")
    tree["policies"]["recipes"]["flux_t2is"]["task"] = "edits"
    with pytest.raises(DataError, match="task: FluxPipeline paints from text alone"):
        plan(parse(tree), "flux_t2is", repository)


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["klein", "klein_48gb", "gpu_24gb"])
def test_the_formula_is_near_what_would_be_allocated(
    repository: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    """Of the real sizes, on fake tensors, in four bits and in sixteen; of FLUX.1-dev, too, on 24 GB."""
    monkeypatch.syspath_prepend(str(repository))
    rows = importlib.import_module("speed.memory").compare(
        profiles.read(repository, profile), repository, ["flux_t2is"]
    )
    assert [row["phase"] for row in rows] == ["training", "evaluation at 1024 px"]
    for row in rows:
        assert row["peak_gb"] > 5 and row["plan_gb"] == pytest.approx(row["peak_gb"], rel=0.15)


def test_a_plan_counts_the_panels_of_stories(repository: Path) -> None:
    """Of 2x2 sets: four times the samples, whose passes have up to three panels beside their own."""
    at_once, one_by_one = asked(repository, None), asked(repository, None)
    rule = one_by_one.policies.recipes["klein"].model_copy(update={"panels": "one_by_one"})
    one_by_one.policies.recipes["klein"] = rule
    records = trained_on(usable(one_by_one, repository), rule, repository)
    assert {record.layout for record in records} == {"2x2"} and beside(rule, records)[0] == [0, 1, 2, 3]
    whole, panels = (Workload.from_params(params, "klein", records) for params in (at_once, one_by_one))
    assert (panels.rollout_passes, panels.trained_passes) == (4 * whole.rollout_passes, 4 * whole.trained_passes)
    assert panels.micro_batches == 4 * whole.micro_batches and panels.images_an_epoch == whole.images_an_epoch
    found, words = KNOWN[MODEL.format("4B")], rule.max_sequence_length
    largest = resized(rule, records, [], found.patch)
    assert largest.train_size == 256 and found.tokens(largest, 256, 3) == (4 * 16 * 16, words)
    each = footprint(found, largest, (1, 0), beside(rule, records)).flops_an_epoch
    assert each == pytest.approx(sum(found.pass_flops(16 * 16 * (1 + n), words) for n in range(4)) / 4)
    text = plan(one_by_one, "klein", repository)
    assert "stories              4 panels each, one by one, 4 of those before it beside each at most" in text


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("flux_t2is", {"panels": "one_by_one"}, "flux_t2is: panels: one_by_one.*the family flux takes no reference"),
        ("kontext_edit", {"panels": "one_by_one"}, "kontext_edit: panels: one_by_one.*flux_kontext only edits"),
        ("klein", {"panels": "one_by_one", "predecessors": 9}, "klein: predecessors=9: .* takes 4 reference pictures"),
        ("klein", {"panels": "one_by_one", "train_size": 64}, "klein: record .*panels of 32 x 32 px.*of 64 px"),
    ],
)
def test_what_cannot_be_a_story_is_found_before_a_run(
    repository: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    params = asked(repository, None)
    params.policies.recipes[name] = params.policies.recipes[name].model_copy(update=changes)
    with pytest.raises(DataError, match=message):
        plan(params, name, repository)
