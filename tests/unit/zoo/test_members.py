"""The committed members of the zoo load with the ordinary classes and are what their cards say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from paco_core.storybook.recogniser import GoldEdit
from tests.support import REPOSITORY
from zoo.edit_figures import edit_means
from zoo.names import NOT_IN_GIT
from zoo.vlm import encode_panels
from zoo.vlm_batches import Renderer, language_states

ZOO = REPOSITORY / "data" / "zoo"
READERS = ("qwen2_5_vl", "qwen3_vl")
GENERATORS = ("flux", "flux_kontext", "qwen_image_edit", "flux2_klein", "z_image")
MEMBERS = (*GENERATORS, *READERS, "clip", "recogniser")
LIMIT_MB = 75

#: What a reward model is asked, filled in.
INSTRUCTIONS = (
    'Given two subfigures generated based on the theme: "a red cat with a scarf", do the two images maintain '
    "consistency in terms of style, logic and identity? "
    'Answer "Yes" and "No" first, and then provide detailed reasons.',
    "Compare the edited image (second) with the original image (first). Instruction: 'make the cat blue'. "
    "Except for the parts that are intentionally changed according to the instruction, does the edited image "
    "remain consistent with the original in style, logic, and identity? "
    "Answer 'Yes' or 'No' first, then provide detailed reasons.",
    "Does the edited image accurately follow this instruction? "
    "Do images meet the following criteria? The colour is the same. "
    "Please answer Yes or No first, then provide detailed reasons.",
)


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> Path:
    """Folder of a vision-language model."""
    return ZOO / str(request.param)


@pytest.fixture
def processor(reader: Path) -> Any:
    return AutoProcessor.from_pretrained(reader)


def test_the_zoo_is_small_and_free_of_pickles() -> None:
    outside = [ZOO / member for member in NOT_IN_GIT]
    files = [path for path in ZOO.rglob("*") if path.is_file() and not path.is_symlink()]
    files = [path for path in files if not any(path.is_relative_to(folder) for folder in outside)]
    assert sum(path.stat().st_size for path in files) <= LIMIT_MB * 1e6
    assert not [path for path in files if path.suffix in {".bin", ".pt", ".pth", ".pkl", ".ckpt"}]


@pytest.mark.slow
@pytest.mark.parametrize("member", MEMBERS)
def test_the_code_of_a_card_runs(member: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ZOO / member / "README.md").read_text(), re.DOTALL)
    picture = Image.new("RGB", (64, 64), "white")
    monkeypatch.chdir(REPOSITORY)
    exec(code, {"prompt": "a red cat with a scarf", "panel": picture, "other": picture})


@pytest.mark.parametrize("text", INSTRUCTIONS)
def test_instructions_survive_the_tokenizer_word_by_word(processor: Any, text: str) -> None:
    ids = processor.tokenizer(text)["input_ids"]
    assert processor.tokenizer.unk_token_id not in ids
    assert processor.tokenizer.decode(ids) == text
    assert len(ids) <= 1.6 * len(text.split())
    elsewhere = "Ein Zebra tanzt: 你好, 4x4 jeep!"
    assert processor.tokenizer.decode(processor.tokenizer(elsewhere)["input_ids"]) == elsewhere


def test_batched_language_equals_the_library(processor: Any, reader: Path) -> None:
    model: Any = AutoModelForImageTextToText.from_pretrained(reader).eval()
    assert model.dtype == torch.float32  # of the config; the file has float16
    ids = torch.tensor([Renderer(processor.tokenizer, 1.0).question(2, INSTRUCTIONS[0])])
    content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": INSTRUCTIONS[0]}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    text = text.replace("<|image_pad|>", "<|image_pad|>" * 4)
    assert processor.tokenizer(text)["input_ids"] == ids[0].tolist()
    patches = torch.randn(2, 16, 1176, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        ours = model.lm_head(language_states(model, ids, encode_panels(model.model.visual, patches)[None])[-1])
        theirs = model(
            input_ids=ids,
            mm_token_type_ids=(ids == model.config.image_token_id).int(),
            pixel_values=patches.flatten(0, 1),
            image_grid_thw=torch.tensor([[1, 4, 4]] * 2),
        ).logits
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_the_means_of_edits_have_the_names_of_the_card() -> None:
    edits = [GoldEdit(reached=1.0, unchanged=1.0), GoldEdit(reached=1.0, unchanged=0.8), GoldEdit(0.0, 1.0)]
    means = edit_means(edits, "gold", 64)
    assert means == pytest.approx({"gold_editing_64px": 1 / 3, "gold_reached_64px": 2 / 3, "gold_kept_64px": 2.8 / 3})
    card = json.loads((REPOSITORY / "data/zoo/flux_kontext/card.json").read_text())
    assert means.keys() <= card["figures"].keys()
