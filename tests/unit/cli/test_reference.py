"""The help and the page of all verbs: grouped, complete, each with an example that the parser accepts."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from pathlib import Path

import pytest

from paco_core.cli import reference
from paco_core.cli.arguments import parser
from paco_core.cli.parser import EXAMPLE, GROUPS, HIDDEN
from paco_core.io.files import DataError


def test_the_page_is_up_to_date(repository: Path) -> None:
    assert (repository / reference.PAGE).read_text() == reference.page(repository, parser()), (
        "run `paco params --write`"
    )


def test_every_verb_and_argument_says_what_it_does() -> None:
    heading, silent = "", list[str]()
    for part in reference.markdown(parser()).split("\n\n"):
        if part.startswith("###"):
            silent += [heading] if heading else []
            heading = part
            continue
        heading = ""
        silent += [row for row in part.splitlines() if row.startswith("| `") and row.rstrip().endswith("| |")]
    assert silent == []


def verbs() -> dict[str, argparse.ArgumentParser]:
    (action,) = [action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(action.choices)


def test_every_verb_is_in_one_group_and_the_help_lists_it() -> None:
    assert Counter(name for names in GROUPS.values() for name in names) == Counter(verbs().keys())
    lines = [line.split() for line in parser().format_help().splitlines()]
    listed = [words[0] for words in lines if words and words[0] in verbs()]
    assert listed == [name for names in GROUPS.values() for name in names if name not in HIDDEN]
    assert [words[0][:-1] for words in lines if words and words[0][:-1] in GROUPS] == list(GROUPS)


@pytest.mark.parametrize("name", verbs())
def test_the_help_of_a_verb_ends_with_an_example_that_parses(name: str) -> None:
    last = verbs()[name].format_help().splitlines()[-1]
    assert last.startswith(EXAMPLE), "in one line, to be copied"
    program, verb, *arguments = shlex.split(last.removeprefix(EXAMPLE))
    assert (program, verb) == ("paco", name)
    assert parser().parse_args([verb, *arguments]).verb == name


def test_a_page_that_lost_its_mark_is_named(tmp_path: Path) -> None:
    (tmp_path / reference.PAGE).parent.mkdir(parents=True)
    (tmp_path / reference.PAGE).write_text("words")
    with pytest.raises(DataError, match=r"cli\.md: the mark .* is missing"):
        reference.write(tmp_path, parser())
