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


@pytest.mark.parametrize("name", ["storybook", "smoke", "paper"])
def test_every_profile_is_valid(repository: Path, name: str) -> None:
    assert profiles.read(repository, name).profile == name


@pytest.mark.parametrize(
    ("path", "typo", "nearest"),
    [
        (("policies", "defaults"), "learnin_rate", "learning_rate"),
        (("reward", "lora"), "rnk", "rank"),
        (("policies", "recipes", "flux_t2is"), "guidence", "guidance"),
        (("policies", "recipes", "flux_t2is", "rewards", "terms", "clip_t"), "wieght", "weight"),
    ],
)
def test_an_unknown_key_names_the_nearest_valid_one(tree: Any, path: tuple[str, ...], typo: str, nearest: str) -> None:
    section = tree
    for key in path:
        section = section[key]
    section[typo] = 1
    with pytest.raises(ParamsError) as raised:
        params.parse(tree)
    assert ".".join((*path, typo)) in str(raised.value)
    assert f"did you mean '{nearest}'?" in str(raised.value)


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


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("prompts.count", True, "integer"),
        ("prompts.count", "400", "integer"),
        ("reward.alpha", True, "number"),
        ("reward.learning_rate", "fast", "number"),
        ("pairs.balance", "yes", "boolean"),
        ("pairs.balance", 1, "boolean"),
        ("prompts.source", 5, "string"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_key(tree: Any, key: str, value: Any, expected: str) -> None:
    section, name = key.split(".")
    tree[section][name] = value
    with pytest.raises(ParamsError) as raised:
        params.parse(tree)
    assert f"{key}: Input should be a valid {expected} (got {value!r})" in str(raised.value)


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
    found = params.load(project / "params.yaml")
    assert (found.reward.learning_rate, found.grids.guidance, found.annotations.exclude) == (1e-5, 3.0, ("ann",))


def test_a_noise_step_outside_the_schedule_is_refused_with_valid_numbers(tree: Any) -> None:
    recipe = tree["policies"]["recipes"]["flux_t2is"]
    recipe["noise_steps"] = [recipe["sampling_steps"] - 1]
    with pytest.raises(ParamsError, match="outside the schedule.*choose from 0"):
        params.parse(tree)


def test_an_uneven_number_of_updates_names_the_valid_ones(tree: Any) -> None:
    tree["policies"]["defaults"].update(prompts_per_epoch=8, updates_per_epoch=3)
    with pytest.raises(ParamsError, match=r"valid: \[1, 2, 4, 8\]"):
        params.parse(tree)


def test_a_group_of_one_is_refused(tree: Any) -> None:
    tree["policies"]["defaults"]["group_size"] = 1
    with pytest.raises(ParamsError, match=r"policies\.defaults\.group_size"):
        params.parse(tree)


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match="git checkout -- params.yaml"):
        params.load(tmp_path / "params.yaml")


