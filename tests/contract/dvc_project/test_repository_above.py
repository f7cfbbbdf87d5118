"""``.dvc`` at the top of the repository, ``dvc.yaml`` in a folder: one repository, with all its settings."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from dagster_dvc import DvcProject, DvcResource, build_dvc_assets, build_dvc_sources
from dvc_project.cache import Cache
from dvc_project.errors import DvcProjectError
from dvc_project.repository import repository_of, settings
from tests.support import dvc_itself

GRAPH = """
vars: [flags: {fast: false, on: [x, y]}]
stages:
  a: {cmd: "cat in/x.txt > a; echo ${flags} >> a", deps: [in, ../data], outs: [a]}
  b: {cmd: "cat a ../other/o > b", deps: [a, ../other/o], outs: [b]}
"""
OTHER = "stages:\n  o: {cmd: echo o > o, outs: [o]}\n"


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where DVC looks for the user's and the system's settings."""
    for level in ("SYSTEM", "GLOBAL"):
        (tmp_path / level).mkdir()
        monkeypatch.setenv(f"DVC_{level}_CONFIG_DIR", str(tmp_path / level))
    return tmp_path


@pytest.fixture
def sub(tmp_path: Path) -> Path:
    top = dvc_itself.lay_out(
        tmp_path / "top",
        {
            "sub/dvc.yaml": GRAPH, "other/dvc.yaml": OTHER, ".dvcignore": "*.log\n/sub/in/deep/gone\n",
            "sub/.dvcignore": "!kept.log\n*.tmp\n/in/top.only\n",
            "sub/in/x.txt": "1\n", "data/f": "data\n",
        },
        settings="[cache]\n    dir = ../shared-cache\n",
    )  # fmt: skip
    with dvc_itself.repository(top) as repo:
        repo.add("data")
    return top / "sub"


NOISE = ["in/a.log", "in/x.tmp", "in/top.only", "in/deep/gone/f", "in/inner/.dvc/config", "in/inner/f"]
VISIBLE = ["in/kept.log", "in/deep/top.only", "in/deep/x"]


@pytest.mark.slow
def test_settings_and_ignored_files_of_the_top_count(sub: Path) -> None:
    top = sub.parent
    (top / ".dvc/config.local").write_text("[parsing]\n    list = append\n    bool = boolean_optional\n")
    project = dvc_itself.same_graph(sub)
    assert project.stages["a"].cmd == "cat in/x.txt > a; echo --no-fast --on x --on y >> a"
    dvc_itself.reproduce(top, "other/dvc.yaml:o")
    dvc_itself.reproduce(sub)
    assert dvc_itself.agreed(sub) == set()
    for name in NOISE:
        dvc_itself.write(sub, {name: "noise"})
        assert dvc_itself.agreed(sub) == set(), name
    for name in VISIBLE:
        dvc_itself.write(sub, {name: "seen"})
        assert dvc_itself.agreed(sub) == {"a"}, name
        (sub / name).unlink()
    dvc_itself.write(top, {"other/o": "edited"})
    assert dvc_itself.agreed(sub) == {"b"} and dvc_itself.agreed(top / "other") == {"o"}
    md5 = project.read_lock().md5_of("a")
    assert md5 and Cache(sub).path(md5).read_bytes() == (sub / "a").read_bytes()
    assert Cache(sub).folder == top / "shared-cache"


@pytest.mark.slow
def test_a_run_by_dagster_makes_no_second_repository(sub: Path) -> None:
    dvc_itself.reproduce(sub.parent, "other/dvc.yaml:o")
    project = DvcProject(sub)
    assert [(out.path, out.file) for out in project.tracked] == [("../data", "../data.dvc")]
    result = dg.materialize(
        [*build_dvc_assets(project), *build_dvc_sources(project)],
        resources={"dvc": DvcResource(project_dir=str(sub))},
        raise_on_error=False,
    )
    assert result.success and not (sub / ".dvc").exists() and repository_of(sub) == sub.parent
    assert dvc_itself.agreed(sub) == set()


def test_the_last_word_among_settings(shared: Path, sub: Path) -> None:
    """System, user, repository, local: later ones win, each with paths relative to its own folder."""
    from dvc.config import Config

    top = sub.parent
    written = {
        shared / "SYSTEM/config": "[cache]\n    dir = a\n[core]\n    hardlink_lock = true\n    remote = s\n",
        shared / "GLOBAL/config": "[core]\n    hardlink_lock = false\n['remote \"s\"']\n    url = store # near\n",
        top / ".dvc/config": "[cache]\n    dir = '../b'\n['remote \"t\"']\n    url = s3://bucket/x\n",
        top / ".dvc/config.local": "['remote \"s\"']\n    url = ../local\n",
    }
    for count, (file, text) in enumerate(written.items(), 1):
        file.write_text(text)
        for later in list(written)[count:]:
            later.unlink(missing_ok=True)
        ours, theirs = settings(sub), Config(str(top / ".dvc"))
        assert ours.get("cache", "dir") == theirs["cache"]["dir"]
        assert ours.getboolean("core", "hardlink_lock") == theirs["core"]["hardlink_lock"]
        for name, remote in theirs["remote"].items():
            assert ours.get(f"'remote \"{name}\"'", "url") == remote["url"]
    (top / ".dvc/config").write_text("no section\n")
    with pytest.raises(DvcProjectError, match=r"\.dvc/config: not DVC's settings"):
        settings(sub)


def test_deps_outside_the_repository(shared: Path) -> None:
    """An absolute path and one of a remote are hashed where they lie; one inside is a spelling."""
    root = dvc_itself.lay_out(shared / "top", {"in/x": "1\r\n"}, f"['remote \"near\"']\n    url = {shared}/store\n")
    dvc_itself.write(shared, {"store/s": "s\r\n", "away": "1\r\n"})
    graph = (
        f'stages:\n  a: {{cmd: "echo a > a", deps: ["{root}/in/x", "{shared}/away", "remote://near/s"], outs: [a]}}\n'
    )
    (root / "dvc.yaml").write_text(graph)
    assert DvcProject(root).stages["a"].deps == ("in/x", f"{shared}/away", "remote://near/s")
    dvc_itself.reproduce(root)
    assert dvc_itself.agreed(root) == set()
    for name in ("store/s", "away", "top/in/x"):
        before = (shared / name).read_bytes()
        dvc_itself.write(shared, {name: "edited"})
        assert dvc_itself.agreed(root) == {"a"}, name
        dvc_itself.write(shared, {name: before})
        assert dvc_itself.agreed(root) == set()
