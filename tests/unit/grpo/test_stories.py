"""Stories: panels painted one by one by a FLUX.2 [klein] of random weights, each with those before it as references."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from paco_core.config.params import PolicyLora
from paco_core.data.records.characters import load_images
from paco_core.data.records.panels import split_grid
from paco_core.data.records.prompt_text import prompt_from_theme
from paco_core.data.records.records import PromptRecord, panel_texts
from paco_core.grpo.encoded_prompts import EncodedPrompts
from paco_core.grpo.evaluation import save_references
from paco_core.grpo.model_card import policy_model_card
from paco_core.grpo.panel_references import character_references
from paco_core.grpo.prompt_split import PromptSplit
from paco_core.grpo.rollout import Sampling
from paco_core.grpo.sampling import compose_grid, sample_images
from paco_core.grpo.sizes import ImageGrid, validate_sizes
from paco_core.grpo.trainer import RunContext
from paco_core.io.files import DataError
from paco_core.policies import base
from paco_core.policies.base import NoiseKey
from paco_core.policies.families import max_predecessors, validate_story_panels
from tests.support.grpo_toys import recipe
from tests.support.tiny_pipelines import flux2_klein, flux3_klein

WINDOW, SIDE = 48, 64
KEYS = [NoiseKey("story", image, 3) for image in range(2)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return flux2_klein(tmp_path_factory.mktemp("klein") / "model")


def load(model: Path, task: Any = "sets", family: str = "flux2_klein") -> Any:
    return base.load_policy(family, str(model), "cpu", "float32", task=task)


def story(number: int, layout: str = "1x3") -> PromptRecord:
    rows, columns = (int(count) for count in layout.split("x"))
    texts = [f"The animal {'No. ' * number} beach {n}" for n in range(rows * columns)]
    return PromptRecord(
        idx=f"s{number}", prompt=str(prompt_from_theme("a red cat. All images show it", texts, layout)),
        height=rows * SIDE, width=columns * SIDE, layout=layout, theme="a red cat", category="", task_name="",
        criteria={},
    )  # fmt: skip


def rule(**changes: Any) -> Any:
    terms = {"terms": {"darkness": {"weight": 1.0}}, "aggregator": "weighted_sum", "advantage_std": "group"}
    return recipe(**{
        "family": "flux2_klein", "panels": "one_by_one", "guidance": 2.0, "rewards": terms, "train_size": 2 * SIDE,
        "eval_sizes": [2 * SIDE], "max_sequence_length": WINDOW, **changes,
    })  # fmt: skip


def arrays(pictures: list[Image.Image]) -> np.ndarray:
    return np.stack([np.asarray(picture, dtype=int) for picture in pictures])


def generate(policy: Any, record: PromptRecord, predecessors: int) -> tuple[list[Image.Image], list[Any]]:
    page = ImageGrid.from_record(record, 2 * SIDE, "aspect", policy.multiple, predecessors)
    prompts = EncodedPrompts.from_records(policy, [record], predecessors, WINDOW, 4.0)
    return sample_images(policy, prompts, [0, 0], KEYS, Sampling.for_policy(policy, page.part_size, 3, 4.0), page)


@pytest.mark.slow
def test_each_panel_is_the_edit_that_the_plain_pipeline_makes_of_those_before_it(model: Path) -> None:
    record = story(1, "2x2")
    images, parts = generate(load(model), record, 2)
    panels = [split_grid(image, "2x2") for image in images]
    assert len(parts) == 4 and images[0].size == (2 * SIDE, 2 * SIDE)
    pipeline, policy = load(model).pipeline, load(model)
    for number, text in enumerate(panel_texts(record)):
        keys = [NoiseKey(f"story-{number}", key.image, key.seed) for key in KEYS]
        for place, noise in enumerate(policy.noise((SIDE, SIDE), keys)):
            references = panels[place][max(0, number - 2) : number]
            latents = noise.T.reshape(1, -1, SIDE // 16, SIDE // 16)
            plain = pipeline(
                image=references or None, prompt=text, height=SIDE, width=SIDE, num_inference_steps=3,
                guidance_scale=4.0,
                latents=latents, max_sequence_length=WINDOW,
            ).images[0]  # fmt: skip
            assert np.abs(arrays([plain]) - arrays([panels[place][number]])).max() <= 1
    assert (arrays(images)[0] == arrays([compose_grid(panels[0], (2, 2))])[0]).all()


def with_characters(record: PromptRecord, folder: Path) -> PromptRecord:
    """A story whose first panel names nobody, the second Tom, the third Ann and Tom, the fourth Ann."""
    names = (["nobody", "Tom", "Ann with Tom", "Ann"])[: math.prod(record.grid)]
    colors = {"Ann": ("red", "blue"), "Tom": ("green",)}
    people: list[dict[str, Any]] = []
    for name, of_name in colors.items():
        paths = [folder / f"{name}{number}.png" for number in range(len(of_name))]
        for path, color in zip(paths, of_name, strict=True):
            image = Image.new("RGB", (SIDE, SIDE + 16 * len(people)), "white")
            image.paste(color, (8, 8, 40, 40))
            image.save(path)
        people.append({"name": name, "images": [str(path) for path in paths]})
    text = str(prompt_from_theme("a walk. All images show it", names, record.layout))
    return PromptRecord.model_validate(record.model_dump() | {"prompt": text, "characters": people})


@pytest.mark.slow
def test_a_panel_refers_to_the_characters_that_it_names_and_then_to_earlier_panels(model: Path, tmp_path: Path) -> None:
    record = with_characters(story(1, "2x2"), tmp_path)
    images, _ = generate(load(model), record, 3)
    panels = [split_grid(image, "2x2") for image in images]
    ann, tom = (load_images(character) for character in record.characters)
    people = [[], tom, [*ann, *tom], ann]
    pipeline, policy = load(model).pipeline, load(model)
    for number, text in enumerate(panel_texts(record)):
        keys = [NoiseKey(f"story-{number}", key.image, key.seed) for key in KEYS]
        for place, noise in enumerate(policy.noise((SIDE, SIDE), keys)):
            count = min(number, 3, 4 - len(people[number]))
            references = [*people[number], *panels[place][number - count : number]]
            plain = pipeline(
                image=[as_in_training(pipeline, image) for image in references] or None, prompt=text, height=SIDE,
                width=SIDE, num_inference_steps=3, guidance_scale=4.0, max_sequence_length=WINDOW,
                latents=noise.T.reshape(1, -1, SIDE // 16, SIDE // 16),
            ).images[0]  # fmt: skip
            assert np.abs(arrays([plain]) - arrays([panels[place][number]])).max() <= 1


def as_in_training(pipeline: Any, image: Image.Image) -> Image.Image:
    """A reference as a card's example scales it: at most as many pixels as the panel, but a shorter side of 64."""
    resized: Image.Image = pipeline.image_processor._resize_if_exceeds_area(
        image, max(SIDE * SIDE, round(64 * 64 * max(image.size) / min(image.size)))
    )
    return resized