def test_broken_yaml_is_named(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("a: [1")
    with pytest.raises(ParamsError, match="not valid YAML"):
        params.load(tmp_path / "params.yaml")


@pytest.mark.parametrize(("text", "said"), [("a: [1", "not valid YAML"), ("- 1", "a mapping of sections")])
def test_a_broken_profile_is_named_and_params_stay(project: Path, text: str, said: str) -> None:
    before = (project / "params.yaml").read_text()
    (project / "profiles/mine.yaml").write_text(text)
    with pytest.raises(ParamsError, match=rf"profiles/mine\.yaml: .*{said}"):
        profiles.use(project, "mine")
    assert (project / "params.yaml").read_text() == before


def test_a_file_that_is_not_utf_8_is_named_with_the_byte(project: Path) -> None:
    text = (project / "params.yaml").read_text()
    (project / "params.yaml").write_bytes(f"# é\n{text}".encode("latin-1"))
    with pytest.raises(ParamsError, match=r"params\.yaml: not UTF-8 text \(invalid continuation byte at byte 2\)"):
        params.load(project / "params.yaml")
    smoke = project / "profiles/smoke.yaml"
    smoke.write_bytes(smoke.read_bytes() + "# é\n".encode("latin-1"))
    with pytest.raises(ParamsError, match=r"profiles/smoke\.yaml: not UTF-8 text"):
        profiles.use(project, "smoke")


@pytest.mark.slow
def test_using_a_profile_changes_only_what_it_names(project: Path) -> None:
    before = params.load(project / "params.yaml")
    profiles.use(project, "smoke")
    smoke = params.load(project / "params.yaml")
    assert smoke.profile == "smoke" and smoke.reward.lora == before.reward.lora
    assert "# " in (project / "params.yaml").read_text(), "comments are kept"
    profiles.use(project, "storybook")
    assert params.load(project / "params.yaml") == before


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
    said = profiles.use(project, "smoke")
    assert "profiles/storybook.yaml was changed, and is kept as .paco/params/storybook-1.yaml" in said
    assert (project / ".paco/params/storybook-1.yaml").read_text() == mine
    assert (project / "profiles/storybook.yaml").read_text() == committed


def test_a_storybook_profile_that_is_gone_is_named_with_the_remedy(project: Path) -> None:
    profiles.use(project, "smoke")
    (project / "profiles/storybook.yaml").unlink()
    with pytest.raises(ParamsError, match=r"profiles/storybook\.yaml: .*'smoke'; .*git checkout -- params\.yaml"):
        profiles.use(project, "paper")


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
    found = earlier_places(params.Params)
    assert {old: found[old] for old in EARLIER} == EARLIER
    as_in_version_2(project)
    with pytest.raises(ParamsError) as raised:
        params.load(project / "params.yaml")
    said = str(raised.value)
    assert "params.yaml: threads is execution.threads now" in said and "paco params --migrate" in said
    assert "missing" not in said


def test_an_aggregator_of_an_earlier_version_names_another(tree: Any) -> None:
    tree["policies"]["recipes"]["flux_t2is"]["rewards"]["aggregator"] = "win_rate"
    with pytest.raises(ParamsError, match=r"flux_t2is\.rewards\.aggregator: removed in 0\.3; rank .*got 'win_rate'"):
        params.parse(tree)


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
    said = migrate(project)
    assert "params.yaml: deleted consistency_rank.dreamsim ('data/external/dreamsim'): " in said
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


def test_a_key_of_how_to_run_stands_in_execution_only(tree: Any) -> None:
    tree["policies"]["recipes"]["flux_t2is"]["checkpoint_every"] = 3
    with pytest.raises(ParamsError, match=r"flux_t2is.checkpoint_every: holds for all recipes, in execution.policies"):
        params.parse(tree)
    del tree["policies"]["recipes"]["flux_t2is"]["checkpoint_every"]
    tree["execution"]["serving"]["prot"] = 1
    with pytest.raises(ParamsError, match=r"unknown key '.*serving.prot'; did you mean 'execution.serving.port'"):
        params.parse(tree)


def test_a_recipe_sets_any_number_for_itself_and_null_leaves_the_defaults(tree: Any) -> None:
    recipe = tree["policies"]["recipes"]["flux_t2is"]
    recipe.update(group_size=4, lora={"rank": 3}, seed=None)
    own = params.parse(tree).policies.recipes["flux_t2is"]
    assert (own.group_size, own.lora.rank, own.lora.alpha, own.seed) == (4, 3, 32, 0)
    changed_too = changed(params.parse(tree), {"policies.defaults.seed": 5, "policies.defaults.group_size": 9})
    assert [(r.seed, r.group_size) for r in changed_too.policies.recipes.values()] == [(5, 4), (5, 9), (5, 9)]


def _profile_with_brackets(project: Path) -> str:
    """A profile as people write them: DVC would write every line of it in another way."""
    text = "extends: smoke\nprofile: mine\nt2is: {seeds: [3, 4], prompts: 5}\nprompts: {source: null}\n"
    (project / "profiles/mine.yaml").write_text(f"{text}reward:\n    base: 'data/zoo/qwen2_5_vl'\n")
    return "mine"


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PROFILES, "storybook", "mine"])
@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("policies.defaults.learning_rate=0.0003", "    learning_rate: 0.0003"),
        ("policies.recipes.flux_t2is.noise_level=0.9", "      noise_level: 0.9"),
        ("pairs.rule=all", "  rule: all"),
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
    line = {key: rest for key, _, rest in (line.strip().partition(":") for line in text.splitlines())}
    assert line["swap"].strip() == "false             # the paper shows each pair as the annotator saw it"
    assert line["leakage"].endswith("needed by split: instance"), "what the profile does not comment keeps its comment"
    apart = re.findall(r"\n\n(\w+):", text)
    assert {"annotations", "pairs", "cot_labels", "serving", "policies", "edit_reward", "gedit"} <= set(apart)
    profiles.use(project, "storybook")
    assert (project / "params.yaml").read_text() == before


