"""What logging figures costs: a stage, a training with the store up and down, and how fast they are sent afterwards.

    python speed/tracking.py [--figures 2000]

Prints a table and writes ``speed/tracking.json``. The store is a SQLite file in a temporary folder.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from paco_core.io.files import write_json
from paco_core.runtime.tracking import open_run, send_left_over
from paco_core.runtime.tracking.outbox import Address

STAGE = """
from pathlib import Path
from paco_core.runtime.tracking import open_run
with open_run(Path(), "x", "x", {}):
    pass
"""


def stage(root: Path, tracking: str) -> dict[str, float]:
    """A process that opens a run and ends it: how long it takes, and its own processor seconds."""
    began = time.perf_counter()
    environment = {**os.environ, "PACO_TRACKING": tracking, "PYTHONPATH": str(Path(__file__).parents[1])}
    child = subprocess.Popen([sys.executable, "-c", STAGE], cwd=root, env=environment)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit("the stage failed")
    return {
        "wall_s": round(time.perf_counter() - began, 3),
        "cpu_s": round(used.ru_utime + used.ru_stime, 3),
    }


def sender(root: Path) -> dict[str, float]:
    """What the process that sends has used so far, its imports included."""
    process = psutil.Process(int(Address.of(root, os.environ).file.read_text().split()[1]))
    used = process.cpu_times()
    return {"cpu_s": round(used.user + used.system, 3), "memory_mb": round(process.memory_info().rss / 1e6)}


def told(root: Path, figures: int) -> tuple[list[float], float]:
    """Seconds of each call, and of closing the run."""
    calls = []
    with open_run(root, "paco/benchmark", "tracking", {}, say=lambda _line: None) as tracker:
        for step in range(figures):
            before = time.perf_counter()
            tracker.metrics({"train/loss": 1.0 / (step + 1), "samples_seen": float(step)}, step)
            calls.append(time.perf_counter() - before)
        closing = time.perf_counter()
    return calls, time.perf_counter() - closing


def wait_for_sender(root: Path) -> None:
    """Until it has gone: it would send what is to be measured."""
    while Address.of(root, os.environ).is_served():
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figures", type=int, default=2000)
    figures = parser.parse_args().figures
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    os.environ["PACO_SENDER_IDLE_S"] = "3"
    rows: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        os.chdir(root)  # as the stages: a sender serves one working directory
        told(root, 1)  # makes the store
        wait_for_sender(root)
        for name, tracking in (("stage, untracked", "off"), ("stage, first", ""), ("stage, second", "")):
            rows[name] = stage(root, tracking)
        rows["its sender"] = sender(root)
        for name in ("store up", "server down"):
            wait_for_sender(root)
            if name == "server down":
                os.environ["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:9"  # nobody listens on the discard port
            calls, closing = told(root, figures)
            micros = [1e6 * c for c in calls]
            rows[name] = {
                "call_us_median": round(statistics.median(micros), 1),
                "call_us_p99": round(statistics.quantiles(micros, n=100)[98], 1),
                "closing_s": round(closing, 3),
            }
        wait_for_sender(root)
        journal = next((root / ".paco/tracking").glob("*/events.jsonl"))
        size = journal.stat().st_size
        store = f"sqlite:///{root / 'mlflow.db'}"
        journal.write_text(journal.read_text().replace("http://127.0.0.1:9", store))  # the server is back
        start = time.perf_counter()
        sent = send_left_over(root, 600)
        rows["sent afterwards"] = {
            "events": sent.events,
            "seconds": round(time.perf_counter() - start, 3),
            "journal_bytes_a_call": round(size / figures),
        }
    for name, row in rows.items():
        print(f"{name:16}", "  ".join(f"{key} {value}" for key, value in row.items()))
    write_json(Path(__file__).with_suffix(".json"), {"figures": figures, **rows})


if __name__ == "__main__":
    main()
