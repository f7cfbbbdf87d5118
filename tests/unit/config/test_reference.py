"""Parameters explain themselves: each has a meaning, and page, schema and terminal say the same as the code."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from paco_core.cli import commands as cli
from paco_core.cli import reference as verbs
from paco_core.config import profiles, reference
from paco_core.config.params_reward import RewardParams


def test_every_key_has_a_meaning() -> None:
    found = reference.parameters()
    assert [parameter.key for parameter in found if not parameter.meaning] == []
    assert len(found) > 250


def test_page_and_schema_are_those_that_the_code_writes(repository: Path) -> None:
    assert (repository / reference.PAGE).read_text() == reference.page(repository), "run `paco params --write`"
    assert (repository / reference.SCHEMA).read_text() == reference.schema_text(), "run `paco params --write`"


def test_the_schema_takes_every_profile_and_refuses_what_the_code_refuses(repository: Path) -> None:
    check = jsonschema.Draft202012Validator(json.loads((repository / reference.SCHEMA).read_text()))
    for file in [repository / "params.yaml", *sorted((repository / "profiles").glob("*.yaml"))]:
        assert [error.message for error in check.iter_errors(yaml.safe_load(file.read_text()))] == [], file.name
    for wrong in ({"reward": {"learnin_rate": 1}}, {"grids": {"steps": 0}}, {"reward": {"alpha": 1.5}}, {"world": "x"}):
        assert not check.is_valid(wrong), wrong
    meaning = check.schema["$defs"]["RewardParams"]["properties"]["alpha"]["description"]
    assert meaning == RewardParams.model_fields["alpha"].description != ""


@pytest.mark.slow
def test_values_are_those_of_the_profiles(repository: Path) -> None:
    paper = profiles.resolve(repository, "paper")
    found = {parameter.key: parameter for parameter in reference.parameters()}
    for key, expected in {
        "grids.seeds": "[0, 1, 2, 3]",
        "policies.recipes.*.train_size": "flux_t2is: 512; kontext_edit: 384; qwen_edit: 384",
        "policies.recipes.*.rewards.terms.*.model": "flux_t2is.clip_t: hf-hub:laion/CLIP-ViT-H-14-laion2B-s32B-b79K",
        "policies.recipes.*.max_sequence_length": "512",
        "execution.serving.tensor_parallel": "(1)",
        "t2is_bench.criteria": "(null)",
    }.items():
        assert reference.value(paper, found[key]) == expected


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
