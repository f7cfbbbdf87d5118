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


def test_the_page_is_up_to_date(repository: Path) -> None:
    assert (repository / reference.PAGE).read_text() == reference.page(repository, parser()), (
        "run `paco params --write`"
    )


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
