"""Any resolved parameter that differs changes the key of each stage that declares it, and of no other."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dvc_project.project import ResolvedStage, stages_of
from paco_core.config import params_policies
from paco_core.config.execution import execution_fields
from paco_core.config.params import PARAMS_FILE, Params, PolicyTraining, RewardParams, load, read_text, tree_of
from paco_core.config.params_base import Section
from paco_core.config.resolved import MISSING, lookup, properties, resolved_section, resolved_values, unspelled
from paco_core.grpo.recipe import policy_training_key
from paco_core.io.files import digest
from paco_core.runtime import rounds
from paco_core.runtime.code.stage_code import StageCodes
from paco_core.runtime.rounds import params_of
from tests.support.small_profiles import lay_out_rounds

Leaf = tuple[str | int, ...]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_out_rounds(tmp_path_factory.mktemp("resolved"))


@pytest.fixture(scope="module")
def raw(project: Path) -> dict[str, Any]:
    return tree_of(read_text(project / PARAMS_FILE), project / PARAMS_FILE)


@pytest.fixture(scope="module")
def graph(project: Path) -> dict[str, ResolvedStage]:
    return {label: stage for label, stage in stages_of(project).items() if stage.group != "code"}


def leaves(value: Any, way: Leaf = ()) -> Iterator[tuple[Leaf, Any]]:
    """Ways to all values, and the values, that are neither section nor mapping, but for those of ``execution``."""
    if isinstance(value, Section):
        for name in type(value).model_fields.keys() - execution_fields(type(value)):
            yield from leaves(getattr(value, name), (*way, name))
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from leaves(part, (*way, name))
    else:
        yield way, value


def replaced(value: Any, way: Leaf, new: Any) -> Any:
    """A copy with one leaf replaced, unvalidated, as a change of the code that merges would leave it."""
    if not way:
        return new
    name, parts = way[0], way[1:]
    if isinstance(value, Section):
        fields = {key: getattr(value, key) for key in type(value).model_fields}
        fields[str(name)] = replaced(fields[str(name)], parts, new)
        return type(value).model_construct(_fields_set=set(value.model_fields_set), **fields)
    return {key: replaced(part, parts, new) if key == name else part for key, part in value.items()}


def keys(params: Params, stage: ResolvedStage, raw: dict[str, Any]) -> dict[str, Any]:
    declared = stage.params.get(PARAMS_FILE, ())
    return unspelled(resolved_values(params_of(params, stage.group, stage.item), declared), raw)


def declares(stage: ResolvedStage, way: Leaf, is_own_key: bool) -> bool:
    """Whether a stage declares a leaf. Of a recipe it sees what is its ``own``, and shared numbers that it declares."""

    def below(key: str) -> bool:
        declared = stage.params.get(PARAMS_FILE, ())
        return any(key == name or key.startswith(f"{name}.") for name in declared)

    is_shared = way[:2] == ("policies", "recipes") and way[3] in PolicyTraining.model_fields
    return below(".".join(map(str, way))) and (is_own_key or not is_shared or below(f"policies.defaults.{way[3]}"))


#: A round has its own values here, whatever the recipe says.
OF_ROUND = {"start", "epochs_before"}


def test_each_leaf_is_in_the_key_of_the_stages_that_declare_it(
    project: Path, graph: dict[str, ResolvedStage], raw: dict[str, Any]
) -> None:
    params = load(project / PARAMS_FILE)
    before = {label: keys(params, stage, raw) for label, stage in graph.items()}
    ways = [(way, value) for way, value in leaves(params) if way[0] not in ("rounds", "grid_shards")]
    assert len(ways) > 300
    for way, value in ways:
        if way[:3] == ("policies", "recipes", "flux_t2is") and way[3] in OF_ROUND:
            continue
        changed = replaced(params, way, value + 1 if type(value) in (int, float) else "another value")
        is_own_key = way[3] in raw["policies"]["recipes"][way[2]] if way[:2] == ("policies", "recipes") else True
        for label, stage in graph.items():
            if declares(stage, way, is_own_key):
                assert keys(changed, stage, raw) != before[label], (label, way)


def test_properties_of_sections_are_in_the_key(
    project: Path, graph: dict[str, ResolvedStage], raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = load(project / PARAMS_FILE)
    names = ("prompts", "pairs", "reward_merged", "policies@flux_t2is", "round_policies@1", "report")
    stages = [graph[name] for name in names]
    before = [keys(params, stage, raw) for stage in stages]
    unused = {"PoliciesParams", "HttpScorer", "Rubric"}  # of no declared section in this profile
    for section in Section.__subclasses__():
        for name in properties(section):
            with monkeypatch.context() as patch:
                patch.setattr(section, name, property(lambda self: ["another value"]))
                is_used = before != [keys(params, stage, raw) for stage in stages]
            assert is_used == (section.__name__ not in unused), (section, name)


def test_code_that_merges_recipes_and_rounds_changes_the_stage(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def texts() -> dict[str, str]:
        codes = StageCodes.present(project)
        names = [("grids", "0"), ("policies", "flux_t2is"), ("round_policies", "1"), ("round_policies", "2")]
        return {f"{name}@{item}": codes.of(name, item).text for name, item in names}

    before, merge = texts(), params_policies._laid_over
    of_rounds = {"round_policies@1", "round_policies@2"}
    patches: list[tuple[Any, str, Any, set[str]]] = [
        (
            params_policies,
            "_laid_over",
            lambda shared, overrides: {**merge(shared, overrides), "clip_range": 0.01},
            set(before),
        ),
        (PolicyTraining, "samples_per_epoch", property(lambda self: 2 * self.group_size), set(before)),
        (rounds, "epochs_up_to", lambda params, place: 0, of_rounds),
    ]
    for owner, name, other, labels in patches:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, other)
            changed = {label for label, text in texts().items() if text != before[label]}
        assert changed == labels - {"grids@0"}, name


def test_a_checkpoint_belongs_to_resolved_numbers(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def keys() -> list[str]:
        params = load(project / PARAMS_FILE)
        recipe = params.policies.recipe("flux_t2is")
        return [policy_training_key(recipe, [], [], [], {}), digest(resolved_section(params.reward))]

    before = keys()
    monkeypatch.setattr(PolicyTraining, "samples_per_epoch", property(lambda self: 2 * self.group_size))
    assert keys()[0] != before[0]
    monkeypatch.setattr(RewardParams, "derived", property(lambda self: 1), raising=False)
    assert keys()[1] != before[1]


def test_another_round_changes_no_earlier_one(project: Path, raw: dict[str, Any], tmp_path: Path) -> None:
    import yaml

    before = StageCodes.present(project).of("round_policies", "1")
    shutil.copytree(project, tmp_path / "p")
    items = {**raw["rounds"]["items"], "3": {"after": "data/rounds/2", "epochs": 1}}
    raw = {**raw, "rounds": {**raw["rounds"], "items": items}}
    (tmp_path / "p" / PARAMS_FILE).write_text(yaml.safe_dump(raw))
    assert StageCodes.present(tmp_path / "p").of("round_policies", "1") == before


def test_sections_hold_values_and_what_follows_from_them(project: Path) -> None:
    """A method would compute from parameters unseen by any key: write a property, or a function of a package."""
    lookups = {"PoliciesParams": {"recipe"}, "PolicyRecipe": {"inherited"}}
    kinds = [Section, *Section.__subclasses__(), params_policies.PolicyRecipe]
    for kind in kinds:
        methods = {n for n, v in vars(kind).items() if callable(v) and not n.startswith(("_", "model_"))}
        assert methods <= lookups.get(kind.__name__, set()), kind.__name__
    assert lookup(load(project / PARAMS_FILE), "no.such.key") is MISSING
