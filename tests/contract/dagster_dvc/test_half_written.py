"""Half of one of DVC's own files, as a kill leaves it: the next run goes on, and nothing is run again."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from dagster_dvc import DvcProject
from dagster_dvc.half_written import HALF, put_aside
from dagster_dvc.process import Completed
from dagster_dvc.tidying import tidy_up
from pipelines import repro
from pipelines.repro import reproduce
from tests.support import dvc_graphs as graphs

pytestmark = pytest.mark.slow


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    root = graphs.make_chain(tmp_path / "project")
    graphs.dvc(root, "repro", "-q")
    return root


def test_half_a_lock_is_put_aside_and_its_stages_are_restored(finished: Path) -> None:
    whole = (finished / "dvc.lock").read_bytes()
    (finished / "dvc.lock").write_bytes(whole[:200])
    (finished / ".dvc/tmp/rwlock").write_text('{"a')
    said: list[str] = []
    assert reproduce(finished, 1, said.append) == 0
    assert (finished / "dvc.lock").read_bytes() == whole
    assert (finished / ".dvc/tmp" / HALF).read_bytes() == whole[:200]
    assert [line.split(" that ")[0] for line in said] == [
        "removed a half-written .dvc/tmp/rwlock", "moved a half-written dvc.lock",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "half", [b"", b"\0" * 400, b"schema: '2", b"schema: '2.0'\nstages:\n  a:\n    cmd: x\n   deps"]
)
def test_what_holds_no_whole_record_is_moved_away(finished: Path, half: bytes) -> None:
    (finished / "dvc.lock").write_bytes(half)
    assert len(put_aside(finished)) == 1 and not (finished / "dvc.lock").exists()
    assert (finished / ".dvc/tmp" / HALF).read_bytes() == half


def test_wherever_it_was_cut_dvc_takes_what_is_left_and_no_whole_record_is_lost(finished: Path) -> None:
    lock, whole = finished / "dvc.lock", (finished / "dvc.lock").read_bytes()
    stages = DvcProject(finished).lock()
    ends = dict(
        zip(stages, [*(whole.index(f"\n  {name}:".encode()) for name in list(stages)[1:]), len(whole)], strict=True)
    )
    cuts = [cut for cut in range(0, len(whole), 5) if cut == 0 or whole[cut - 1 : cut] != b"\n"]
    for cut in cuts:
        lock.write_bytes(whole[:cut])
        put_aside(finished)
        kept = DvcProject(finished).lock()  # DVC takes it, or it is gone
        assert all(kept.get(name) == entry for name, entry in stages.items() if ends[name] < cut), cut
    assert len(list((finished / ".dvc/tmp").glob(f"{HALF}*"))) > 20, "an earlier half is not written over"


UNFAMILIAR = {
    "a merge's conflict": lambda text: text.replace("stages:", "<<<<<<< ours\nstages:\n=======\n>>>>>>> theirs"),
    "a conflict at the end": lambda text: text + "<<<<<<< ours\n  d:\n=======\n>>>>>>> theirs",
    "DVC 1": lambda text: text.split("stages:\n")[1].replace("\n  ", "\n").strip(),
    "a newer schema": lambda text: text.replace("2.0", "3.0").rstrip(),
    "data sets alone": lambda _text: "schema: '2.0'\ndatasets:\n- {name: d, type: url, url: u, meta: {}}",
    "another section": lambda text: f"{text}more: {{}}",
    "an edit": lambda text: text.replace("    deps:\n", "    deps: \n  - \n", 1).rstrip(),
    "a comment": lambda text: f"# kept by hand\n{text[:200]}",
    "no text": lambda _text: "\x01\x02",
}


@pytest.mark.parametrize("what", UNFAMILIAR)
def test_nothing_is_taken_for_half_because_it_is_unfamiliar(finished: Path, what: str) -> None:
    text = UNFAMILIAR[what]((finished / "dvc.lock").read_text())
    (finished / "dvc.lock").write_text(text)
    (finished / ".dvc/tmp/rwlock").write_text("[]")
    assert put_aside(finished) == [] and (finished / "dvc.lock").read_text() == text
    assert (finished / ".dvc/tmp/rwlock").read_text() == "[]"


def test_nothing_is_touched_that_dvc_writes_just_now(finished: Path) -> None:
    whole = (finished / "dvc.lock").read_bytes()
    assert put_aside(finished) == []
    (finished / "dvc.lock").write_bytes(whole[:200])
    with (finished / ".dvc/tmp/lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert put_aside(finished) == [] and (finished / "dvc.lock").exists()


def test_a_stop_leaves_no_half_of_dvcs_own_files(finished: Path) -> None:
    """A DVC that is interrupted while it writes empties its file first; the next plain `dvc repro` would refuse it."""
    (finished / ".dvc/tmp/rwlock").write_text("")
    said: list[str] = []
    repro._repair(finished, said.append)
    assert not (finished / ".dvc/tmp/rwlock").exists() and "half-written .dvc/tmp/rwlock" in said[0]

    (finished / ".dvc/tmp/rwlock").write_text('{"write": {')
    project = DvcProject(finished)
    stage = next(iter(project.stages.values()))
    assert "half-written .dvc/tmp/rwlock" in tidy_up(project, stage, Completed(-2, "", "", 0.0))[0]
