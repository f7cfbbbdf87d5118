"""The way up from a policy to the prompts, and what every kind of tampering is called."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dvc_project.cache import Cache
from dvc_project.hashing import Workspace
from dvc_project.lockfile import Lock
from paco_core.cli.provenance import origin_of
from paco_core.io.files import DataError
from paco_core.runtime.provenance import records
from paco_core.runtime.provenance.chain import Link, Provenance, Run, of_path, of_stage_now, project_path
from paco_core.runtime.provenance.records import RunFinder
from paco_core.runtime.provenance.text import markdown, plain, ship
from paco_core.runtime.provenance.verify import verify, verify_cached
from paco_core.runtime.versions import restore
from tests.support import provenance_world as world

POLICY = "data/policies/flux_t2is"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return world.make(tmp_path / "project")


def story(root: Path) -> Provenance:
    return of_path(POLICY, Lock.read(root))


def test_the_way_up_names_every_stage_once_and_the_prompts_last(root: Path) -> None:
    found = story(root)
    assert [link.stage for link in found.links] == ["policies@flux_t2is", "pairs", "grids@1", "grids@0", "prompts"]
    policy, pairs, grids = found.links[0], found.links[1], found.links[2]
    assert found.md5 == policy.outs[POLICY]
    assert policy.reads == ("pairs",) and pairs.reads == ("grids@0", "grids@1")
    assert policy.given == {} and set(policy.code) == {"data/code/policies.json"}
    assert set(policy.made_of.files) == {"data/zoo/flux"}
    assert set(policy.made_of.modules) == {"paco_core/policies/flux.py"}
    assert grids.params == {"params.yaml": {"grids": {"seeds": [0, 1], "lr": 1e-05}}}
    assert Provenance.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_a_file_inside_an_out_belongs_to_it_and_unmade_paths_say_so(root: Path) -> None:
    assert of_path("data/pairs/train.parquet", Lock.read(root)).path == "data/pairs"
    with pytest.raises(DataError, match=r"data/zoo/flux: dvc.lock records no stage that made it; recorded outs: data"):
        of_path("data/zoo/flux", Lock.read(root))
    with pytest.raises(DataError, match="outside the project"):
        project_path(root, "/etc/passwd")
    (root / "dvc.lock").unlink()
    with pytest.raises(DataError, match="nothing has run yet, run `make demo` or `dvc repro`"):
        of_path("data/pairs", Lock.read(root))


def test_a_terminal_shows_a_line_for_each_stage_and_no_markup(root: Path) -> None:
    lines = plain(story(root)).splitlines()
    assert lines[2].split() == ["stage", "made", "reads", "MLflow", "run", "git", "commit"]
    assert [line.split()[0] for line in lines[3:8]] == ["policies@flux_t2is", "pairs", "grids@1", "grids@0", "prompts"]
    assert "made by no stage: data/zoo/flux" in lines and not set("<>|`") & set("".join(lines))


@pytest.mark.parametrize("subject", [POLICY, "flux_t2is", "policies@flux_t2is"])
def test_a_policy_is_known_by_path_name_and_stage(root: Path, subject: str) -> None:
    assert origin_of(root, subject).provenance.path == POLICY


def test_runs_are_found_by_recipe(root: Path) -> None:
    recipes = {e.stage: e.inputs.digest for e in Lock.read(root).entries.values()}
    run = Run(mlflow_run="ab" * 16, git_commit="c" * 40, git_dirty=True, dagster_run="d" * 36, endpoint="paco-reward@1")
    known = {recipes["policies@flux_t2is"]: run}
    found = of_path(POLICY, Lock.read(root), lambda _stage, recipe: known.get(recipe))
    assert found.links[0].run == run and all(link.run is None for link in found.links[1:])
    text = markdown(found)
    for part in (
        run.mlflow_run,
        run.endpoint,
        "with changes not committed",
        "dddddddd",
        f"`{found.md5}`",
        "grids.lr` = `1e-05`",
    ):
        assert part is not None and (part in text or part[:12] in text)


def test_everything_holds_when_nothing_was_touched(root: Path) -> None:
    verdict = verify(root, story(root))
    assert verdict.breaks == () and verdict.checked >= 20


def _write(name: str, text: str) -> Callable[[Path], None]:
    return lambda root: (root / name).write_text(text) and None


def _lock(before: str, after: str) -> Callable[[Path], None]:
    def edit(root: Path) -> None:
        tree = (root / "dvc.lock").read_text()
        md5 = Lock.read(root).md5_of(before) or ""
        (root / "dvc.lock").write_text(tree.replace(md5, after, 1))

    return edit


@pytest.mark.parametrize(
    ("tamper", "stages", "says"),
    [
        (_write("data/pairs/train.parquet", "other"), {"pairs"}, "train.parquet changed"),
        (lambda root: (root / "data/pairs/train.parquet").unlink(), {"pairs"}, "train.parquet is gone"),
        (_write("data/pairs/extra.parquet", "new"), {"pairs"}, "extra.parquet is new"),
        (
            _write(f"{POLICY}/adapter/weights.safetensors", "evil"),
            {"policies@flux_t2is"},
            "weights.safetensors changed",
        ),
        (_write("paco_core/prompts.py", "prompts = 2\n"), {"prompts"}, "paco_core/prompts.py: was"),
        (_write("paco_core/prompts.py", "prompts = 1  # a comment\n"), set(), "every link holds"),
        (lambda root: (root / "paco_core/grids.py").unlink(), {"grids@0", "grids@1"}, "is missing"),
        (
            _write("params.yaml", "prompts: {count: 3}\ngrids: {seeds: [0], lr: 1.0e-05}\npolicies: {epochs: 2}\n"),
            {"grids@0", "grids@1"},
            "params.yaml: grids.seeds: was [0, 1], is [0] now",
        ),
        (_write("data/zoo/flux/model.safetensors", "x"), {"grids@0", "grids@1", "policies@flux_t2is"}, "data/zoo/flux"),
    ],
)
def test_tampering_is_named(root: Path, tamper: Callable[[Path], None], stages: set[str], says: str) -> None:
    tamper(root)
    verdict = verify(root, story(root))
    assert {broken.stage for broken in verdict.breaks} == stages
    assert says in verdict.text()


def test_a_forged_lock_entry_breaks_the_link_to_its_reader(root: Path) -> None:
    md5 = Lock.read(root).md5_of("data/prompts")
    lines = (root / "dvc.lock").read_text().splitlines(keepends=True)
    place = next(
        n for n, line in enumerate(lines) if "path: data/prompts" in line and "outs" in "".join(lines[n - 3 : n])
    )
    lines[place - 1] = lines[place - 1].replace(str(md5), "0" * 32 + ".dir")
    (root / "dvc.lock").write_text("".join(lines))
    text = verify(root, story(root)).text()
    assert f"prompts: data/prompts: was {'0' * 32}.dir when the stage made it, is {md5} now" in text
    assert f"grids@0: data/prompts: was {md5} when the stage read it, but prompts made {'0' * 32}.dir" in text


def test_a_stage_that_ran_again_leaves_its_reader_behind(root: Path) -> None:
    (root / "data/pairs/train.parquet").write_text("retrained")
    world.record(root, {"pairs": world.OUTS["pairs"]})
    (only,) = verify(root, story(root)).breaks
    assert only.stage == "policies@flux_t2is" and "but pairs made" in only.text


def test_code_that_differs_from_the_recorded_commit_is_named(root: Path) -> None:
    for command in (
        ["init", "-q"],
        ["add", "paco_core"],
        ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "t"],
    ):
        subprocess.run(["git", *command], cwd=root, check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True).stdout.strip()

    def run(_stage: str, _recipe: str) -> Run:
        return Run(git_commit=commit, git_dirty=False)

    assert verify(root, of_path(POLICY, Lock.read(root), run)).breaks == ()
    (root / "paco_core/pairs.py").write_text("pairs = 'never committed'\n")
    world.record(root, {"pairs": world.OUTS["pairs"], "policies@flux_t2is": [POLICY]})
    (only,) = verify(root, of_path(POLICY, Lock.read(root), run)).breaks
    assert only.stage == "pairs" and f"commit {commit[:12]} holds" in only.text


def test_a_record_of_another_recipe_or_an_unknown_commit_breaks_the_link(root: Path) -> None:
    """Parameters that were edited while the stage ran: dvc.lock has the new ones, and the run read the old ones."""
    label = "policies@flux_t2is"
    records.keep(root, label, "recipe of the run", Run(mlflow_run="1" * 32))
    (only,) = verify(root, story(root)).breaks
    assert (only.stage, only.subject) == (label, f"data/runs/{label}.json") and "recipe of the run" in only.text

    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    recipe = Lock.read(root).entries[label].inputs.digest
    records.keep(root, label, recipe, Run(mlflow_run="1" * 32, git_commit="c" * 40, git_dirty=False))
    (only,) = verify(root, of_path(POLICY, Lock.read(root), RunFinder(root))).breaks
    assert (only.stage, only.subject) == (label, "c" * 12)


def test_what_could_not_be_checked_is_counted_with_its_reason(root: Path) -> None:
    verdict = verify(root, story(root))
    assert not verdict.breaks and {check.stage for check in verdict.unchecked} == set(Lock.read(root).entries)
    records.keep(root, "prompts", Lock.read(root).entries["prompts"].inputs.digest, Run(mlflow_run="1" * 32))
    after = verify(root, of_path(POLICY, Lock.read(root), RunFinder(root)))
    assert {check.stage: check.subject for check in after.unchecked}["prompts"] == "git commit"
    assert after.checked == verdict.checked + 1 and f"{len(after.unchecked)} more" in after.text()


def test_a_policy_carries_its_story_and_a_forged_story_is_found(root: Path) -> None:
    label = "policies@flux_t2is"
    recipe, made_of = world.recipe(root, label), world.code(root, label)
    out = root / POLICY
    card = out / "adapter/README.md"
    card.write_text("# A card\n")
    versions = set()
    for _ in range(2):  # a second run does not tell it twice
        told_by = (root, label, f"run {label}", recipe, made_of, "paco-reward@123")
        assert ship(out, Path(POLICY), *told_by) is None
        versions.add(Workspace(root).md5(POLICY))
        # DVC records stages in the order of their first run, and figures may hold seconds: neither shows.
        _turn_round(root / "dvc.lock")
        (root / "data/metrics/pairs.json").write_text('{"seconds": 3}')
        world.record(root, {"pairs": world.OUTS["pairs"]})
    assert len(versions) == 1, "the same inputs, another md5"
    world.record(root, {"policies@flux_t2is": [POLICY]})
    told = Provenance.from_dict(json.loads((out / "provenance.json").read_text()))
    recorded = story(root)
    assert [link.stage for link in told.links] == [link.stage for link in recorded.links]
    assert [link.recipe for link in told.links] == [link.recipe for link in recorded.links]
    assert told.links[0].run == Run(endpoint="paco-reward@123") and all(link.run is None for link in told.links[1:])
    assert told.links[1].outs == {"data/pairs": recorded.links[1].outs["data/pairs"]}
    text = card.read_text()
    assert "MLflow run" not in text and f"`paco provenance {POLICY}` in its project names them" in text
    assert text.startswith("# A card\n\n## Provenance of") and "paco-reward@123" in text
    assert text.count("## Provenance of") == 1
    assert verify(root, recorded).breaks == ()
    tree = json.loads((out / "provenance.json").read_text())
    tree["links"][1]["recipe"] = "f" * 32
    (out / "provenance.json").write_text(json.dumps(tree))
    text = verify(root, recorded).text()
    assert "provenance.json changed" in text and "pairs: provenance.json: records recipe ffff" in text


def _turn_round(lock: Path) -> None:
    tree = yaml.safe_load(lock.read_text())
    stages = dict(reversed(tree["stages"].items()))
    lock.write_text(yaml.safe_dump({**tree, "stages": stages}, sort_keys=False))


def test_a_stage_that_was_made_again_with_the_same_bytes_leaves_the_shipped_story_true(root: Path) -> None:
    label, out = "policies@flux_t2is", root / POLICY
    (out / "adapter/README.md").write_text("# A card\n")
    recipe = world.recipe(root, label)
    ship(out, Path(POLICY), root, label, f"run {label}", recipe, world.code(root, label), None)
    world.record(root, {label: [POLICY]})
    (root / "paco_core/pairs.py").write_text("pairs = 'of the same bytes'\n")
    world.record(root, {"pairs": world.OUTS["pairs"]})
    assert verify(root, story(root)).breaks == ()
    (root / "data/pairs/train.parquet").write_text("others")
    world.record(root, {"pairs": world.OUTS["pairs"]})
    assert "pairs: provenance.json: records recipe" in verify(root, story(root)).text()


def test_the_run_is_recorded_beside_the_out_and_belongs_to_a_recipe(root: Path) -> None:
    label, lock = "policies@flux_t2is", Lock.read(root)
    recipe = lock.entries[label].inputs.digest
    run = Run(mlflow_run="ab" * 16, dagster_run="d" * 36, git_commit="c" * 40, endpoint="paco-reward@1")
    records.keep(root, label, recipe, run)
    finder = RunFinder(root)  # without any MLflow store
    assert of_path(POLICY, lock, finder).links[0].run == run and finder.failure is None
    assert finder(label, "another recipe") is None and finder("pairs", recipe) is None
    (root / "data/runs" / f"{label}.json").write_text('{"run": {}}')
    with pytest.raises(DataError, match=r"flux_t2is.json: not the record of a run"):
        finder(label, recipe)


def test_an_earlier_version_is_verified_and_restored_from_the_cache(root: Path, tmp_path: Path) -> None:
    earlier = story(root)
    (root / POLICY / "adapter/weights.safetensors").write_text("better")
    world.record(root, {"policies@flux_t2is": [POLICY]})
    assert verify_cached(root, earlier).breaks == ()
    restore(root, str(earlier.md5), tmp_path / "old")
    assert (tmp_path / "old/adapter/weights.safetensors").read_text() == "adapter"
    cache = Cache(root)
    listing = cache.listing(str(earlier.md5)) or {}
    cache.path(listing["adapter/weights.safetensors"]).write_text("rotten")
    (only,) = verify_cached(root, earlier).breaks
    assert only.subject == f"{POLICY}/adapter/weights.safetensors"
    with pytest.raises(DataError, match=r"other bytes than those of version .*adapter/weights.safetensors was changed"):
        restore(root, str(earlier.md5), tmp_path / "older")
    cache.path(str(earlier.md5)).unlink()
    with pytest.raises(DataError, match="dvc fetch"):
        restore(root, str(earlier.md5), tmp_path / "older")


def test_an_unrecorded_input_is_told(root: Path) -> None:
    recipe = world.recipe(root, "policies@flux_t2is")
    (root / "dvc.lock").unlink()
    found = of_stage_now("policies@flux_t2is", "c", recipe, POLICY, Lock.read(root), lambda *_: None, Run())
    assert found.unknown == ("data/pairs",) and isinstance(found.links[0], Link)
