"""What a text-to-image pipeline of any class does not read of prompts, by its tokenizer alone."""

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
from paco_core.policies.cuts import Cut, cut_in_dialogue, cut_in_template, cut_of
from paco_core.policies.windows import main_tokenizer

if TYPE_CHECKING:
    from paco_core.data.records.records import PromptRecord


def cut_prompts(model: Path | str, records: Sequence[PromptRecord], window: int) -> dict[str, Cut]:
    """What is cut off prompts, by their ids, whether they are painted now or were before.

    Texts that a further tokenizer cuts, CLIP's for the summary of a prompt, are counted (:func:`note_texts`).

    Args:
        model: folder or hub id.
        window: ``max_sequence_length``, which holds where the class takes it; else its tokenizer says how much is read.
    """
    with from_hub(model):
        parts: dict[str, Any] = diffusers.DiffusionPipeline.load_config(str(model))
        if (name := main_tokenizer(parts)) is None:
            return {}
        names = [part for part in parts if part.startswith("tokenizer")]
        tokenizers = {part: AutoTokenizer.from_pretrained(str(model), subfolder=part) for part in names}
    tokenizer = tokenizers.pop(name)
    for clip in tokenizers.values():
        note_texts("summary", [r.prompt for r in records], clip.model_max_length, partial(token_counts, clip))
    kind = getattr(diffusers, str(parts.get("_class_name")), None)
    takes = kind is not None and "max_sequence_length" in inspect.signature(kind.__call__).parameters
    reads = window if takes else int(tokenizer.model_max_length)
    cut = _reader(str(parts.get("_class_name")), tokenizer, reads)
    found = {record.idx: cut(record.prompt) for record in records}
    return {idx: lost for idx, lost in found.items() if lost is not None}


def _reader(kind: str, tokenizer: Any, window: int) -> Callable[[str], Cut | None]:
    """What is cut off a prompt by a class; some write it into a template, whose tokens count."""
    if kind == "Flux2KleinPipeline":
        return lambda prompt: cut_in_dialogue(tokenizer, prompt, window)
    if kind == "QwenImagePipeline":
        empty = diffusers.QwenImagePipeline(**dict.fromkeys(inspect.signature(diffusers.QwenImagePipeline).parameters))
        template, dropped = empty.prompt_template_encode, empty.prompt_template_encode_start_idx
        return lambda prompt: cut_in_template(tokenizer, template.format(prompt), prompt, window, dropped)
    closing = tokenizer("a").input_ids[-1:] == [tokenizer.eos_token_id]
    return lambda prompt: cut_of(tokenizer, prompt, window, closing=closing)
