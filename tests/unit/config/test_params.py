from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from paco_core.config import params, profiles
from paco_core.config.changes import changed
from paco_core.config.execution import earlier_places, moved
from paco_core.config.migration import migrate
from paco_core.config.params import ParamsError
from tests.support import REPOSITORY

PROFILES = sorted(path.stem for path in (REPOSITORY / "profiles").glob("*.yaml"))


def at(tree: Any, key: str) -> tuple[Any, str]:
    """The section of a dotted key, and the last part of the key."""
    *path, last = key.split(".")
    for part in path:
        tree = tree[part]
    return tree, last


RECIPE = "policies.recipes.flux_t2is"


@pytest.mark.parametrize(
    ("key", "value", "names"),
    [
        ("policies.defaults.learnin_rate", 1, ["'learning_rate'"]),
        (f"{RECIPE}.rewards.terms.clip_t.wieght", 1, ["'weight'"]),
        (f"{RECIPE}.dynamics", "flow_sd", ["'flow_sde'"]),
        (f"{RECIPE}.family", "fluxx", ["'flux'"]),
        ("execution.serving.prot", 1, ["'execution.serving.port'"]),
        ("prompts.count", True, ["integer", "True"]),
        ("prompts.count", "400", ["integer", "'400'"]),
        ("reward.alpha", True, ["number", "True"]),
        ("pairs.balance", 1, ["boolean", "1"]),
        ("prompts.source", 5, ["string", "5"]),
        (f"{RECIPE}.noise_steps", [3], ["choose from 0"]),
        ("policies.defaults.updates_per_epoch", 3, ["[1, 2, 4, 8]"]),
        ("policies.defaults.group_size", 1, []),
        (f"{RECIPE}.checkpoint_every", 3, ["execution.policies"]),
        (f"{RECIPE}.rewards.aggregator", "win_rate", ["rank"]),
        ("profile", " ", []),
        ("annotations.exclude", ["\u200b"], []),
        ("consistency_rank.scored_elsewhere", {"reward": "file.jsonl"}, []),
        ("grids.device", "mps", []),
        ("edits.device", "gpu", ["cuda"]),
    ],
)
def test_a_wrong_value_is_refused_by_its_key_with_valid_ones(tree: Any, key: str, value: Any, names: list[str]) -> None:
    section, last = at(tree, key)
    section[last] = value
    if key.endswith("updates_per_epoch"):
        section["prompts_per_epoch"] = 8
    if key.endswith("noise_steps"):
        section["sampling_steps"] = 4
    with pytest.raises(ParamsError) as raised:
        params.parse(tree)
    message = str(raised.value)
    assert last in message and all(name in message for name in names), message


@pytest.mark.parametrize("section", ["rounds", "vistory"])
def test_a_file_from_before_a_section_is_read_and_asks_for_nothing_of_it(tree: Any, section: str) -> None:
    tree.pop(section, None)
    read = params.parse(tree)
    assert read.rounds.items == {} and read.vistory.source is None


def test_a_missing_key_and_a_wrong_type_are_both_named(tree: Any) -> None:
    del tree["reward"]["alpha"]
    tree["grids"]["steps"] = "ten"
    with pytest.raises(ParamsError) as raised:
        params.parse(tree)
    assert "'reward.alpha' is missing" in str(raised.value)
    assert "grids.steps" in str(raised.value) and "'ten'" in str(raised.value)


def test_whole_numbers_lists_and_powers_of_ten_are_taken(project: Path) -> None:
    """DVC writes 1e-05 when `dvc exp run -S` sets it, which YAML 1.1 takes for a word."""
    text = (project / "params.yaml").read_text()
    for old, new in (
        ("learning_rate: 1.0e-3", "learning_rate: 1e-05"),
        ("guidance: 3.5", "guidance: 3"),
        ("exclude: []", "exclude: [ann]"),
    ):
        assert old in text
        text = text.replace(old, new, 1)
    (project / "params.yaml").write_text(text)
    loaded = params.load(project / "params.yaml")
    assert (loaded.reward.learning_rate, loaded.grids.guidance, loaded.annotations.exclude) == (1e-5, 3.0, ("ann",))


