"""What the Dagster face costs over the bare graph: ``python benchmarks/orchestration.py [--project DIR]``.

Builds small DVC projects in a temporary folder and times the real dvc and the real Dagster on them; the
project's own code location is loaded from where this file lies. Prints a table and writes JSON beside it.
``--project`` (by default where this file lies) is a project that ``dvc repro`` has run: its no-op is timed, and every
asset is materialised once, unchanged, in an empty DAGSTER_HOME whose event log is weighed; both are NaN where
something is out of date. ``--event-log`` weighs another DAGSTER_HOME instead, that of a person's runs say.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
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
from pipelines.dvc import DvcProject, DvcResource, build_dvc_assets, build_dvc_lock_sensor
project = DvcProject(Path({project!r}))
defs = dg.Definitions(
    assets=build_dvc_assets(project),
    sensors=[build_dvc_lock_sensor(project)],
    resources={{"dvc": DvcResource(project_dir=str(project.root), grace_seconds=8)}},
)
"""


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


def load_time() -> float:
    """Seconds to import the code location and to build its repository, in a fresh process, interpreter excluded."""
    code = (
        "import time; b = time.perf_counter(); import pipelines.definitions as d; d.defs.get_repository_def();"
        "print(time.perf_counter() - b)"
    )
    return statistics.median(float(run(code, ROOT)) for _ in range(3))


def dvc(root: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=root, check=True, capture_output=True)


def materialise_overhead(folder: Path) -> tuple[float, float]:
    """A forced run of a stage that does nothing: by ``dvc repro`` alone, and as an asset in a running process."""
    root = project(folder / "one", CHAIN)
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
    return bare, float(run(code, root).rsplit("seconds", 1)[1])


def sensor_tick(folder: Path) -> tuple[float, float]:
    """First tick (an empty instance learns all) and an idle one, over a chain of :data:`STAGES` stages."""
    links = [
        f"  s{n}:\n    cmd: cp out{n - 1} out{n}\n    deps: [out{n - 1}]\n    outs: [out{n}]\n"
        for n in range(1, STAGES)
    ]
    root = project(folder / "many", CHAIN + "".join(links))
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
    return first, idle


def stop_time(folder: Path) -> float:
    """From the interrupt that Dagster sends on Terminate until the step, DVC and its stage are gone."""
    root = project(folder / "long", LONG)
    code = (
        "from definitions import defs; import dagster as dg\n"
        "dg.materialize(list(defs.assets), resources=defs.resources, raise_on_error=False)"
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    step = subprocess.Popen([sys.executable, "-c", code], cwd=root, env={**os.environ, "PATH": path}, **quiet)
    while not (root / "begun").exists():
        time.sleep(0.02)
    began = time.perf_counter()
    step.send_signal(signal.SIGINT)
    step.wait()
    return time.perf_counter() - began


def up_to_date(root: Path) -> bool:
    """Whether the whole graph has run and nothing changed since."""
    told = subprocess.run([sys.executable, "-m", "dvc", "status", "--json"], cwd=root, capture_output=True, text=True)
    return (root / "dvc.lock").is_file() and told.returncode == 0 and json.loads(told.stdout or "{}") == {}


def no_op(root: Path) -> float:
    """``dvc repro`` of the whole graph when there is nothing to do."""
    return seconds(lambda: dvc(root, "repro", "-q"))


def full_run(root: Path, home: Path) -> dict[str, int]:
    """Every asset of the graph materialised once in an empty DAGSTER_HOME: what it wrote to the event log."""
    home.mkdir()
    code = (
        "import logging; import dagster as dg; from pipelines.definitions import defs\n"
        "logging.disable(logging.CRITICAL)\n"
        "assets = [a for a in defs.assets if any('dvc/stage' in s.metadata for s in a.specs)]\n"
        "with dg.DagsterInstance.get() as instance:\n"
        "    for asset in assets:\n"
        "        parts = asset.partitions_def.get_partition_keys() if asset.partitions_def else [None]\n"
        "        for key in parts:\n"
        "            dg.materialize([asset], partition_key=key, instance=instance, resources=defs.resources)\n"
    )
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    run(code, root, DAGSTER_HOME=str(home), PYTHONPATH=str(root))
    return event_log(home)


def event_log(home: Path) -> dict[str, int]:
    """Runs, events and bytes of events in a DAGSTER_HOME with SQLite storage."""
    runs = events = size = 0
    for store in (home / "history" / "runs").glob("*-*.db"):
        with sqlite3.connect(store) as database:
            count, bytes_ = database.execute(
                "select count(*), coalesce(sum(length(event)), 0) from event_logs"
            ).fetchone()
        runs, events, size = runs + 1, events + count, size + bytes_
    return {"runs": runs, "events": events, "event_bytes": size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--project", type=Path, default=ROOT, metavar="DIR", help="one that `dvc repro` has run")
    parser.add_argument("--event-log", type=Path, metavar="HOME", help="weigh this DAGSTER_HOME, not a run of our own")
    arguments = parser.parse_args()
    found: dict[str, float] = {}

    def tell(**figures: float) -> None:
        for name, value in figures.items():
            print(f"{name:32s} {value:12.2f}", flush=True)
        found.update(figures)

    tell(load_average_before=os.getloadavg()[0], code_location_loads_s=load_time())
    with tempfile.TemporaryDirectory() as folder:
        bare, asset = materialise_overhead(Path(folder))
        tell(bare_dvc_repro_s=bare, the_same_as_an_asset_s=asset)
        first, idle = sensor_tick(Path(folder))
        tell(stages=STAGES, first_sensor_tick_s=first, idle_sensor_tick_s=idle)
        tell(a_stopped_run_is_gone_after_s=stop_time(Path(folder)))
    nothing = float("nan")
    root, ready = arguments.project.resolve(), up_to_date(arguments.project)
    if not ready:
        print(f"{root}: not up to date; run `dvc repro` there, or name another with --project", file=sys.stderr)
    tell(dvc_no_op_s=no_op(root) if ready else nothing)
    with tempfile.TemporaryDirectory() as folder:
        unknown = {"runs": nothing, "events": nothing, "event_bytes": nothing}
        if arguments.event_log:
            tell(**event_log(arguments.event_log))
        else:
            tell(**(full_run(root, Path(folder) / "home") if ready else unknown))
    tell(load_average_after=os.getloadavg()[0])
    machine = {"python": platform.python_version(), "cores": os.cpu_count()}
    target = Path(__file__).with_suffix(".json")
    target.write_text(json.dumps({"machine": machine, "figures": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
