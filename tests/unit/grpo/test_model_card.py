"""The model card of a policy: its sections, its length, its sample image and its license."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from paco_core.grpo.card_sample import HEIGHT, PROMPTS, SAMPLE, card_sample
from paco_core.grpo.evaluation import Evaluation, save_pictures
from paco_core.grpo.model_card import policy_model_card
from paco_core.grpo.prompt_split import PromptSplit
from paco_core.grpo.trainer import RunContext
from tests.support.grpo_toys import recipe, record

SECTIONS = [
    "Intended use", "Out of scope", "How to load it", "Benchmark", "Training data", "Training", "License",
]  # fmt: skip


class Policy:
    """The parts of a policy that a card reads."""

    multiple = 8

    def __init__(self, *, edits: bool) -> None:
        self.edits = edits

    def example(self, *_settings: Any) -> str:
        return "image = pipeline(prompt)"


def card(*, edits: bool = False, world: str = "storybook", licence: dict[str, str] | None = None) -> str:
    split = PromptSplit([record(n) for n in range(6)], [record(n) for n in range(6, 10)])
    context = RunContext(final=Path("data/policies/mine"), benchmark="t2is", world=world)
    policy: Any = Policy(edits=edits)
    return policy_model_card(
        recipe(family="flux_kontext" if edits else "flux"), policy, split, context, licence or {}, 3
    )


@pytest.mark.parametrize("edits", [False, True])
def test_a_card_is_short_and_has_each_section_once(edits: bool) -> None:
    text = card(edits=edits, licence={"license": "apache-2.0"})
    lines = text.splitlines()
    assert [line.removeprefix("## ") for line in lines if line.startswith("## ")] == SECTIONS
    assert len(lines) <= 110, "at most 120 with the provenance section"
    assert f"]({SAMPLE})" in text and "dvc repro t2is" in text
    assert "6 editing instructions" in text if edits else "6 text prompts" in text


def test_the_license_is_named_and_linked() -> None:
    licence = {"license": "other", "license_name": "some-terms", "license_link": "https://example.org/terms"}
    text = card(licence=licence)
    assert yaml.safe_load(text.split("---")[1])["license_name"] == "some-terms"
    assert "[some-terms](https://example.org/terms)" in text.split("## License")[1]


def test_the_limits_depend_on_the_world() -> None:
    embedded, real = (card(world=world).split("## Out of scope")[1] for world in ("storybook", "real"))
    assert "embedded world" in embedded.split("##")[0] and "embedded world" not in real.split("##")[0]


@pytest.mark.parametrize("edits", [False, True])
def test_the_sample_shows_each_prompt_before_and_after(tmp_path: Path, edits: bool) -> None:
    seeds, prompts = [0, 1], [record(n) for n in range(PROMPTS + 1)]

    def solid(color: str) -> list[Image.Image]:
        return [Image.new("RGB", (32, 32), color if number % 2 == 0 else "white") for number in range(2 * len(prompts))]

    before = Evaluation({}, {16: solid("white"), 32: solid("red")}, {})
    save_pictures(tmp_path, before, prompts, seeds)
    after = replace(before, pictures={16: solid("white"), 32: solid("blue")})
    reference: Any = (lambda _record: [Image.new("RGB", (32, 32), "green")]) if edits else None
    sample = card_sample(tmp_path, after, prompts, seeds, reference)
    columns = ["green", "red", "blue"] if edits else ["red", "blue"]
    assert sample.size == (HEIGHT * len(columns), HEIGHT * PROMPTS)
    for row in range(PROMPTS):
        for column, color in enumerate(columns):
            place = (HEIGHT * column + HEIGHT // 2, HEIGHT * row + HEIGHT // 2)
            assert sample.getpixel(place) == Image.new("RGB", (1, 1), color).getpixel((0, 0))
