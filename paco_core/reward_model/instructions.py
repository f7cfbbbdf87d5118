"""Instruction templates of the reward model, for training, scoring and benchmarks.

The wording is an interface, because released weights were trained on these strings (PaCo-RL, arXiv 2512.04784). " and "
and " or " differ between templates as in the release.
"""

from __future__ import annotations

import string
from typing import Any

from paco_core.io.files import DataError
from paco_core.io.messages import did_you_mean
from paco_core.io.text import validate_marks

_COMPARE = (
    "Compare the edited image (second) with the original image (first). Instruction: '{instruction}'. "
    "Except for the parts that are intentionally changed according to the instruction, does the edited image "
    "remain consistent with the original in style, logic, and identity? "
    "Answer 'Yes' or 'No' first, then provide detailed reasons."
)
_FOLLOW = (
    "Compare the edited image (second) with the original image (first). Instruction: '{instruction}'. "
    "Does the edited image accurately follow this instruction? "
    "Answer 'Yes' or 'No' first, then provide detailed reasons."
)
_PLAIN = (
    "Do the two images maintain consistency in terms of style, logic and identity? "
    'Answer "Yes" and "No" first, and then provide detailed reasons.'
)
_MARKED = "<img1>: <image><img2>: <image>"  # <image>: place of an image; without it, both images come first
TEMPLATES: dict[str, str] = {
    "theme": (
        'Given two subfigures generated based on the theme: "{theme}", do the two images maintain '
        "consistency in terms of style, logic and identity? "
        'Answer "Yes" and "No" first, and then provide detailed reasons.'
    ),
    "plain": _PLAIN,
    "marked": f"{_MARKED}{_PLAIN}",  # as the published ConsistencyRank figures were asked
    "criteria": (
        "Do images meet the following criteria? {criterion} "
        "Please answer Yes or No first, then provide detailed reasons."
    ),
    "edit_consistency": _COMPARE,
    "edit_following": _FOLLOW,
    # For each further reference of an edit. No released weights were trained on it.
    "edit_reference": (
        "Compare the edited image (second) with reference image {number} of its instruction (first). "
        "Instruction: '{instruction}'. Does the edited image show what the instruction takes from this reference, "
        "consistent with it in style, logic, and identity? "
        "Answer 'Yes' or 'No' first, then provide detailed reasons."
    ),
    # The first image shows a character that the user brings, the second a panel of a story. A pasted image of the
    # character would agree perfectly with it, so the query excludes copies. No released weights were trained on it.
    "character": (
        'The first image shows the character "{name}". Does the second image show the same character as the first, in '
        "a new picture that is not a copy? Answer 'Yes' or 'No' first, then provide detailed reasons."
    ),
    # As T2IS-Bench asks: about two panels, and (VQAScore's question) about one.
    "t2is_bench_criteria": "Do images meet the following criteria? {criterion} Please answer Yes or No.",
    "t2is_bench_shows": 'Does this figure show "{criterion}"? Please answer yes or no.',
    # What ViStoryBench grades of a panel, asked for yes or no.
    "vistory_setting": 'Is this the setting of the picture: "{criterion}"? Please answer Yes or No.',
    "vistory_action": 'Does this picture show what is described here: "{criterion}"? Please answer Yes or No.',
    "vistory_camera": (
        'Are shot distance and camera angle of this picture as described here: "{criterion}"? Please answer Yes or No.'
    ),
    "vistory_character": (
        'A picture is described as follows: "{instruction}". Does it show {criterion} doing what this says of that '
        "character? Please answer Yes or No."
    ),
    # As the published EditReward-Bench figures were asked (the released evaluation writes the marks by hand).
    "edit_bench_consistency": (
        f"{_MARKED}Given two images after an edit with instruction '{{instruction}}', do they maintain consistency "
        "in terms of style, logic and identity? Answer 'Yes' or 'No' only."
    ),
    "edit_bench_following": (
        f"{_MARKED}Given two images after an edit with instruction '{{instruction}}', is the edit following the "
        "instruction well? Answer 'Yes' or 'No' only."
    ),
}


def _fields(template: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(template) if name]


def render_instruction(
    template: str,
    *,
    theme: str | None = None,
    criterion: str | None = None,
    instruction: str | None = None,
    number: int | None = None,
    name: str | None = None,
) -> str:
    """Render the instruction of a template. Values that the template does not use are ignored.

    Raises:
        DataError: if the template does not exist, or a required value is missing, empty, or contains a special token
            (:func:`validate_marks`).
    """
    if template not in TEMPLATES:
        raise DataError(
            f"instruction template {template!r} does not exist; {did_you_mean(template, TEMPLATES)}"
            f"there are {', '.join(TEMPLATES)}"
        )
    values = {
        "theme": theme, "criterion": criterion, "instruction": instruction,
        "number": None if number is None else str(number), "name": name,
    }  # fmt: skip
    text = TEMPLATES[template]
    for field in _fields(text):
        if not (values[field] or "").strip():
            raise DataError(f"instruction template {template!r} needs {field}=, which is missing or empty")
        try:
            validate_marks(str(values[field]))
        except ValueError as error:
            raise DataError(f"{field} {str(values[field])[:60]!r} {error}") from None
        text = text.replace("{" + field + "}", str(values[field]))
    return text


def question(theme: str | None) -> str:
    """The instruction for a pair with or without a theme, in `paco score` and :class:`paco_core.Judge`."""
    return pair_question("theme", theme)


def pair_question(template: str, theme: str | None) -> str:
    """The instruction for a pair. If the template needs a theme and there is none, the template is ``plain``.

    Raises:
        DataError: as :func:`render_instruction`.
    """
    quotes = template in TEMPLATES and "theme" in _fields(TEMPLATES[template])
    return render_instruction("plain" if quotes and not theme else template, theme=theme)


def chat(processor: Any, rendered: str, images: int = 2) -> str:
    """Render an instruction in the processor's chat template: one user turn, up to the beginning of the answer.

    Images are first, unless the instruction marks their places.

    Raises:
        DataError: if the chat template of the model's folder cannot be rendered.
    """
    picture = {"type": "image"}
    content: list[dict[str, str]] = [picture] * images + [{"type": "text", "text": rendered}]
    if rendered.startswith(_MARKED):
        first, second, question = ({"type": "text", "text": text} for text in rendered.split("<image>", 2))
        content = [first, picture, second, picture, question]
    messages = [{"role": "user", "content": content}]
    try:
        return str(processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template is a program: it may raise anything  # noqa: BLE001
        model = getattr(getattr(processor, "tokenizer", None), "name_or_path", "") or "the model"
        raise DataError(
            f"{model}: its chat template cannot be rendered ({type(error).__name__}: {str(error)[:200]}); replace "
            "chat_template.jinja by the one of Qwen2.5-VL"
        ) from None
