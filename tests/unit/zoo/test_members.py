"""The committed members of the zoo load with the ordinary classes and are what their cards say."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from PIL import Image

from paco_core.storybook.world import VOCABULARY
from tests.support import REPOSITORY

ZOO = REPOSITORY / "data" / "zoo"
MEMBERS = ("flux", "qwen2_5_vl", "clip", "recogniser", "flux_kontext", "qwen_image_edit", "flux2_klein")
LIMIT_MB = 70

#: The instruction strings that a reward model is asked with, filled in.
INSTRUCTIONS = (
    'Given two subfigures generated based on the theme: "a red cat with a scarf", do the two images maintain '
    "consistency in terms of style, logic and identity? "
    'Answer "Yes" and "No" first, and then provide detailed reasons.',
    "Do the two images maintain consistency in terms of style, logic and identity? "
    'Answer "Yes" and "No" first, and then provide detailed reasons.',
    "Do images meet the following criteria? The colour is the same. "
    "Please answer Yes or No first, then provide detailed reasons.",
    "Compare the edited image (second) with the original image (first). Instruction: 'make the cat blue'. "
    "Except for the parts that are intentionally changed according to the instruction, does the edited image "
    "remain consistent with the original in style, logic, and identity? "
    "Answer 'Yes' or 'No' first, then provide detailed reasons.",
    "Does the edited image accurately follow this instruction? "
    "Answer 'Yes' or 'No' first, then provide detailed reasons.",
)


@pytest.fixture(scope="module")
def processor() -> Any:
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(ZOO / "qwen2_5_vl")


def test_the_zoo_is_small_and_free_of_pickles() -> None:
    files = [path for path in ZOO.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= LIMIT_MB * 1e6
    assert not [path for path in files if path.suffix in {".bin", ".pt", ".pth", ".pkl", ".ckpt"}]


@pytest.mark.parametrize("member", MEMBERS)
def test_every_member_has_a_card_with_figures(member: str) -> None:
    card = json.loads((ZOO / member / "card.json").read_text())
    assert card["figures"]
    assert all(isinstance(value, int | float) for value in card["figures"].values())
    assert (ZOO / member / "README.md").read_text().strip()


@pytest.mark.slow
@pytest.mark.parametrize("member", MEMBERS)
def test_the_code_of_a_card_runs(member: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ZOO / member / "README.md").read_text(), re.DOTALL)
    picture = Image.new("RGB", (64, 64), "white")
    monkeypatch.chdir(REPOSITORY)
    exec(code, {"prompt": "a red cat with a scarf", "panel": picture, "other": picture})


def test_yes_and_no_are_single_tokens(processor: Any) -> None:
    for text in ("Yes", "No", "Yes. Both are red.", "No, they differ."):
        word = text[:3].strip(".,").strip()
        assert processor.tokenizer.tokenize(text)[0] == word
    assert len({processor.tokenizer.convert_tokens_to_ids(word) for word in ("Yes", "No")}) == 2


@pytest.mark.parametrize("text", INSTRUCTIONS)
def test_instructions_survive_the_tokenizer_word_by_word(processor: Any, text: str) -> None:
    ids = processor.tokenizer(text)["input_ids"]
    assert processor.tokenizer.unk_token_id not in ids
    assert processor.tokenizer.decode(ids) == text
    assert len(ids) <= 1.6 * len(text.split())


def test_text_from_elsewhere_falls_back_to_bytes(processor: Any) -> None:
    text = "Ein Zebra tanzt: 你好, 4x4 jeep!"
    assert processor.tokenizer.decode(processor.tokenizer(text)["input_ids"]) == text


def test_vision_language_model_answers_about_two_pictures(processor: Any) -> None:
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration

    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(ZOO / "qwen2_5_vl").eval()
    content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": INSTRUCTIONS[1]}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    assert text.count("<|image_pad|>") == 2
    assert text.endswith("<|im_start|>assistant\n")
    pictures = [Image.new("RGB", (32, 32), colour) for colour in ("red", "blue")]
    batch = processor(text=[text], images=pictures, return_tensors="pt")
    assert (batch["input_ids"] == model.config.image_token_id).sum() == 8
    with torch.inference_mode():
        first = model(**batch).logits[0, -1].softmax(dim=0)
    yes, no = (processor.tokenizer.convert_tokens_to_ids(word) for word in ("Yes", "No"))
    assert first[yes] + first[no] > 0.9


def test_batched_vision_tower_equals_the_library(processor: Any) -> None:
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration

    from zoo.vlm import encode_panels

    tower = Qwen2_5_VLForConditionalGeneration.from_pretrained(ZOO / "qwen2_5_vl").eval().model.visual
    patches = torch.randn(3, 16, 1176, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        theirs = tower(patches.flatten(0, 1), torch.tensor([[1, 4, 4]] * 3), return_dict=True).pooler_output
        ours = encode_panels(tower, patches)
    torch.testing.assert_close(ours.flatten(0, 1), theirs, atol=1e-4, rtol=1e-4)


def test_batched_language_equals_the_library(processor: Any) -> None:
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration

    from zoo.vlm import encode_panels
    from zoo.vlm_batches import Renderer, language_states

    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(ZOO / "qwen2_5_vl").eval()
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


def test_clip_loads_through_open_clip_and_tells_colours_apart() -> None:
    import open_clip
    import torch

    name = f"local-dir:{ZOO / 'clip'}"
    model, _, preprocess = open_clip.create_model_and_transforms(name)
    tokenizer = open_clip.get_tokenizer(name)
    model.eval()
    from paco_core.storybook.drawing import draw
    from paco_core.storybook.world import Panel

    panels = [Panel("cat", colour, "hat", "big", "beach", "flat") for colour in VOCABULARY["colour"]]  # type: ignore[arg-type]
    pictures = torch.stack([preprocess(draw(panel, 32, None)) for panel in panels])
    texts = tokenizer([f"a big {panel.colour} cat with a hat on the beach" for panel in panels])
    with torch.inference_mode():
        image = torch.nn.functional.normalize(model.encode_image(pictures), dim=-1)
        text = torch.nn.functional.normalize(model.encode_text(texts), dim=-1)
    assert (image @ text.T).argmax(dim=1).tolist() == list(range(len(panels)))
