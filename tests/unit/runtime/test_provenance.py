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
from paco_core.cli.provenance import find_origin
from paco_core.io.files import DataError
from paco_core.runtime.provenance import records
from paco_core.runtime.provenance.chain import Link, Provenance, Run, of_path, of_stage_now, project_path
from paco_core.runtime.provenance.records import RunFinder
from paco_core.runtime.provenance.text import provenance_markdown, write_provenance
from paco_core.runtime.provenance.verify import verify, verify_cached
from paco_core.runtime.versions import link_version
from tests.support import provenance_world as world

POLICY = "data/policies/flux_t2is"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return world.make(tmp_path / "project")


def story(root: Path) -> Provenance:
    return of_path(POLICY, Lock.read(root))


def test_the_way_up_names_every_stage_once_and_the_prompts_last(root: Path) -> None:
    provenance = story(root)
    assert [link.stage for link in provenance.links] == ["policies@flux_t2is", "pairs", "grids@1", "grids@0", "prompts"]
    policy, pairs, grids = provenance.links[0], provenance.links[1], provenance.links[2]
    assert provenance.md5 == policy.outs[POLICY]
    assert policy.reads == ("pairs",) and pairs.reads == ("grids@0", "grids@1")
    assert policy.given == {} and set(policy.code) == {"data/code/policies.json"}
    assert set(policy.made_of.files) == {"data/zoo/flux"}
    assert set(policy.made_of.modules) == {"paco_core/policies/flux.py"}
    assert grids.params == {"params.yaml": {"grids": {"seeds": [0, 1], "lr": 1e-05}}}
    assert Provenance.from_dict(json.loads(json.dumps(provenance.as_dict()))) == provenance
    for subject in (POLICY, "flux_t2is", "policies@flux_t2is"):
        assert find_origin(root, subject).provenance == provenance


def test_a_file_inside_an_out_belongs_to_it_and_unmade_paths_say_so(root: Path) -> None:
    assert of_path("data/pairs/train.parquet", Lock.read(root)).path == "data/pairs"
    with pytest.raises(DataError, match="data/zoo/flux"):
        of_path("data/zoo/flux", Lock.read(root))
    with pytest.raises(DataError, match="outside the project"):
        project_path(root, "/etc/passwd")
    recipe = world.recipe(root, "policies@flux_t2is")
    (root / "dvc.lock").unlink()
    with pytest.raises(DataError, match="nothing has run yet"):
        of_path("data/pairs", Lock.read(root))
    unrecorded = of_stage_now("policies@flux_t2is", "c", recipe, POLICY, Lock.read(root), lambda *_: None, Run())
    assert unrecorded.unknown == ("data/pairs",) and isinstance(unrecorded.links[0], Link)


def _write(name: str, text: str) -> Callable[[Path], None]:
    return lambda root: (root / name).write_text(text) and None