@pytest.mark.parametrize("content", [None, b"a: [1", b"- 1", "# é".encode("latin-1")])
def test_a_file_that_cannot_be_read_is_named_and_nothing_is_written(project: Path, content: bytes | None) -> None:
    before = (project / "params.yaml").read_bytes()
    for name in ("profiles/mine.yaml", "params.yaml"):
        (project / name).unlink(missing_ok=True)
        if content is not None:
            (project / name).write_bytes(content)
        with pytest.raises(ParamsError, match="mine" if name.startswith("profiles") else name):
            profiles.use(project, "mine") if name.startswith("profiles") else params.load(project / name)
        if name.startswith("profiles"):
            assert (project / "params.yaml").read_bytes() == before


@pytest.mark.slow
def test_the_storybook_profile_comes_back_byte_for_byte_with_what_was_changed_in_it(project: Path) -> None:
    """``params.yaml`` is that profile; it lies among the others only while another one is in use."""
    text = (project / "params.yaml").read_text().replace("noise_level: 0.7", "noise_level: 0.9  # mine", 1)
    (project / "params.yaml").write_text(text)
    assert "storybook" in profiles.available(project) and not (project / "profiles/storybook.yaml").exists()
    assert "git checkout -- params.yaml" in profiles.use(project, "storybook")
    for name in ("smoke", "paper"):
        profiles.use(project, name)
        assert profiles.read(project, "storybook").policies.recipes["flux_t2is"].noise_level == 0.9
    assert profiles.read(project, "smoke").policies.recipes["flux_t2is"].noise_level == 0.9
    profiles.use(project, "storybook")
    assert (project / "params.yaml").read_text() == text and not (project / "profiles/storybook.yaml").exists()


@pytest.mark.slow
def test_what_was_changed_under_another_profile_is_kept(project: Path) -> None:
    profiles.use(project, "smoke")
    assert "kept as" not in profiles.use(project, "smoke"), "nothing was changed"
    text = (project / "params.yaml").read_text().replace("noise_level: 0.7", "noise_level: 0.9  # mine", 1)
    for number in (1, 2):
        (project / "params.yaml").write_text(text)
        assert f"params.yaml was changed, and is kept as .paco/params/smoke-{number}.yaml" in profiles.use(
            project, "storybook"
        )
        assert (project / f".paco/params/smoke-{number}.yaml").read_text() == text
        profiles.use(project, "smoke")
    (project / "params.yaml").write_text("profile: [")
    assert ".paco/params/unnamed-1.yaml" in profiles.use(project, "smoke")


@pytest.mark.slow
def test_a_changed_storybook_profile_is_kept_though_another_one_was_put_in_its_place(project: Path) -> None:
    """`git checkout -- params.yaml` while another profile is in use leaves two storybook profiles."""
    committed = (project / "params.yaml").read_text()
    mine = committed.replace("noise_level: 0.7", "noise_level: 0.9  # mine", 1)
    (project / "params.yaml").write_text(mine)
    profiles.use(project, "smoke")
    (project / "params.yaml").write_text(committed)
    message = profiles.use(project, "smoke")
    assert "profiles/storybook.yaml was changed, and is kept as .paco/params/storybook-1.yaml" in message
    assert (project / ".paco/params/storybook-1.yaml").read_text() == mine
    assert (project / "profiles/storybook.yaml").read_text() == committed


#: Keys of version 0.2, and where they stand now.
EARLIER = {
    "threads": "execution.threads",
    "devices": "execution.devices",
    "serving.port": "execution.serving.port",
    "reward.processes": "execution.reward.processes",
    "policies.learning_rate": "policies.defaults.learning_rate",
    "policies.checkpoint_every": "execution.policies.checkpoint_every",
    "policies.kl": "policies.defaults.kl",
}


def as_in_version_2(project: Path) -> None:
    """Write ``params.yaml`` and a profile with the keys of version 0.2."""
    tree = yaml.safe_load((project / "params.yaml").read_text())
    old = {new: old for old, new in earlier_places(params.Params).items() if ".defaults." not in old}
    (project / "params.yaml").write_text(yaml.safe_dump(moved(tree, old), sort_keys=False))
    (project / "profiles/mine.yaml").write_text("profile: mine\npolicies:\n  kl: {beta: 0.1}  # mine\n  epochs: 3\n")


