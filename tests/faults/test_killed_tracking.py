"""Figures on their way to MLflow, with the writer, the deliverer or the server killed: each arrives, and once."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import mlflow
import pytest
from PIL import Image

from paco_core.runtime.tracking import open_run, send_left_over
from paco_core.runtime.tracking.journal import RunJournal, journals
from tests.faults import micro
from tests.faults.verdicts import Ledger, Outcome
from tests.support import forked
from tests.support.loopback import Loopback, Quiet
from tests.support.serving_fakes import silence
from tests.support.waiting import until

Breach = tuple[Outcome, str] | None
STEPS = 25
SILENT_S = 45.0  # that a MLflow which never answers may cost a stage of a second, from start to end


@pytest.fixture(autouse=True)
def imported() -> None:
    """What a fork needs, before the first one."""
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401


def project(tmp_path: Path, template: Path, number: int) -> Path:
    root = tmp_path / str(number)
    root.mkdir()
    shutil.copy(template, root / "mlflow.db")
    return root


def write(root: Path) -> None:
    """A run of some figures; each is written down in ``acknowledged`` once the tracker has taken it."""
    micro.quiet_tracking()
    taken = os.open(root / "acknowledged", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    with open_run(root, "faults", "run", {}, say=print) as tracker:
        for step in range(STEPS):
            tracker.metrics({"loss": step / 7}, step)
            os.write(taken, f"{step}\n".encode())
        tracker.image(Image.new("RGB", (4, 4)), "picture")
        tracker.text("a word", "word.txt")


def stored(root: Path) -> tuple[Counter[int], str, int]:
    """How often each step is in the store, the run's status, and how many runs there are."""
    client = mlflow.MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    if not runs:
        return Counter(), "none", 0
    found = client.get_metric_history(runs[0].info.run_id, "loss")
    return Counter(point.step for point in found), str(runs[0].info.status), len(runs)


def miscounted(root: Path, acknowledged: set[int]) -> Breach:
    """Figures that were taken and are not there, or are there twice."""
    steps, status, runs = stored(root)
    if missing := acknowledged - set(steps):
        return "lost", f"{len(missing)} of {len(acknowledged)} figures, e.g. of step {min(missing)}"
    if runs > 1 or any(count > 1 for count in steps.values()):
        return "doubled", f"{runs} runs, {max(steps.values(), default=0)} times the same figure"
    if runs and status not in ("FINISHED", "KILLED"):
        return "wrong", f"the run stands as {status}"
    return None


def sent(root: Path) -> Breach:
    """Send what is left, as the next stage or `paco sync` does."""
    done = send_left_over(root)
    return ("unclear", done.text()) if done.waiting or done.problems else None


def acknowledged(root: Path) -> set[int]:
    file = root / "acknowledged"
    return {int(line) for line in file.read_text().split()} if file.is_file() else set()


