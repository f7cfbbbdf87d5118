"""What telling a figure costs a training: with the store up, with it down, and how fast it is sent afterwards.

    python benchmarks/tracking.py [--figures 2000]

Prints a table and writes ``benchmarks/tracking.json``. The store is a SQLite file in a temporary folder.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from paco_core.files import write_json
from paco_core.tracking import open_run, send_left_over


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figures", type=int, default=2000)
    figures = parser.parse_args().figures
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        told(root, 1)  # makes the store
        for name in ("store up", "server down"):
            if name == "server down":
                os.environ["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:9"  # nobody listens on the discard port
            calls, closing = told(root, figures)
            micros = [1e6 * c for c in calls]
            rows[name] = {
                "call_us_median": round(statistics.median(micros), 1),
                "call_us_p99": round(statistics.quantiles(micros, n=100)[98], 1),
                "closing_s": round(closing, 3),
            }
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
