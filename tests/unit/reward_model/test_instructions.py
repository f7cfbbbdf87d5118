"""The questions, to the letter: released weights answer to no other wording."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import Qwen2_5_VLProcessor

from paco_core.io.files import DataError
from paco_core.reward_model.instructions import TEMPLATES, chat, render_instruction

COMPARED = (
    "Compare the edited image (second) with the original image (first). Instruction: 'make it blue'. {rest} "
    "Answer 'Yes' or 'No' first, then provide detailed reasons."
)
EXPECTED = {
    "theme": (
        'Given two subfigures generated based on the theme: "a cat", do the two images maintain consistency in '
        'terms of style, logic and identity? Answer "Yes" and "No" first, and then provide detailed reasons.'
    ),
    "plain": (
        "Do the two images maintain consistency in terms of style, logic and identity? "
        'Answer "Yes" and "No" first, and then provide detailed reasons.'
    ),
    "marked": (
        "<img1>: <image><img2>: <image>Do the two images maintain consistency in terms of style, logic and identity? "
        'Answer "Yes" and "No" first, and then provide detailed reasons.'
    ),
    "criteria": (
        "Do images meet the following criteria? The style is the same. "
        "Please answer Yes or No first, then provide detailed reasons."
    ),
    "t2is_bench_criteria": "Do images meet the following criteria? The style is the same. Please answer Yes or No.",
    "t2is_bench_shows": 'Does this figure show "The style is the same."? Please answer yes or no.',
    "vistory_setting": 'Is this the setting of the picture: "The style is the same."? Please answer Yes or No.',
    "vistory_action": (
        'Does this picture show what is described here: "The style is the same."? Please answer Yes or No.'
    ),
    "vistory_camera": (
        'Are shot distance and camera angle of this picture as described here: "The style is the same."? '
        "Please answer Yes or No."
    ),
    "vistory_character": (
        'A picture is described as follows: "make it blue". Does it show The style is the same. doing what this says '
        "of that character? Please answer Yes or No."
    ),
    "edit_consistency": COMPARED.replace(
        "{rest}",
        "Except for the parts that are intentionally changed according to the instruction, does the edited "
        "image remain consistent with the original in style, logic, and identity?",
    ),
    "character": (
        'The first image shows the character "Mia". Does the second image show the same character as the first, in a '
        "new picture that is not a copy? Answer 'Yes' or 'No' first, then provide detailed reasons."
    ),
    "edit_bench_consistency": (
        "<img1>: <image><img2>: <image>Given two images after an edit with instruction 'make it blue', do they "
        "maintain consistency in terms of style, logic and identity? Answer 'Yes' or 'No' only."
    ),
    "edit_bench_following": (
        "<img1>: <image><img2>: <image>Given two images after an edit with instruction 'make it blue', is the edit "
        "following the instruction well? Answer 'Yes' or 'No' only."
    ),
    "edit_following": COMPARED.replace("{rest}", "Does the edited image accurately follow this instruction?"),
    "edit_reference": (
        "Compare the edited image (second) with reference image 2 of its instruction (first). "
        "Instruction: 'make it blue'. Does the edited image show what the instruction takes from this reference, "
        "consistent with it in style, logic, and identity? Answer 'Yes' or 'No' first, then provide detailed reasons."
    ),
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_template_is_rendered_to_the_letter(template: str) -> None:
    text = render_instruction(
        template, theme="a cat", criterion="The style is the same.", instruction="make it blue", number=2,
        name="Mia",
    )  # fmt: skip
    assert text == EXPECTED[template]


def test_marked_pictures_stand_behind_their_marks(repository: Path) -> None:
    """The published figures were asked so; the released model's chat form puts a system turn before."""
    picture = "<|vision_start|><|image_pad|><|vision_end|>"
    processor = Qwen2_5_VLProcessor.from_pretrained(repository / "data/zoo/qwen2_5_vl")
    assert chat(processor, render_instruction("marked")) == (
        f"<|im_start|>user\n<img1>: {picture}<img2>: {picture}{EXPECTED['plain']}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert f"user\n{picture}{picture}Do the two" in chat(processor, render_instruction("plain"))
    for template in ("edit_bench_consistency", "edit_bench_following"):
        text = render_instruction(template, instruction="write <image> on it")
        question = EXPECTED[template].split("<image>", 2)[2].replace("make it blue", "write <image> on it")
        assert f"user\n<img1>: {picture}<img2>: {picture}{question}<|im_end|>" in chat(processor, text)


def test_braces_in_a_theme_stay_as_they_are() -> None:
    assert '"a {red} cat {theme}"' in render_instruction("theme", theme="a {red} cat {theme}")


def test_an_unknown_template_and_a_missing_value_are_named() -> None:
    with pytest.raises(DataError, match="'theme'"):
        render_instruction("themes", theme="a cat")
    for theme in (None, ""):
        with pytest.raises(DataError, match="theme="):
            render_instruction("theme", theme=theme)


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(1000000000) %}{{ i }}{% endfor %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    ],
)
def test_a_hostile_chat_template_ends_in_a_sentence(repository: Path, template: str) -> None:
    processor = Qwen2_5_VLProcessor.from_pretrained(repository / "data/zoo/qwen2_5_vl")
    processor.chat_template = template
    with pytest.raises(DataError, match="chat template"):
        chat(processor, render_instruction("plain"))
