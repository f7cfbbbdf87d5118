"""A round is the graph's stages, asked with another policy and in another place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from dvc_project.project import DvcProject, stages_of
from paco_core import stages
from paco_core.config import profiles
from paco_core.config.params import PARAMS_FILE, Params, ParamsError, load, parse, tree_of
from paco_core.io import paths
from paco_core.planning.stage_problems import stage_problems
from paco_core.runtime.rounds import params_of, placed


@pytest.fixture(scope="module")
def project(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graph with the profile's two rounds; no data."""
    root = tmp_path_factory.mktemp("rounds")
    for name in ("dvc.yaml", PARAMS_FILE):
        shutil.copy(repository / name, root / name)
    shutil.copytree(repository / "profiles", root / "profiles")
    profiles.use(root, "rounds")
    return root


@pytest.fixture(scope="module")
def params(project: Path) -> Params:
    return load(project / PARAMS_FILE)


def test_a_stage_of_a_round_is_the_same_file(project: Path) -> None:
    groups = {stage.group for stage in stages_of(project).values() if paths.in_round(stage.group)}
    assert {"round_grids", "round_annotations", "round_reward_lora", "round_policies", "round_t2is"} <= groups
    for group in groups:
        assert stages.stage_file(group) is stages.stage_file(group.removeprefix("round_"))
        assert stages.declaration(group) is stages.stage_file(group).STAGE


def test_each_round_reads_the_one_before(project: Path) -> None:
    upstream = DvcProject(project).upstream
    assert {"policies@flux_t2is", "grids@0", "grids@1"} <= set(upstream["round_grids@1"])
    assert {"round_policies@1", "round_grids@1"} <= set(upstream["round_grids@2"])
    assert not {"grids@0", "policies@flux_t2is"} & set(upstream["round_grids@2"])
    assert {"round_rankings@1", "round_reward_merged@1"} <= set(upstream["round_rankings@2"])
    assert {"round_policies@1", "round_reward_merged@2"} <= set(upstream["round_policies@2"])


@pytest.mark.slow
def test_what_a_round_declares_lies_in_its_place_and_the_rest_where_it_was(project: Path) -> None:
    for label, path, expected in (
        ("round_pairs@2", paths.RANKINGS, "data/rounds/2/rankings"),
        ("round_pairs@2", paths.PAIRS, "data/rounds/2/pairs"),
        ("round_pairs@2", paths.DIVERSE_PROMPTS, "data/diverse_prompts"),
        ("round_policies@1", paths.REWARD_MERGED, "data/rounds/1/reward_merged"),
        ("round_policies@1", paths.POLICIES / "flux_t2is", "data/rounds/1/policies/flux_t2is"),
        ("round_annotations@2", paths.PEOPLE, "data/people"),
        ("pairs", paths.RANKINGS, "data/rankings"),
        ("grids@0", paths.GRIDS / "shard-0", "data/grids/shard-0"),
    ):
        once = placed(project, label, path)
        assert once == Path(expected), label
        assert placed(project, label, once) == once, "a path that has its place keeps it"


def test_an_input_names_the_stage_of_the_round_that_makes_it(tmp_path: Path) -> None:
    assert paths.producer(tmp_path / "data/rounds/2/grids/round-2/index.parquet") == "round_grids@2"
    assert paths.producer(Path("data/rounds/1/policies/flux_t2is")) == "round_policies@1"
    assert paths.producer(Path("data/grids/shard-0")) == "grids"
    assert paths.producer(Path("data/rounds/README.md")) is None


def test_a_round_goes_on_from_the_policy_before(params: Params) -> None:
    first, second = (params_of(params, "round_policies", number) for number in "12")
    assert first.policies.recipes.keys() == {"flux_t2is"}
    assert first.policies.recipes["flux_t2is"].start == "data/policies/flux_t2is/adapter"
    assert second.policies.recipes["flux_t2is"].start == "data/rounds/1/policies/flux_t2is/adapter"
    assert params_of(params, "policies", "flux_t2is") is params


@pytest.fixture
def raw(project: Path) -> dict[str, Any]:
    return tree_of((project / PARAMS_FILE).read_text(), project / PARAMS_FILE)


def test_a_round_draws_prompts_and_noise_that_no_round_before_drew(raw: dict[str, Any]) -> None:
    """Rounds that met the same prompts from the same noise once more learnt those: gold consistency fell by .127."""
    raw["rounds"]["items"]["1"] |= {"annotations": "people", "epochs": 3}
    params = parse(raw)
    usual = params.policies.recipes["flux_t2is"].epochs
    first, second = (params_of(params, "round_policies", number).policies.recipes["flux_t2is"] for number in "12")
    assert (first.epochs, first.epochs_before, second.epochs_before) == (3, usual, usual + 3)
    sources = [params_of(params, "round_annotations", number).annotations.source for number in "12"]
    assert sources == ["people", "recogniser"]


@pytest.mark.parametrize(
    ("rounds", "part"),
    [
        ({"items": {"1": {"after": "data/rounds/2"}}}, "earlier round"),
        ({"items": {"0": {"after": "data"}}}, "'0'"),
        ({"items": {"1": {"after": "data/zoo"}}}, "pattern"),
        ({"recipe": "flux", "items": {"1": {"after": "data"}}}, "rounds.recipe 'flux'"),
        ({"ask": {"count": 10, "choose": "disagree"}}, "flux_t2is .*held_out"),
    ],
)
def test_rounds_that_cannot_be_are_refused(raw: dict[str, Any], rounds: dict[str, object], part: str) -> None:
    with pytest.raises(ParamsError, match=part):
        parse({**raw, "rounds": {**raw["rounds"], **rounds}})


def test_an_editor_or_another_generator_is_refused_before_anything_runs(project: Path, raw: dict[str, Any]) -> None:
    assert not [line for line in stage_problems(parse(raw), project, {}) if "round" in line]
    params = parse(raw)
    recipe = params.policies.recipes["flux_t2is"].model_copy(update={"family": "flux2_klein", "panels": "one_by_one"})
    recipes = {**params.policies.recipes, "flux_t2is": recipe}
    for section, changes, part in (
        ("rounds", {"recipe": "kontext_edit"}, "kontext_edit does not generate sets"),
        ("grids", {"model": "data/zoo/other"}, "grids.model is data/zoo/other"),
        ("policies", {"recipes": recipes}, "flux_t2is generates panels one by one"),
    ):
        other = params.model_copy(update={section: getattr(params, section).model_copy(update=changes)})
        assert any(part in line for line in stage_problems(other, project, {})), section
