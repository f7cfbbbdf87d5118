"""What the Dagster face costs over the bare graph: ``python speed/orchestration.py [PART ...]``, all by default.

======== ============================================================================================================
load     seconds to load this project's code location
overhead a forced run of a stage that does nothing: by ``dvc repro``, and as an asset
sensor   first and idle tick of the sensor that mirrors ``dvc.lock``, over a chain of 200 stages
stop     from the interrupt that Dagster sends on Terminate until step, DVC and stage are gone
noop     ``dvc repro`` of the whole graph when there is nothing to do (needs a project that ``dvc repro`` has run)
eventlog events and bytes that a full run writes: every asset with its checks, materialised once, unchanged (the same)
eight    eight partitions at once, an MLflow server killed in mid-run, a Ray worker killed in mid-run: the seconds that
outage   their tests take, which count what was lost
ray
======== ============================================================================================================

Small DVC projects are made in a temporary folder; ``--project DIR`` (by default where this file lies) is one that
``dvc repro`` has run. ``--event-log HOME`` weighs a DAGSTER_HOME of real runs instead of making one. Prints a table and
writes JSON beside this file, where parts that were not run keep their figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STAGES = 200
CHAIN = "stages:\n  first:\n    cmd: echo 1 > out0\n    outs: [out0]\n"
LONG = "stages: {slow: {cmd: 'touch begun; sleep 600', outs: [slow.out]}}\n"
DEFINITIONS = """
import sys
sys.path.insert(0, {root!r})
import dagster as dg
from pathlib import Path
from dagster_dvc import DvcProject, DvcResource, build_dvc_assets, build_dvc_lock_sensor
project = DvcProject(Path({project!r}))
defs = dg.Definitions(
    assets=build_dvc_assets(project),
    sensors=[build_dvc_lock_sensor(project)],
    resources={{"dvc": DvcResource(project_dir=str(project.root), grace_seconds=8)}},
)
"""


@dataclass(frozen=True)
class Given:
    """What the command line says, and a folder for small projects."""

    folder: Path
    project: Path
    event_log: Path | None


Figures = Mapping[str, float]


def project(root: Path, graph: str) -> Path:
    """A DVC project without git."""
    root.mkdir(parents=True)
    (root / "dvc.yaml").write_text(graph)
    (root / "params.yaml").write_text("{}\n")
    (root / ".dvc" / "tmp").mkdir(parents=True)
    (root / ".dvc" / "config").write_text(
        "[core]\n    no_scm = True\n    analytics = false\n    check_update = false\n"
    )
    (root / "definitions.py").write_text(DEFINITIONS.format(root=str(ROOT), project=str(root)))
    return root


def run(code: str, cwd: Path, **env: str) -> str:
    """Run Python code in a fresh process; what it printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONWARNINGS": "ignore", **env}
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return done.stdout