@pytest.mark.parametrize(
    ("tamper", "stages", "says"),
    [
        (lambda root: (root / "data/pairs/train.parquet").unlink(), {"pairs"}, "train.parquet is gone"),
        (_write("data/pairs/extra.parquet", "new"), {"pairs"}, "extra.parquet is new"),
        (
            _write(f"{POLICY}/adapter/weights.safetensors", "evil"),
            {"policies@flux_t2is"},
            "weights.safetensors changed",
        ),
        (_write("paco_core/prompts.py", "prompts = 2\n"), {"prompts"}, "paco_core/prompts.py: was"),
        (_write("paco_core/prompts.py", "prompts = 1  # a comment\n"), set(), ""),
        (lambda root: (root / "paco_core/grids.py").unlink(), {"grids@0", "grids@1"}, "paco_core/grids.py"),
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
    assert {broken.stage for broken in verdict.breaks} == stages and verdict.checked >= 20
    assert says in verdict.text()


def test_a_forged_lock_entry_breaks_the_link_to_its_reader(root: Path) -> None:
    md5 = Lock.read(root).md5_of("data/prompts")
    lines = (root / "dvc.lock").read_text().splitlines(keepends=True)
    place = next(
        n for n, line in enumerate(lines) if "path: data/prompts" in line and "outs" in "".join(lines[n - 3 : n])
    )
    lines[place - 1] = lines[place - 1].replace(str(md5), "0" * 32 + ".dir")
    (root / "dvc.lock").write_text("".join(lines))
    breaks = verify(root, story(root)).breaks
    assert {(broken.stage, broken.subject) for broken in breaks} == {
        (stage, "data/prompts") for stage in ("prompts", "grids@0", "grids@1")
    }
    assert all("0" * 32 in broken.text and str(md5) in broken.text for broken in breaks)


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
    records.save_run(root, label, "recipe of the run", Run(mlflow_run="1" * 32))
    (only,) = verify(root, story(root)).breaks
    assert (only.stage, only.subject) == (label, f"data/runs/{label}.json") and "recipe of the run" in only.text

    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    recipe = Lock.read(root).entries[label].inputs.digest
    records.save_run(root, label, recipe, Run(mlflow_run="1" * 32, git_commit="c" * 40, git_dirty=False))
    (only,) = verify(root, of_path(POLICY, Lock.read(root), RunFinder(root))).breaks
    assert (only.stage, only.subject) == (label, "c" * 12)


def test_what_could_not_be_checked_is_counted_with_its_reason(root: Path) -> None:
    verdict = verify(root, story(root))
    assert not verdict.breaks and {check.stage for check in verdict.unchecked} == set(Lock.read(root).entries)
    records.save_run(root, "prompts", Lock.read(root).entries["prompts"].inputs.digest, Run(mlflow_run="1" * 32))
    after = verify(root, of_path(POLICY, Lock.read(root), RunFinder(root)))
    assert {check.stage: check.subject for check in after.unchecked}["prompts"] == "git commit"
    assert after.checked == verdict.checked + 1 and f"{len(after.unchecked)} more" in after.text()


def test_a_policy_carries_its_story_and_a_forged_story_is_found(root: Path) -> None:
    label, out = "policies@flux_t2is", root / POLICY
    recipe, made_of = world.recipe(root, label), world.code(root, label)
    card = out / "adapter/README.md"
    card.write_text("# A card\n")
    versions = set()
    for _ in range(2):  # a second run does not tell it twice
        assert (
            write_provenance(out, Path(POLICY), root, label, f"run {label}", recipe, made_of, "paco-reward@123") is None
        )
        versions.add(Workspace(root).md5(POLICY))
        # DVC records stages in the order of their first run, and figures may hold seconds: neither shows.
        _turn_round(root / "dvc.lock")
        (root / "data/metrics/pairs.json").write_text('{"seconds": 3}')
        world.record(root, {"pairs": world.OUTS["pairs"]})
    assert len(versions) == 1, "the same inputs, another md5"
    world.record(root, {label: [POLICY]})
    shipped, recorded = Provenance.from_dict(json.loads((out / "provenance.json").read_text())), story(root)
    assert [(link.stage, link.recipe) for link in shipped.links] == [
        (link.stage, link.recipe) for link in recorded.links
    ]
    assert [link.run for link in shipped.links] == [Run(endpoint="paco-reward@123")] + [None] * 4
    assert shipped.links[1].outs == {"data/pairs": recorded.links[1].outs["data/pairs"]}
    text = (out / "adapter/PROVENANCE.md").read_text()
    assert "MLflow run" not in text and "paco-reward@123" in text and text.startswith("# Provenance of")
    lines = card.read_text().splitlines()
    assert lines[0] == "# A card" and lines.count("## Provenance") == 1 and len(lines) < 10
    (root / "paco_core/pairs.py").write_text("pairs = 'of the same bytes'\n")
    world.record(root, {"pairs": world.OUTS["pairs"]})
    assert verify(root, story(root)).breaks == (), "a stage that was made again with the same bytes changes nothing"
    (root / "data/pairs/train.parquet").write_text("others")
    world.record(root, {"pairs": world.OUTS["pairs"]})
    text = verify(root, story(root)).text()
    assert "pairs: provenance.json: records recipe" in text and f"{label}: data/pairs: was" in text
    tree = json.loads((out / "provenance.json").read_text())
    tree["links"][1]["recipe"] = "f" * 32
    (out / "provenance.json").write_text(json.dumps(tree))
    text = verify(root, story(root)).text()
    assert "provenance.json changed" in text and "pairs: provenance.json: records recipe ffff" in text


def _turn_round(lock: Path) -> None:
    tree = yaml.safe_load(lock.read_text())
    stages = dict(reversed(tree["stages"].items()))
    lock.write_text(yaml.safe_dump({**tree, "stages": stages}, sort_keys=False))


def test_the_run_is_recorded_beside_the_out_and_belongs_to_a_recipe(root: Path) -> None:
    label, lock = "policies@flux_t2is", Lock.read(root)
    recipe = lock.entries[label].inputs.digest
    run = Run(mlflow_run="ab" * 16, dagster_run="d" * 36, git_commit="c" * 40, git_dirty=True, endpoint="paco-reward@1")
    records.save_run(root, label, recipe, run)
    finder = RunFinder(root)  # without any MLflow store
    links = of_path(POLICY, lock, finder)
    assert [link.run for link in links.links] == [run] + [None] * 4 and finder.failure is None
    text = provenance_markdown(links)
    parts = ("ab" * 6, "paco-reward@1", "with changes not committed", "dddddddd", links.md5, "grids.lr` = `1e-05`")
    assert not [part for part in parts if str(part) not in text]
    assert finder(label, "another recipe") is None and finder("pairs", recipe) is None
    (root / "data/runs" / f"{label}.json").write_text('{"run": {}}')
    with pytest.raises(DataError, match=r"flux_t2is.json"):
        finder(label, recipe)


def test_an_earlier_version_is_verified_and_restored_from_the_cache(root: Path, tmp_path: Path) -> None:
    earlier = story(root)
    (root / POLICY / "adapter/weights.safetensors").write_text("better")
    world.record(root, {"policies@flux_t2is": [POLICY]})
    assert verify_cached(root, earlier).breaks == ()
    link_version(root, str(earlier.md5), tmp_path / "old")
    assert (tmp_path / "old/adapter/weights.safetensors").read_text() == "adapter"
    cache = Cache(root)
    listing = cache.listing(str(earlier.md5)) or {}
    cache.path(listing["adapter/weights.safetensors"]).write_text("rotten")
    (only,) = verify_cached(root, earlier).breaks
    assert only.subject == f"{POLICY}/adapter/weights.safetensors"
    with pytest.raises(DataError, match=r"adapter/weights.safetensors"):
        link_version(root, str(earlier.md5), tmp_path / "older")
    cache.path(str(earlier.md5)).unlink()
    with pytest.raises(DataError, match="dvc fetch"):
        link_version(root, str(earlier.md5), tmp_path / "older")
