"""A full disk and a silent server cost metrics at most, and seconds: never the stage."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from paco_core.io.files import append_line
from paco_core.runtime.tracking import Tracker, access_digest, open_run, send_left_over, sender, tracking_uri
from paco_core.runtime.tracking.journal import FOLDER, RunJournal
from paco_core.runtime.tracking.store import artifact_location
from tests.support.tracked import runs
from tests.support.waiting import until

# --- a full disk -----------------------------------------------------------------------------------------

LIMITED = """
    import resource, signal, sys
    from pathlib import Path
    from paco_core.io.files import append_line
    path = Path(sys.argv[1])
    append_line(path, b"first\\n")
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))  # the kernel takes four bytes, then refuses
    try:
        append_line(path, b"second\\n")
    except OSError as error:
        print(error.strerror)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    append_line(path, b"third\\n")
"""


def test_a_line_that_does_not_fit_is_cut_off_again(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    code = [sys.executable, "-c", textwrap.dedent(LIMITED), str(file)]
    result = subprocess.run(code, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "File too large\n"), result.stderr
    assert file.read_bytes() == b"first\nthird\n"


def test_a_write_that_takes_a_part_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data)[:3])

    monkeypatch.setattr(Path, "open", lambda path, *_args, **_settings: Short(path, "ab"))
    append_line(tmp_path / "lines", b"a line in parts\n")
    monkeypatch.undo()
    assert (tmp_path / "lines").read_bytes() == b"a line in parts\n"


@pytest.fixture
def small_disk(project: Path) -> Iterator[Path]:
    """The project's `.paco` on a file system of 256 kB; what fills it."""
    state = project / ".paco"
    state.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(state)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("no file system may be mounted here")
    yield state / "ballast"
    subprocess.run(["umount", "--lazy", str(state)], check=True)


def fill(ballast: Path) -> None:
    with ballast.open("ab", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(512))
        except OSError:
            pass


def test_a_disk_that_is_full_for_a_while_costs_what_was_told_then(project: Path, small_disk: Path) -> None:
    messages: list[str] = []
    with open_run(project, "paco/x", "x", {}, print_line=messages.append) as tracker:
        tracker.metrics({"before": 1.0})
        fill(small_disk)
        for step in range(200):  # the last block of the file has room for some
            tracker.metrics({"during": float(step)}, step)
        tracker.image(Image.new("RGB", (64, 64), "red"), "picture")
        tracker.text("x" * 9000, "notes.txt")
        tracker.artifact(project / "profiles")
        small_disk.unlink()
        tracker.metrics({"after": 2.0})
        dropped = tracker.dropped
    assert dropped > 100
    assert "No space left on device" in messages[0] and str(dropped) in messages[1]
    until(lambda: send_left_over(project).waiting == 0)
    run = runs(project)["x"]
    assert run.info.status == "FINISHED" and run.data.tags["paco.dropped"] == str(dropped)
    assert {"before", "after"} <= run.data.metrics.keys()
    until(lambda: not [*(project / FOLDER).iterdir()])  # nothing of a file that did not fit is left


@pytest.mark.slow
def test_a_run_whose_disk_stays_full_ends_killed(project: Path, small_disk: Path) -> None:
    messages: list[str] = []
    fill(small_disk)
    with open_run(project, "paco/x", "none", {}, print_line=messages.append) as tracker:
        assert tracker.run_id is None, "not even a journal can begin"
    assert len(messages) == 1 and "No space left" in messages.pop()
    small_disk.unlink()
    header = {
        "kind": "run", "experiment": "paco/x", "name": "x", "tags": {}, "uri": tracking_uri(project),
        "artifacts": artifact_location(project), "access": access_digest(tracking_uri(project), os.environ),
    }  # fmt: skip
    tracker = Tracker(project, tracking_uri(project), header, messages.append)
    tracker.metrics({"before": 1.0})
    fill(small_disk)
    for step in range(200):
        tracker.metrics({"during": float(step)}, step)
    fill(small_disk)
    tracker.end("FINISHED", patience_s=2.0)  # the sender cannot write how far it came
    assert "No space left on device" in messages[0] and "KILLED" in messages[0]
    small_disk.unlink()
    until(lambda: send_left_over(project).waiting == 0 and runs(project)["x"].info.status == "KILLED")
    assert {"before", "during"} <= runs(project)["x"].data.metrics.keys() and "none" not in runs(project)


# --- a server that keeps silent --------------------------------------------------------------------------


class Clock:
    """Time that passes by sleeping only."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Silent:
    """A sender that lives and delivers nothing."""

    def poll(self) -> None:
        return None


def test_a_stage_waits_for_a_silent_server_no_longer_than_it_may_in_all(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(sender, "start", lambda *_args: Silent())
    monkeypatch.setattr(sender, "time", clock)
    outbox = sender.Outbox(RunJournal.begin(project, {"kind": "run", "access": "a"}), project, patience_s=20.0)
    for wait in (outbox.delivered, outbox.delivered, outbox.close):
        assert wait().run_id is None
    assert 19.9 <= clock.now <= 20.1
    hurried = sender.Outbox(RunJournal.begin(project, {"kind": "run", "access": "a"}), project, patience_s=20.0)
    hurried.close(5.0)  # as after SIGTERM
    assert 24.9 <= clock.now <= 25.2