@pytest.mark.slow
def test_a_batch_may_mix_panels_with_and_without_references(model: Path, tmp_path: Path) -> None:
    policy, plain = load(model), story(2, "1x3")
    cast = with_characters(story(3, "1x3"), tmp_path)
    cast = cast.model_copy(update={"prompt": cast.prompt.replace("nobody", "Ann")})
    page = ImageGrid.from_record(plain, 2 * SIDE, "aspect", policy.multiple, 4)
    sampling = Sampling.for_policy(policy, page.part_size, 3, 4.0)

    def images(*records: PromptRecord) -> list[Image.Image]:
        prompts = EncodedPrompts.from_records(policy, records, 4, WINDOW, 4.0)
        rows = list(range(len(records)))
        return sample_images(policy, prompts, rows, [NoiseKey(r.idx, 0, 3) for r in records], sampling, page)[0]

    together, apart = images(plain, cast), [*images(plain), *images(cast)]
    assert np.abs(arrays(together) - arrays(apart)).max() <= 1
    without = images(cast.model_copy(update={"characters": ()}))
    assert np.abs(arrays(without) - arrays(together[1:])).max() > 1


@dataclass(frozen=True)
class Zero(NoiseKey):
    """The noise of the generator's seed 0, as a card's example has it."""

    @property
    def generator_seed(self) -> int:
        return 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "has_characters"), [("flux2_klein", False), ("flux2_klein", True), ("flux3_klein", True)]
)
def test_the_example_on_a_card_paints_the_story(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, has_characters: bool
) -> None:
    if family == "flux3_klein":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            model = flux3_klein(tmp_path / "flux3/model", gain=1)
    policy, record = load(model, family=family), story(1, "2x2")
    if has_characters:
        record = with_characters(record, tmp_path)
        save_references(tmp_path / "place/samples/reference", [record], character_references)
    policy.add_adapter(PolicyLora(rank=2, alpha=4), 0)
    generator = torch.Generator().manual_seed(5)
    for parameter in policy.trainable().values():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.1
    policy.save_adapter(tmp_path / "place/adapter")
    recipe = rule(family=family, model=str(model), predecessors=2, eval_steps=3)
    split = PromptSplit([record], [record])
    card = policy_model_card(recipe, policy, split, RunContext(final=Path("place"), benchmark="t2is"), {}, 0)
    assert '`NoiseKey("prompt id-panel", 0, seed)' in card
    monkeypatch.chdir(tmp_path)
    exec(compile(card.split("```python\n")[1].split("```")[0], "card", "exec"), {})
    prompts = EncodedPrompts.from_records(policy, [record], 2, WINDOW, recipe.guidance)
    sampling = Sampling.for_policy(policy, (SIDE, SIDE), 3, recipe.guidance)
    page = ImageGrid((2 * SIDE, 2 * SIDE), (2, 2))
    images, _ = sample_images(policy, prompts, [0], [Zero("story", 0, 0)], sampling, page)
    assert np.abs(arrays(images) - arrays([Image.open("image.png")])).max() <= 2