def test_keys_of_an_earlier_version_are_refused_with_their_place_now(project: Path) -> None:
    loaded = earlier_places(params.Params)
    assert {old: loaded[old] for old in EARLIER} == EARLIER
    as_in_version_2(project)
    with pytest.raises(ParamsError) as raised:
        params.load(project / "params.yaml")
    message = str(raised.value)
    assert "params.yaml: threads is execution.threads now" in message and "paco params --migrate" in message
    assert "missing" not in message


@pytest.mark.slow
def test_migration_moves_them_with_their_comments(project: Path) -> None:
    before = params.load(project / "params.yaml")
    as_in_version_2(project)
    assert "profiles/mine.yaml: 2 keys moved" in migrate(project)
    assert params.load(project / "params.yaml") == before
    assert "# mine" in (project / "profiles/mine.yaml").read_text()
    assert profiles.read(project, "mine").policies.recipes["flux_t2is"].kl.beta == 0.1
    assert profiles.read(project, "mine").policies.recipes["flux_t2is"].epochs == 3
    assert "params.yaml: every key is where it belongs" in migrate(project)


def test_a_removed_key_is_refused_with_what_to_do_instead_and_deleted(project: Path) -> None:
    tree = yaml.safe_load((project / "params.yaml").read_text())
    tree["consistency_rank"]["dreamsim"] = "data/external/dreamsim"
    (project / "params.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    advice = r"params.yaml: consistency_rank.dreamsim no longer exists: consistency_rank.scored_elsewhere"
    with pytest.raises(ParamsError, match=advice):
        params.load(project / "params.yaml")
    message = migrate(project)
    assert "params.yaml: deleted consistency_rank.dreamsim ('data/external/dreamsim'): " in message
    assert "dreamsim" not in (project / "params.yaml").read_text()
    params.load(project / "params.yaml")


def files_below(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*.yaml")}


def test_migration_keeps_both_values_of_a_key_that_is_there_twice(project: Path) -> None:
    as_in_version_2(project)
    tree = yaml.safe_load((project / "params.yaml").read_text())
    tree.setdefault("execution", {})["threads"] = tree["threads"] + 3
    (project / "params.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    before = files_below(project)
    with pytest.raises(ParamsError) as raised:
        migrate(project)
    message = str(raised.value)
    assert f"params.yaml: threads is {tree['threads']}" in message
    assert f"execution.threads, its present name, is {tree['threads'] + 3}" in message
    assert files_below(project) == before
    tree["execution"]["threads"] = tree["threads"]  # the same value, twice
    (project / "params.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    migrate(project)
    moved_tree = yaml.safe_load((project / "params.yaml").read_text())
    assert "threads" not in moved_tree and moved_tree["execution"]["threads"] == tree["threads"]


@pytest.mark.parametrize("text", ["a: [1\n", "- 1\n", "policies: {epochs: 3}\nexecution: 5\nthreads: 2\n"])
def test_migration_of_a_broken_profile_writes_nothing(project: Path, text: str) -> None:
    as_in_version_2(project)
    (project / "profiles/zz.yaml").write_text(text)
    before = files_below(project)
    with pytest.raises(ParamsError, match="profiles/zz.yaml"):
        migrate(project)
    assert files_below(project) == before


def test_a_recipe_sets_any_number_for_itself_and_null_leaves_the_defaults(tree: Any) -> None:
    recipe = tree["policies"]["recipes"]["flux_t2is"]
    recipe.update(group_size=4, lora={"rank": 3}, seed=None)
    recipe_params = params.parse(tree).policies.recipes["flux_t2is"]
    assert (recipe_params.group_size, recipe_params.lora.rank, recipe_params.lora.alpha, recipe_params.seed) == (
        4,
        3,
        32,
        0,
    )
    changed_too = changed(params.parse(tree), {"policies.defaults.seed": 5, "policies.defaults.group_size": 9})
    assert [(r.seed, r.group_size) for r in changed_too.policies.recipes.values()] == [(5, 4), (5, 9), (5, 9)]


def _profile_with_brackets(project: Path) -> str:
    """A profile as people write them: DVC would write every line of it in another way."""
    text = "extends: smoke\nprofile: mine\nt2is: {seeds: [3, 4], prompts: 5}\nprompts: {source: null}\n"
    (project / "profiles/mine.yaml").write_text(f"{text}reward:\n    base: 'data/zoo/qwen2_5_vl'\n")
    return "mine"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smoke", "storybook", "mine"])
@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("policies.recipes.flux_t2is.noise_level=0.9", "      noise_level: 0.9"),
        ("prompts.source=data/mine.jsonl", "  source: data/mine.jsonl"),
        ("reward.swap=null", "  swap:"),
    ],
)
def test_an_experiment_changes_one_line(project: Path, name: str, change: str, line: str) -> None:
    """With what DVC itself does for ``dvc exp run -S``; it reads the whole file, and writes all of it."""
    from dvc.utils.hydra import apply_overrides

    profiles.use(project, name if name != "mine" else _profile_with_brackets(project))
    path = project / "params.yaml"
    before = path.read_text().splitlines()
    apply_overrides(path, [change])
    after = path.read_text().splitlines()
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == 1 and changed[0][1].partition("  #")[0].rstrip() == line


@pytest.mark.parametrize("file", ["params.yaml", *(f"profiles/{name}.yaml" for name in PROFILES)])
def test_the_files_have_the_layout_that_dvc_writes(tmp_path: Path, file: str) -> None:
    from dvc.utils.hydra import apply_overrides

    written = tmp_path / "params.yaml"
    written.write_bytes((REPOSITORY / file).read_bytes())
    apply_overrides(written, [])
    assert written.read_text() == (REPOSITORY / file).read_text()


def test_what_a_file_says_of_itself_is_its_own(project: Path) -> None:
    before = (project / "params.yaml").read_text()
    profiles.use(project, "paper")
    text = (project / "params.yaml").read_text()
    assert text.startswith("# The scale of the paper") and 'profile "storybook"' not in text
    line = {key: text_after for key, _, text_after in (line.strip().partition(":") for line in text.splitlines())}
    assert f"swap: {line['swap'].strip()}" in (project / "profiles/paper.yaml").read_text(), "the profile's own comment"
    assert f"leakage:{line['leakage']}" in before, "a key that the profile does not comment keeps its comment"
    apart = re.findall(r"\n\n(\w+):", text)
    assert {"annotations", "pairs", "cot_labels", "serving", "policies", "edit_reward", "gedit"} <= set(apart)
    profiles.use(project, "storybook")
    assert (project / "params.yaml").read_text() == before


def test_profiles_that_extend_each_other_are_an_error(project: Path) -> None:
    for name, other in (("one", "two"), ("two", "one")):
        (project / "profiles" / f"{name}.yaml").write_text(f"extends: {other}\n")
    with pytest.raises(ParamsError, match=r"profiles/one.yaml: extends itself, through one and two"):
        profiles.read(project, "one")


def test_painted_edits_must_be_ones_that_can_be_labelled(tree: Any) -> None:
    tree["edit_prompts"].update(source="file", file="edits.jsonl", count=None)
    with pytest.raises(ParamsError, match=r"edits\.painters paint what only the embedded world can label"):
        params.parse(tree)


@pytest.mark.parametrize(
    ("terms", "name", "near"),
    [
        ({"consistencyy": {"weight": 1.0}}, "consistencyy", "consistency"),
        ({"mine": {"weight": 1.0, "reward": "clip"}}, "clip", "clip_"),
        ({"mine": {"weight": 1.0, "reward": "my_rewards.warmth"}}, "my_rewards.warmth", "my_rewards:warmth"),
    ],
)
@pytest.mark.parametrize("key", ["rewards", "test_rewards"])
def test_an_unknown_reward_names_the_nearest_one(project: Path, key: str, terms: Any, name: str, near: str) -> None:
    tree = yaml.safe_load((project / "params.yaml").read_text())
    recipe = tree["policies"]["recipes"]["flux_t2is"]
    recipe[key] = {**recipe["rewards"], "terms": terms}
    (project / "params.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(ParamsError) as raised:
        params.load(project / "params.yaml")
    assert all(part in str(raised.value) for part in (f"flux_t2is.{key}", f"'{name}'", f"'{near}"))


def test_a_reward_may_be_a_function_under_any_name(tree: Any) -> None:
    rewards = tree["policies"]["recipes"]["flux_t2is"]["rewards"]
    rewards["terms"] = {"mine": {"weight": 1.0, "reward": "own.rewards:red"}, "own:blue": {"weight": 1.0}}
    assert list(params.parse(tree).policies.recipes["flux_t2is"].rewards.terms) == ["mine", "own:blue"]