def seconds(act: Callable[[], object], times: int = 3) -> float:
    """The median of some calls."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def load(_given: Given) -> Figures:
    """In a fresh process, interpreter excluded."""
    code = (
        "import time; b = time.perf_counter(); import pipelines.definitions as d; d.defs.get_repository_def();"
        "print(time.perf_counter() - b)"
    )
    return {"code_location_loads_s": statistics.median(float(run(code, ROOT)) for _ in range(3))}


def dvc(root: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=root, check=True, capture_output=True)


def overhead(given: Given) -> Figures:
    root = project(given.folder / "one", CHAIN)
    dvc(root, "repro", "-q")
    bare = seconds(lambda: dvc(root, "--wait-for-lock", "repro", "--single-item", "--force", "-q", "first"))
    code = (
        "import time, logging; from definitions import defs; import dagster as dg; logging.disable(logging.CRITICAL)\n"
        "taken = []\n"
        "with dg.DagsterInstance.ephemeral() as instance:\n"
        "    for _ in range(4):\n"
        "        b = time.perf_counter()\n"
        "        dg.materialize(list(defs.assets), resources=defs.resources, instance=instance,"
        " tags={'dvc/force': 'true'})\n"
        "        taken.append(time.perf_counter() - b)\n"
        "print('seconds', sorted(taken[1:])[1])"
    )
    asset = float(run(code, root).rsplit("seconds", 1)[1])
    return {"bare_dvc_repro_s": bare, "the_same_as_an_asset_s": asset, "overhead_s": asset - bare}


def sensor(given: Given) -> Figures:
    """First tick (an empty instance learns all) and an idle one."""
    links = [
        f"  s{n}:\n    cmd: cp out{n - 1} out{n}\n    deps: [out{n - 1}]\n    outs: [out{n}]\n"
        for n in range(1, STAGES)
    ]
    root = project(given.folder / "many", CHAIN + "".join(links))
    dvc(root, "repro", "-q")
    code = (
        "import time; from definitions import defs; import dagster as dg; r = defs.get_repository_def()\n"
        "with dg.DagsterInstance.local_temp() as instance:\n"
        "    for _ in range(2):\n"
        "        context = dg.build_sensor_context(instance=instance, repository_def=r)\n"
        "        b = time.perf_counter()\n"
        "        r.get_sensor_def('dvc_lock').evaluate_tick(context)\n"
        "        print(time.perf_counter() - b)"
    )
    first, idle = (float(line) for line in run(code, root).split())
    return {"stages": STAGES, "first_sensor_tick_s": first, "idle_sensor_tick_s": idle}


def stop(given: Given) -> Figures:
    root = project(given.folder / "long", LONG)
    code = (
        "from definitions import defs; import dagster as dg\n"
        "dg.materialize(list(defs.assets), resources=defs.resources, raise_on_error=False)"
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env, null = {**os.environ, "PATH": path}, subprocess.DEVNULL
    step = subprocess.Popen([sys.executable, "-c", code], cwd=root, env=env, stdout=null, stderr=null)
    while not (root / "begun").exists():
        if step.poll() is not None:
            raise SystemExit("the stage that was to be stopped ended by itself")
        time.sleep(0.02)
    began = time.perf_counter()
    step.send_signal(signal.SIGINT)
    step.wait()
    return {"a_stopped_run_is_gone_after_s": time.perf_counter() - began}


def needs_a_run(root: Path) -> None:
    """The whole graph must have run, and nothing changed since."""
    told = subprocess.run([sys.executable, "-m", "dvc", "status", "--json"], cwd=root, capture_output=True, text=True)
    if not (root / "dvc.lock").is_file() or told.returncode or json.loads(told.stdout or "{}"):
        raise SystemExit(f"{root}: not up to date; run `dvc repro` there, or name another project with --project")


def noop(given: Given) -> Figures:
    needs_a_run(given.project)
    return {"dvc_no_op_s": seconds(lambda: dvc(given.project, "repro", "-q"))}


def eventlog(given: Given) -> Figures:
    """Every asset, a run a partition, with all checks of the asset; nothing is made again."""
    if given.event_log is not None:
        return weigh(given.event_log)
    needs_a_run(given.project)
    home = given.folder / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    code = (
        "import logging; import dagster as dg; from pipelines.definitions import defs\n"
        "logging.disable(logging.CRITICAL)\n"
        "assets = [a for a in defs.assets if any('dvc/stage' in s.metadata for s in a.specs)]\n"
        "with dg.DagsterInstance.get() as instance:\n"
        "    for asset in assets:\n"
        "        checks = [c for c in defs.asset_checks if c.check_key.asset_key == asset.key]\n"
        "        parts = asset.partitions_def.get_partition_keys() if asset.partitions_def else [None]\n"
        "        for key in parts:\n"
        "            done = dg.materialize([asset, *checks], partition_key=key, instance=instance,"
        " resources=defs.resources, raise_on_error=False)\n"
        "            assert done.get_asset_materialization_events(), asset.key\n"
    )
    run(code, given.project, DAGSTER_HOME=str(home), PYTHONPATH=str(given.project))
    return weigh(home)


def weigh(home: Path) -> Figures:
    """Runs, events and bytes of events in a DAGSTER_HOME with SQLite storage."""
    runs = events = size = 0
    for store in (home / "history" / "runs").glob("*-*.db"):
        with sqlite3.connect(store) as database:
            count, bytes_ = database.execute(
                "select count(*), coalesce(sum(length(event)), 0) from event_logs"
            ).fetchone()
        runs, events, size = runs + 1, events + count, size + bytes_
    return {"runs": runs, "events": events, "event_bytes": size}


def timed_test(name: str, *tests: str) -> Callable[[Given], Figures]:
    """A part that is a test: it fails where the test does, and reports how long it took, set-up included."""

    def part(_given: Given) -> Figures:
        command = [sys.executable, "-m", "pytest", "-q", *tests]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        told = re.search(r"^(\d+) passed(, \d+ (deselected|warnings?))* in ([\d.]+)s", done.stdout, re.MULTILINE)
        if done.returncode or told is None:
            raise SystemExit(f"{name}: not all tests passed\n{done.stdout[-3000:]}")
        return {f"{name}_tests_passed": int(told[1]), f"{name}_s": float(told[4])}

    return part


PARTS: dict[str, Callable[[Given], Figures]] = {
    "load": load,
    "overhead": overhead,
    "sensor": sensor,
    "stop": stop,
    "noop": noop,
    "eventlog": eventlog,
    "eight": timed_test("eight_partitions", "tests/pipelines/test_dvc_parallel.py"),
    "outage": timed_test("mlflow_outage", "tests/e2e/test_mlflow_outage.py", "-k", "killed_in_mid_run"),
    "ray": timed_test("ray_kill", "tests/runtime/test_launchers_ray.py", "-k", "killed"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of: {', '.join(PARTS)}")
    parser.add_argument("--project", type=Path, default=ROOT, metavar="DIR", help="one that `dvc repro` has run")
    parser.add_argument("--event-log", type=Path, metavar="HOME", help="weigh this DAGSTER_HOME, not a run of our own")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - PARTS.keys():
        parser.error(f"no part {min(unknown)}; there are: {', '.join(PARTS)}")
    target = Path(__file__).with_suffix(".json")
    figures = json.loads(target.read_text())["figures"] if target.is_file() else {}
    for name in arguments.parts or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            load_average = os.getloadavg()[0]
            found = PARTS[name](Given(Path(folder), arguments.project.resolve(), arguments.event_log))
        print(f"{name} (load average before: {load_average:.1f})")
        for figure, value in found.items():
            print(f"  {figure:32s} {value:12.2f}", flush=True)
        figures[name] = {**found, "load_average_before": load_average}
        machine = {"python": platform.python_version(), "cores": os.cpu_count()}
        target.write_text(json.dumps({"machine": machine, "figures": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
