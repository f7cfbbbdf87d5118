"""Prompts of a comparison: a text file, T2IS records, or twelve templates for the trigger word."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paco_core.data.records import prompt_text
from paco_core.data.records.records import PromptRecord, validated
from paco_core.io.files import DataError, digest, read_text_file
from paco_core.operations.prompt_records import set_record
from paco_core.tasks.sets import read_sets

TRIGGER_MARK = "[trigger]"  # replaced by the trigger, as in the sample prompts of ai-toolkit
#: Three prompts each that change the pose, the place, the light and the style.
TEMPLATES = (
    "a photo of [trigger] standing, full body, facing the viewer",
    "a photo of [trigger] lying on the floor, seen from above",
    "a photo of [trigger] running to the left, side view",
    "a photo of [trigger] on a beach",
    "a photo of [trigger] in a snowy forest",
    "a photo of [trigger] in a busy street of a large city",
    "a photo of [trigger] at night, lit by a street lamp",
    "a photo of [trigger] against the light of a sunset",
    "a photo of [trigger] in a bright white studio",
    "a watercolor painting of [trigger]",
    "a pencil drawing of [trigger]",
    "[trigger] as a 3D render of a toy",
)


def graded_prompts(file: Path | None, trigger: str | None, side: int) -> list[PromptRecord]:
    """The prompts of a file, or of :data:`TEMPLATES`, each once.

    Args:
        file: T2IS records (``.jsonl``), or a text file with one prompt per line.
        trigger: replaces ``[trigger]`` in a text file.
        side: side of an image with one panel or 2x2 panels, in pixels.

    Raises:
        DataError: when there is no prompt, a line is invalid, ``[trigger]`` has no trigger, or no prompt contains the
            trigger.
    """
    if file is None and not trigger:
        raise DataError("the built-in prompts need a subject: add --trigger WORDS, or your own --prompts FILE")
    if file is not None and file.suffix == ".jsonl":
        records = read_sets(file)
    else:
        lines = TEMPLATES if file is None else read_text_file(file).splitlines()
        prompts = [_filled(line.strip(), trigger, file) for line in lines if line.strip()]
        records = list({record.idx: record for record in (_record(prompt, side) for prompt in prompts)}.values())
    if not records:
        raise DataError(f"{file}: no prompt; write one prompt per line")
    if trigger and len(without_trigger(records, trigger)) == len(records):
        raise DataError(f"{file}: no prompt contains the trigger {trigger!r}; correct --trigger or the prompts")
    return records


def without_trigger(records: Sequence[PromptRecord], trigger: str) -> list[PromptRecord]:
    """The records whose prompt does not contain the trigger; upper and lower case are equal."""
    return [record for record in records if trigger.lower() not in record.prompt.lower()]


def _filled(line: str, trigger: str | None, file: Path | None) -> str:
    if TRIGGER_MARK in line and not trigger:
        raise DataError(f"{file}: {line[:60]!r} contains {TRIGGER_MARK}; add --trigger WORDS")
    return line.replace(TRIGGER_MARK, trigger or "")


def _record(prompt: str, side: int) -> PromptRecord:
    """The record of a prompt with marked panels, or of a prompt for a single image."""
    if prompt_text.PANEL_MARK.search(prompt):
        return set_record(prompt, (), side)
    return validated(PromptRecord, {
        "idx": digest([prompt, "1x1"]), "prompt": prompt, "height": side, "width": side, "layout": "1x1",
        "theme": prompt, "category": "", "task_name": "", "criteria": {},
    }, f"the prompt {prompt[:60]!r}")  # fmt: skip


def panel_prompts(record: PromptRecord) -> list[str]:
    """The text of each panel; the prompt, for a single image."""
    if not prompt_text.PANEL_MARK.search(record.prompt):
        return [record.prompt]
    return [panel.text for panel in prompt_text.parse_prompt(record.prompt, record.layout).panels]
