"""What a text-to-image pipeline of any class does not read of prompts, by its tokenizer alone."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import diffusers
from transformers import AutoTokenizer

from paco_core.io.hub import from_hub
from paco_core.policies.cuts import Cut, cut_of
from paco_core.policies.windows import main_tokenizer

if TYPE_CHECKING:
    from paco_core.data.records.records import PromptRecord


def cut_prompts(model: Path | str, records: Sequence[PromptRecord], window: int) -> dict[str, Cut]:
    """What is cut off prompts, by their ids, whether they are painted now or were before.

    Args:
        model: folder or hub id.
        window: ``max_sequence_length``, which holds where the class takes it; else its tokenizer says how much is read.
    """
    with from_hub(model):
        parts: dict[str, Any] = diffusers.DiffusionPipeline.load_config(str(model))
        if (name := main_tokenizer(parts)) is None:
            return {}
        tokenizer = AutoTokenizer.from_pretrained(str(model), subfolder=name)
    kind = getattr(diffusers, str(parts.get("_class_name")), None)
    takes = kind is not None and "max_sequence_length" in inspect.signature(kind.__call__).parameters
    reads = window if takes else int(tokenizer.model_max_length)
    closing = tokenizer("a").input_ids[-1:] == [tokenizer.eos_token_id]
    found = {record.idx: cut_of(tokenizer, record.prompt, reads, closing=closing) for record in records}
    return {idx: cut for idx, cut in found.items() if cut is not None}
