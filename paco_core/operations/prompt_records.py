"""Records of requests: a set from a prompt and its panels, or an edit from an instruction and images.

This module loads no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.benchmarks.t2is_bench.sets import RECORDS
from paco_core.data.records import prompt_text
from paco_core.data.records.edit_records import EditRecord
from paco_core.data.records.records import PromptRecord, read_prompts, validated
from paco_core.io import paths
from paco_core.io.files import DataError, digest
from paco_core.policies.families import validate_reference_count

if TYPE_CHECKING:
    from PIL.Image import Image

DEFAULT_LAYOUTS = {4: "2x2", 6: "2x3", 8: "2x4"}  # of composed prompts of so many panels; others stand in one row


def set_record(prompt: str, panels: Sequence[str], side: int, layout: str | None = None) -> PromptRecord:
    """A set from a whole T2IS prompt, whose text marks its panels, or from a theme and the text of each panel.

    Args:
        side: of a picture of 2x2 panels, in pixels; where they stand in another shape, they are square and as large.
        layout: rows and columns, such as ``2x3``; None is what the prompt states (its marks, or its head), and of a
            theme with panels, which states none, :func:`default_layout`.

    Raises:
        DataError: when the prompt marks no panels and none are given, or both; when its marks, its head, the panels and
            ``layout`` contradict each other; or the picture would be too large.
    """
    marks = len(prompt_text.PANEL_MARK.findall(prompt))
    if bool(marks) == bool(panels):
        raise DataError(
            "give a prompt that marks its panels ([TOP]-[LEFT]: ...), or a theme and the text of each panel (--panels)"
        )
    theme = prompt.strip()
    layout = prompt_text.layout_of(theme, layout) or default_layout(len(panels))
    if panels:
        theme = prompt_text.HEAD.sub("", theme).strip()
        parts = prompt_text.prompt_from_theme(theme, panels, layout)
    else:
        parts = prompt_text.parse_prompt(prompt, layout)
    text = str(parts)
    theme = parts.subject.removeprefix("of ") or prompt  # the judge is asked about what the set is of
    rows, columns = prompt_text.parse_layout(layout)
    return validated(PromptRecord, {
        "idx": digest([text, layout]), "prompt": text, "height": side * rows, "width": side * columns, "layout": layout,
        "theme": theme, "category": "", "task_name": "", "criteria": {},
    }, "this set")  # fmt: skip


def benchmark_record(root: Path, record: PromptRecord) -> PromptRecord:
    """The record of the benchmark ``t2is`` with this prompt and layout, else ``record`` itself.

    The noise depends on the id of a record, so a prompt of the benchmark gives the images that the benchmark measured.

    Raises:
        DataError: when the benchmark's file of prompts is damaged.
    """
    file = root / paths.T2IS / RECORDS
    benchmark = read_prompts(file) if file.is_file() else []
    return next((row for row in benchmark if (row.prompt, row.layout) == (record.prompt, record.layout)), record)


def default_layout(panels: int) -> str:
    """How so many panels of a composed prompt stand where nobody says it; the prompt states it from then on."""
    return DEFAULT_LAYOUTS.get(panels, f"1x{panels}")


def edit_record(instruction: str, pictures: Sequence[Image], *families: str) -> EditRecord:
    """An instruction about pictures, the first of which is edited.

    Args:
        families: of the policies that will edit.

    Raises:
        DataError: when that picture is too wide or too high, there is no instruction, or a family takes fewer pictures.
    """
    for family in families:
        validate_reference_count(family, "the instruction", len(pictures))
    digest_parts = [part for picture in pictures for part in (picture.tobytes().hex()[:4096], picture.size)]
    names = ["picture", *(f"picture{number}" for number in range(2, len(pictures) + 1))]
    return validated(EditRecord, {
        "idx": digest([instruction, *digest_parts]), "prompt": instruction, "height": pictures[0].height,
        "width": pictures[0].width, "theme": instruction, "task_name": "", "reference": names, "part": "unseen",
    }, "this picture and instruction")  # fmt: skip