def test_what_cannot_be_a_story_is_refused_by_name() -> None:
    for changes, message in (
        ({"family": "flux"}, "flux accepts no"), ({"family": "qwen_image"}, "qwen_image accepts no"),
        ({"family": "flux_kontext"}, "flux_kontext only edits"), ({"task": "edits"}, "flux2_klein has task: edits"),
        ({"predecessors": 5}, "predecessors=5"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=message):
            validate_story_panels(rule(**changes))
    for changes in ({}, {"predecessors": 4}, {"panels": "together", "family": "flux"}):
        validate_story_panels(rule(**changes))
    assert [max_predecessors(rule(**changes)) for changes in ({}, {"predecessors": 2}, {"panels": "together"})] == [
        4,
        2,
        0,
    ]
    for changes in (
        {"loss": "dpo", "noise_steps": [], "dynamics": "ode", "kl": {"beta": 0.0}},
        {"panels": "together", "predecessors": 2},
    ):
        with pytest.raises(ValueError, match=r"dpo|predecessors"):
            rule(**changes)


def test_panels_too_small_to_be_a_reference_are_refused() -> None:
    with pytest.raises(DataError, match="32 x 32.*64 x 192"):
        validate_sizes([story(0)], rule(train_size=SIDE), 16)
    long = story(0).model_copy(update={"height": 64, "width": 3 * 1024})
    with pytest.raises(DataError, match="64 x 1024"):
        validate_sizes([long], rule(record_size="exact"), 16)
    validate_sizes([story(0)], rule(), 16)
    validate_sizes([story(0)], rule(train_size=SIDE, panels="together"), 16)
