"""Time and peak memory of diversification, by number of prompts: `OMP_NUM_THREADS=2 python speed/diversify.py`.

The embeddings are unit vectors in clusters of uneven size and spread, as themes are. Each size runs in a process of
its own, so that its peak is its own; making the embeddings is not timed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from paco_core.io.numbers import whole

WIDTH = 512
KEPT = 708 / 2000  # the paper's share


def embeddings(count: int, seed: int = 0) -> np.ndarray:
    """(count, 512) float32 rows of unit length around count / 4 centres, the larger clusters many times the others."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(1, count // 4), WIDTH), dtype=np.float32)
    which = np.minimum(rng.pareto(1.2, count) * len(centres) / 50, len(centres) - 1).astype(int)
    spread = rng.uniform(0.2, 1.0, (count, 1)).astype(np.float32)
    rows = centres[which]
    for start in range(0, count, 10_000):
        part = rows[start : start + 10_000]
        part += spread[start : start + 10_000] * rng.standard_normal(part.shape, dtype=np.float32)
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return rows


def measure(count: int) -> dict[str, Any]:
    """One size, in this process."""
    from paco_core.data.prompts.diversify import diversify
    from paco_core.data.records.categories import SUBCATEGORIES
    from paco_core.data.records.records import PromptRecord

    rows = embeddings(count)
    kinds = np.random.default_rng(1).integers(len(SUBCATEGORIES), size=count)
    records = [
        PromptRecord(
            idx=str(n), prompt="p", height=1, width=1, layout="2x2", theme="t", category=SUBCATEGORIES[kind].category,
            task_name=SUBCATEGORIES[kind].name, criteria={},
        )
        for n, kind in enumerate(kinds)
    ]  # fmt: skip
    start, cpu = time.perf_counter(), time.process_time()
    found = diversify(rows, records, target=round(count * KEPT))
    return {
        "prompts": count,
        "kept": len(found.kept),
        "threshold": round(found.threshold, 4),
        "nearest_before": round(float(np.nanmean(found.nearest_before)), 4),
        "nearest_after": round(float(np.nanmean(found.nearest_after)), 4),
        "seconds": round(time.perf_counter() - start, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=whole(1), nargs="+", default=[2_000, 20_000, 200_000])
    parser.add_argument("--one", type=whole(1), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one)))
        return
    rows = []
    for size in args.sizes:
        command = [sys.executable, __file__, "--one", str(size)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows.append(json.loads(done.stdout))
        if size == args.sizes[0]:
            print(" | ".join(rows[0]))
        print(" | ".join(str(value) for value in rows[-1].values()), flush=True)
    Path(__file__).with_suffix(".json").write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
