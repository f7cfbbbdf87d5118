"""Parameters explain themselves: each has a meaning, and page, schema and terminal say the same as the code."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

import jsonschema
import pytest
import yaml

from paco_core.cli import commands as cli
from paco_core.cli import reference as verbs
from paco_core.cli.arguments import parser
from paco_core.cli.parser import EXAMPLE
from paco_core.config import reference
from paco_core.config.params_reward import RewardParams


def test_every_key_has_a_meaning() -> None:
    rows = reference.parameters()
    assert [parameter.key for parameter in rows if not parameter.meaning] == []
    assert len(rows) > 250


def test_page_and_schema_are_those_that_the_code_writes(repository: Path) -> None:
    assert (repository / reference.PAGE).read_text() == reference.page(repository), "run `paco params --write`"
    assert (repository / reference.SCHEMA).read_text() == reference.schema_text(), "run `paco params --write`"
    assert (repository / verbs.PAGE).read_text() == verbs.page(repository, parser()), "run `paco params --write`"


def test_the_schema_takes_every_profile_and_refuses_what_the_code_refuses(repository: Path) -> None:
    check = jsonschema.Draft202012Validator(json.loads((repository / reference.SCHEMA).read_text()))
    for file in [repository / "params.yaml", *sorted((repository / "profiles").glob("*.yaml"))]:
        assert [error.message for error in check.iter_errors(yaml.safe_load(file.read_text()))] == [], file.name
    wrong_loss = {"policies": {"defaults": {"loss": "ppoo"}}}
    for wrong in ({"reward": {"learnin_rate": 1}}, {"grids": {"steps": 0}}, {"reward": {"alpha": 1.5}}, wrong_loss):
        assert not check.is_valid(wrong), wrong
    assert not check.is_valid({"world": "x"})
    for aggregator, accepted in (("rank", True), ("my_rewards:combine", True), ("ranks", False)):
        rewards = {"terms": {"clip_t": {"weight": 1.0}}, "aggregator": aggregator}
        tree = {"policies": {"recipes": {"mine": {"rewards": rewards}}}}
        assert check.is_valid(tree) == accepted, aggregator
    meaning = check.schema["$defs"]["RewardParams"]["properties"]["alpha"]["description"]
    assert meaning == RewardParams.model_fields["alpha"].description != ""


def test_each_reference_page_has_one_title_and_documents_a_key_once(repository: Path) -> None:
    for page in (reference.PAGE, verbs.PAGE):
        lines = (repository / page).read_text().splitlines()
        assert len([line for line in lines if line.startswith("# ") and "$schema" not in line]) == 1, page
    tables = (repository / reference.PAGE).read_text().split("\n## ")[1:]
    for table in tables:
        keys = [line.split("|")[1] for line in table.splitlines() if line.startswith("|`")]
        assert len(keys) == len(set(keys)) > 0, table[:40]
    assert "`ppo`, `grpo_guard`, `nft`" in (repository / reference.PAGE).read_text()


def test_writing_again_changes_nothing_but_needs_the_mark(repository: Path, project: Path) -> None:
    page = project / reference.PAGE
    page.parent.mkdir(parents=True)
    page.write_text(f"# Parameters\n\n{reference.MARK}\n\nold tables\n")
    (project / verbs.PAGE).write_text(f"{verbs.MARK}\n\nold verbs\n")
    cli.main(["params", "--write"])
    assert (
        "old verbs" not in (project / verbs.PAGE).read_text() and "## paco check" in (project / verbs.PAGE).read_text()
    )
    assert "old tables" not in page.read_text() and "## reward" in page.read_text()
    assert (project / reference.SCHEMA).read_text() == (repository / reference.SCHEMA).read_text()
    page.write_text("# Parameters\n")
    with pytest.raises(SystemExit):
        cli.main(["params", "--write"])
    assert page.read_text() == "# Parameters\n"


def test_the_help_of_each_verb_ends_with_an_example_that_parses() -> None:
    (action,) = [action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    for name, verb in action.choices.items():
        last = verb.format_help().splitlines()[-1]
        assert last.startswith(EXAMPLE), "in one line, to be copied"
        program, *words = shlex.split(last.removeprefix(EXAMPLE))
        assert (program, words[0]) == ("paco", name) and parser().parse_args(words).verb == name
