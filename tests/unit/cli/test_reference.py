"""The page of all verbs is what the parser says, and every argument of it says what it means."""

from __future__ import annotations

from pathlib import Path

import pytest

from paco_core.cli import reference
from paco_core.cli.arguments import parser
from paco_core.io.files import DataError


def test_the_page_is_up_to_date(repository: Path) -> None:
    assert (repository / reference.PAGE).read_text() == reference.page(repository, parser()), (
        "run `paco params --write`"
    )


def test_every_verb_and_argument_says_what_it_does() -> None:
    heading, silent = "", list[str]()
    for part in reference.markdown(parser()).split("\n\n"):
        if part.startswith("#"):
            silent += [heading] if heading else []
            heading = part
            continue
        heading = "" if heading else heading
        silent += [row for row in part.splitlines() if row.startswith("| `") and row.rstrip().endswith("| |")]
    assert silent == []


def test_a_page_that_lost_its_mark_is_named(tmp_path: Path) -> None:
    (tmp_path / reference.PAGE).parent.mkdir(parents=True)
    (tmp_path / reference.PAGE).write_text("words")
    with pytest.raises(DataError, match=r"cli\.md: the mark .* is missing"):
        reference.write(tmp_path, parser())