def test_the_writer(tmp_path: Path, mlflow_template: Path, ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    whole_root = project(tmp_path, mlflow_template, 0)
    whole = forked.run(lambda: write(whole_root), whole_root, count=True)
    assert whole.code == 0, whole.text
    with ledger.row("signal 9", "stage, while it reports figures") as row:
        for number, moment in enumerate(whole.moments(random.Random("writer"), tries(16, 3)), start=1):
            root = project(tmp_path, mlflow_template, number)
            ended = forked.run(lambda root=root: write(root), root, moment)
            if ended.killed:
                row.judge(str(moment), sent(root), miscounted(root, acknowledged(root)))


def test_the_deliverer(tmp_path: Path, mlflow_template: Path, ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    def made(number: int) -> Path:
        root = project(tmp_path, mlflow_template, number)
        assert forked.run(lambda: write(root), root).code == 0
        return root

    root = made(0)
    whole = forked.run(lambda: send_left_over(root), root, count=True)
    assert whole.code == 0 and set(stored(root)[0].values()) == {1}, whole.text
    with ledger.row("signal 9", "process that sends figures") as row:
        for number, moment in enumerate(whole.moments(random.Random("sender"), tries(14, 2)), start=1):
            root = made(number)
            ended = forked.run(lambda root=root: send_left_over(root), root, moment)
            if ended.killed:
                left = ("wrong", "a journal is left") if sent(root) is None and journals(root) else None
                row.judge(str(moment), sent(root), miscounted(root, set(range(STEPS))), left)


def test_a_damaged_line_in_the_middle(tmp_path: Path, mlflow_template: Path, ledger: Ledger) -> None:
    """A journal is written a whole line at a time, so this is a damaged disk: the line is named, the rest waits."""
    with ledger.row("torn line", "journal of a run") as row:
        for number, cut in enumerate((1, 9, 30)):
            root = project(tmp_path, mlflow_template, number)
            assert forked.run(lambda root=root: write(root), root).code == 0
            (journal,) = journals(root)
            lines = journal.events.read_bytes().splitlines(keepends=True)
            lines[10] = lines[10][:cut] + b"\n"
            journal.events.write_bytes(b"".join(lines))
            done = send_left_over(root)
            named = any(f"{journal.events}, byte {sum(map(len, lines[:10]))}" in problem for problem in done.problems)
            journal.events.write_bytes(b"".join(lines[:10] + lines[11:]))  # somebody takes the named line out
            send_left_over(root)
            steps = stored(root)[0]
            rest = {n for n in range(STEPS) if f'"step": {n},'.encode() in b"".join(lines)}
            lost = ("lost", f"{len(rest - set(steps))} whole figures stay behind: {done.text()[:160]}")
            row.judge(
                f"cut after {cut} bytes",
                None if rest <= set(steps) else lost,
                None if named else ("unclear", f"does not name the line: {done.text()[:160]}"),
                None if max(steps.values()) == 1 else ("doubled", "a figure came twice"),
            )


@pytest.mark.faults
def test_a_server_that_takes_connections_and_never_answers(bare: Path, tmp_path: Path, ledger: Ledger) -> None:
    class Silent(Quiet):
        do_GET = do_POST = lambda self: silence(self)

    root = tmp_path / "project"
    shutil.copytree(bare, root, symlinks=True)
    with Loopback(Silent) as server, ledger.row("no answer", "MLflow") as row:
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "paco_core", "run", "prompts"],
            cwd=root, env={**os.environ, "MLFLOW_TRACKING_URI": server.url}, capture_output=True, text=True,
        )  # fmt: skip
        took = time.monotonic() - began
        kept = sum(RunJournal(place.home).count_waiting() for place in journals(root))
        row.judge(
            "during a whole stage",
            ("unclear", f"the stage failed: {done.stderr[-300:]}") if done.returncode else None,
            ("unclear", f"a stage of a second took {took:.0f} s") if took > SILENT_S else None,
            None if kept else ("lost", "its figures were not kept"),
        )


@pytest.mark.faults
@pytest.mark.timeout(400)
def test_the_server(
    tmp_path: Path, project_root: Path, mlflow_template: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real MLflow server, killed three times while a real sender sends to it."""
    from tests.e2e.test_mlflow_outage import Server

    folder = tmp_path / "server"
    folder.mkdir()
    server = Server(folder, mlflow_template)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    try:
        server.start()
        with ledger.row("signal 9", "MLflow server") as row:
            for attempt, stop in enumerate(random.Random("server").sample(range(10, 180), 3)):
                name = f"run {attempt}"
                script = WRITER.format(name=name, url=server.url, root=str(project_root), stop=stop)
                child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                assert child.stdin is not None and child.stdout is not None
                child.stdout.readline()  # it has come so far
                server.kill()
                child.stdin.write(b"\n")
                child.stdin.flush()
                time.sleep(0.5)
                server.start()
                child.communicate(timeout=200)
                until(lambda: not send_left_over(project_root).waiting and not journals(project_root), 60)
                row.judge(f"after step {stop}", twice_or_never(server.url, name, 200))
    finally:
        server.kill()


def twice_or_never(url: str, name: str, steps: int) -> Breach:
    client = mlflow.MlflowClient(url)
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()], f"attributes.run_name = '{name}'")
    if len(runs) != 1:
        return ("lost", "no run") if not runs else ("doubled", f"{len(runs)} runs")
    found = Counter(point.step for point in client.get_metric_history(runs[0].info.run_id, "loss"))
    if set(found) != set(range(steps)):
        return "lost", f"{steps - len(found)} figures"
    return ("doubled", "figures") if max(found.values()) > 1 else None


WRITER = """
import os, sys
os.environ.update(MLFLOW_TRACKING_URI="{url}", MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING="false")
from pathlib import Path
from paco_core.runtime import tracking
tracking.PATIENCE_S = 150.0
with tracking.open_run(Path("{root}"), "faults", "{name}", {{}}) as tracker:
    assert tracker.run_id
    for step in range(200):
        tracker.metrics({{"loss": step / 7}}, step)
        if step == {stop}:
            print("here", flush=True)
            sys.stdin.readline()
"""


@pytest.fixture
def project_root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    return root
