"""Questions of T2IS-Bench about a set: its criteria, and the texts of its panels.

Consistency: the criteria of a record, or those of ``prompt_consistency.json``. Alignment: what each panel should show,
from ``prompt_alignment.json``. Both files are read as they are published: ``{case: {dimension: [{name: text}]}}`` and
``{case: {panel: {aspect: [text]}}}``, panels in the order of the file. The case of a record is its ``original_idx``
where it has one (PaCo-GRPO's released files), else its ``idx``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from paco_core.data.records.records import PromptRecord, Text
from paco_core.io.files import DataError, read_json
from paco_core.io.rejected import Rejected
from paco_core.io.validation import StrictModel, first_validation_error
from paco_core.storybook import bench_texts
from paco_core.storybook.prompts import parse_storybook_prompt

DIMENSIONS = ("Identity", "Style", "Logic")
ASPECTS = ("Entity", "Attribute", "Relation")

T = TypeVar("T")
TextsByName = Mapping[str, Sequence[str]]  # dimension or aspect -> its texts


class _Criteria(StrictModel):
    """One case of ``prompt_consistency.json``; a dimension that is missing is not measured."""

    Identity: list[dict[str, Text]] = Field(default_factory=list)
    Style: list[dict[str, Text]] = Field(default_factory=list)
    Logic: list[dict[str, Text]] = Field(default_factory=list)


class _Aspects(StrictModel):
    """One panel of ``prompt_alignment.json``."""

    Entity: list[Text] = Field(default_factory=list)
    Attribute: list[Text] = Field(default_factory=list)
    Relation: list[Text] = Field(default_factory=list)


@dataclass(frozen=True)
class Texts:
    """Texts of a set; ``panels`` has one entry per panel, and is None if no file says what each shows."""

    criteria: TextsByName
    panels: Sequence[TextsByName] | None = None


@dataclass
class Questions:
    """Looks up the texts of a record.

    Args:
        criteria: of cases, in place of those of the records.
        panels: of cases, what each panel shows.
        storybook: the world in which both are known from the prompt.
    """

    criteria: Mapping[str, TextsByName] | None = None
    panels: Mapping[str, Sequence[TextsByName]] = field(default_factory=dict)
    storybook: bool = False

    def of(self, record: PromptRecord) -> Texts:
        """The texts of a record.

        Raises:
            DataError: when a file has no such case, or another number of panels.
        """
        if self.storybook:
            panels = parse_storybook_prompt(record.prompt)
            return Texts(bench_texts.trait_criteria(), [bench_texts.trait_questions(panel) for panel in panels])
        return Texts(self._criteria_of(record), self._panels_of(record))

    def usable_records(self, records: Iterable[PromptRecord], rejected: Rejected) -> list[PromptRecord]:
        """The records whose texts are known; records without texts go to ``rejected``.

        Raises:
            DataError: when none is known.
        """
        usable = []
        for record in records:
            try:
                self.of(record)
            except DataError as error:
                rejected.add(f"record {record.idx}", str(error))
            else:
                usable.append(record)
        if not usable:
            raise DataError(f"t2is_bench: no generated set can be evaluated{rejected.example}")
        return usable

    def _criteria_of(self, record: PromptRecord) -> TextsByName:
        if self.criteria is None:
            rows = record.criteria
            return {name: [text for text in row.values() if text] for name, row in rows.items() if name in DIMENSIONS}
        case = case_of(record)
        if case not in self.criteria:
            raise DataError(
                f"text: t2is_bench.criteria has no case {case!r}, of record {record.idx}; {_examples(self.criteria)}"
            )
        return self.criteria[case]

    def _panels_of(self, record: PromptRecord) -> Sequence[TextsByName] | None:
        if not self.panels:
            return None
        case, (rows, columns) = case_of(record), record.grid
        if case not in self.panels:
            raise DataError(
                f"text: t2is_bench.texts has no case {case!r}, of record {record.idx}; {_examples(self.panels)}"
            )
        if len(self.panels[case]) != rows * columns:
            raise DataError(
                f"text: case {case!r} of t2is_bench.texts describes {len(self.panels[case])} panels, "
                f"the layout {record.layout} of record {record.idx} has {rows * columns}"
            )
        return self.panels[case]


def validate_texts(texts: T | None) -> T:
    """The texts; raises DataError where nobody says what panels should show, which is what alignment asks about."""
    if texts is None:
        raise DataError("t2is_bench.alignment needs t2is_bench.texts: name prompt_alignment.json of T2IS-Bench")
    return texts


def case_of(record: PromptRecord) -> str:
    """The case of T2IS-Bench that a record is."""
    return str((record.model_extra or {}).get("original_idx") or record.idx)


def read_criteria(path: Path, rejected: Rejected) -> dict[str, TextsByName]:
    """``prompt_consistency.json``; cases that are not of its layout go to ``rejected``.

    Raises:
        DataError: naming the file, when none of its cases can be used.
    """
    cases = _cases(path, TypeAdapter(_Criteria), rejected)
    return {
        case: {name: [text for row in rows for text in row.values()] for name, rows in criteria if rows}
        for case, criteria in cases.items()
    }


def read_panels(path: Path, rejected: Rejected) -> dict[str, list[TextsByName]]:
    """``prompt_alignment.json``; cases that are not of its layout go to ``rejected``.

    Raises:
        DataError: naming the file, when none of its cases can be used.
    """
    cases = _cases(path, TypeAdapter(dict[str, _Aspects]), rejected)
    return {
        case: [{name: texts for name, texts in panel if texts} for panel in panels.values()]
        for case, panels in cases.items()
    }


def _cases(path: Path, form: TypeAdapter[Any], rejected: Rejected) -> dict[str, Any]:
    tree, cases = read_json(path), {}
    if not isinstance(tree, dict):
        raise DataError(f"{path}: expected the layout of T2IS-Bench, an object of cases")
    for case, content in tree.items():
        try:
            cases[case] = form.validate_python(content)
        except ValidationError as error:
            rejected.add(
                f"{path}: case {case}", f"record: {first_validation_error(error)}; expected the layout of T2IS-Bench"
            )
    if not cases:
        raise DataError(f"{path}: none of its {len(tree)} cases can be used{rejected.example}")
    return cases


def _examples(cases: Mapping[str, object]) -> str:
    return f"it has {len(cases)} cases, such as {', '.join(list(cases)[:3])}"