def test_a_profile_changes_the_one_that_it_extends(project: Path) -> None:
    (project / "profiles" / "mine.yaml").write_text("extends: smoke\nprofile: mine\nexecution: {threads: 3}\n")
    mine, smoke = profiles.read(project, "mine"), profiles.read(project, "smoke")
    assert mine == smoke.model_copy(update={"profile": "mine", "threads": 3})


def test_profiles_that_extend_each_other_are_an_error(project: Path) -> None:
    for name, other in (("one", "two"), ("two", "one")):
        (project / "profiles" / f"{name}.yaml").write_text(f"extends: {other}\n")
    with pytest.raises(ParamsError, match=r"profiles/one.yaml: extends itself, through one and two"):
        profiles.read(project, "one")


def test_an_unknown_profile_lists_the_known_ones(project: Path) -> None:
    with pytest.raises(ParamsError, match="available: gpu_24gb, gpu_48gb, klein, .*, storybook"):
        profiles.use(project, "papre")


def test_a_recipe_has_settings_of_its_own(tree: Any) -> None:
    recipe = tree["policies"]["recipes"]["flux_t2is"]
    recipe.update(loss="nft", epochs=3, learning_rate=0.01, noise_steps=[], dynamics="ode", shared_noise=False)
    policies = params.parse(tree).policies
    own = policies.recipes["flux_t2is"]
    assert (own.loss, own.epochs, own.learning_rate, own.seed) == ("nft", 3, 0.01, policies.defaults.seed)
    assert policies.defaults.loss == "ppo"


def test_a_loss_of_its_own_must_fit_the_noise_steps(tree: Any) -> None:
    tree["policies"]["recipes"]["flux_t2is"].update(loss="grpo_guard", noise_steps=[], dynamics="ode")
    with pytest.raises(ParamsError, match="flux_t2is: .*loss grpo_guard learns from noisy steps and there are none"):
        params.parse(tree)


def test_painted_edits_must_be_ones_that_can_be_labelled(tree: Any) -> None:
    tree["edit_prompts"].update(source="file", file="edits.jsonl", count=None)
    with pytest.raises(ParamsError, match=r"edits\.painters paint what only the embedded world can label"):
        params.parse(tree)


@pytest.mark.parametrize(
    ("terms", "asked", "near"),
    [
        ({"consistencyy": {"weight": 1.0}}, "consistencyy", "consistency"),
        ({"mine": {"weight": 1.0, "reward": "clip"}}, "clip", "clip_"),
    ],
)
@pytest.mark.parametrize("key", ["rewards", "test_rewards"])
def test_an_unknown_reward_names_the_nearest_one(project: Path, key: str, terms: Any, asked: str, near: str) -> None:
    tree = yaml.safe_load((project / "params.yaml").read_text())
    recipe = tree["policies"]["recipes"]["flux_t2is"]
    recipe[key] = {**recipe["rewards"], "terms": terms}
    (project / "params.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(ParamsError) as raised:
        params.load(project / "params.yaml")
    assert f"flux_t2is.{key}: reward '{asked}' is unknown; did you mean '{near}" in str(raised.value)


@pytest.mark.parametrize(
    ("key", "typo", "near"),
    [("dynamics", "flow_sd", "flow_sde"), ("loss", "nftt", "nft"), ("family", "fluxx", "flux")],
)
def test_an_unknown_registered_name_names_the_nearest_one(tree: Any, key: str, typo: str, near: str) -> None:
    tree["policies"]["recipes"]["flux_t2is"][key] = typo
    with pytest.raises(ParamsError, match=rf"recipes\.flux_t2is\.{key}: Input should be .*; did you mean '{near}'\?"):
        params.parse(tree)


def test_a_reward_may_be_a_function_under_any_name(tree: Any) -> None:
    rewards = tree["policies"]["recipes"]["flux_t2is"]["rewards"]
    rewards["terms"] = {"mine": {"weight": 1.0, "reward": "own.rewards:red"}, "own:blue": {"weight": 1.0}}
    assert list(params.parse(tree).policies.recipes["flux_t2is"].rewards.terms) == ["mine", "own:blue"]
