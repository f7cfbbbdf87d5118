"""Truncation of prompts by a diffusers pipeline of any class. Only its tokenizers are loaded."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import diffusers
from transformers import AutoTokenizer

from paco_core.models.hub import from_hub
from paco_core.models.tokens import note_texts, token_counts
from paco_core.policies.truncation import (
    Truncation,
    find_truncation,
    find_truncation_in_chat,
    find_truncation_in_template,
)
from paco_core.policies.windows import CHATS, find_main_tokenizer

if TYPE_CHECKING:
    from paco_core.data.records.records import PromptRecord


def find_truncated_prompts(model: Path | str, records: Sequence[PromptRecord], window: int) -> dict[str, Truncation]:
    """Return the truncations of prompts by the ids of their records.

    Texts that another tokenizer truncates, such as that of CLIP, are counted (:func:`note_texts`).

    Args:
        model: folder or hub id.
        window: ``max_sequence_length``. It applies if the class of the pipeline accepts it. Otherwise the window of the
            tokenizer applies.
    """
    with from_hub(model):
        parts: dict[str, Any] = diffusers.DiffusionPipeline.load_config(str(model))
        if (name := find_main_tokenizer(parts)) is None:
            return {}
        names = {name, *(part for part in parts if part.startswith("tokenizer"))}
        tokenizers = {part: AutoTokenizer.from_pretrained(str(model), subfolder=part) for part in names}
    tokenizer = tokenizers.pop(name)
    for clip in tokenizers.values():
        note_texts("summary", [r.prompt for r in records], clip.model_max_length, partial(token_counts, clip))
    pipeline_class = getattr(diffusers, str(parts.get("_class_name")), None)
    accepts_window = (
        pipeline_class is not None and "max_sequence_length" in inspect.signature(pipeline_class.__call__).parameters
    )
    find = _truncation_finder(
        str(parts.get("_class_name")), tokenizer, window if accepts_window else int(tokenizer.model_max_length)
    )
    truncations = {record.idx: find(record.prompt) for record in records}
    return {idx: truncation for idx, truncation in truncations.items() if truncation is not None}


def _truncation_finder(class_name: str, tokenizer: Any, window: int) -> Callable[[str], Truncation | None]:
    """Return a function that finds the truncation of a prompt. Some classes use a template, whose tokens count."""
    if class_name in CHATS:
        return lambda prompt: find_truncation_in_chat(tokenizer, prompt, window, thinking=CHATS[class_name])
    if class_name == "QwenImagePipeline":
        empty = diffusers.QwenImagePipeline(**dict.fromkeys(inspect.signature(diffusers.QwenImagePipeline).parameters))
        template, dropped = empty.prompt_template_encode, empty.prompt_template_encode_start_idx
        return lambda prompt: find_truncation_in_template(tokenizer, template.format(prompt), prompt, window, dropped)
    closing = tokenizer("a").input_ids[-1:] == [tokenizer.eos_token_id]
    return lambda prompt: find_truncation(tokenizer, prompt, window, closing=closing)
