"""Annotation at the paper's scale, 33,984 instances and 6 annotators: `python speed/annotation.py`.

Sharing out, one answer with its sync to the disk, an annotator's next view, agreement and adjudication.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from paco_core.data.annotation.agreement import agreement
from paco_core.data.annotation.assignment import assign
from paco_core.data.annotation.people import from_answers
from paco_core.data.annotation.queue import AnnotationQueue
from paco_core.data.annotation.store import AnswerStore
from paco_core.data.annotation.votes import adjudicate


def measure(instances: int, annotators: int, overlap: int, answers: int) -> dict[str, Any]:
    """Seconds of each step; the store is filled through the queue, as the page does it."""
    import pandas as pd

    rng = random.Random(0)
    ids = [f"{n:016x}" for n in range(instances)]
    table = pd.DataFrame(
        {"instance_id": ids, "reference": "g#0", "candidates": [["h#0", "h#1", "h#2", "h#3"]] * instances}
    )
    found: dict[str, Any] = {"instances": instances, "annotators": annotators, "overlap": overlap}
    start = time.perf_counter()
    assign(ids, [f"a{n}" for n in range(annotators)], overlap)
    found["assign_s"] = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder, AnswerStore(Path(folder) / "answers.sqlite", create=True) as store:
        store.recruit(annotators)
        queue = AnnotationQueue(store, table, None, overlap)  # type: ignore[arg-type]
        saving, viewing = [], []
        for who in queue.annotators:
            for instance in list(queue._queues[who.name])[:answers]:
                chosen = rng.sample(range(4), 4)
                start = time.perf_counter()
                queue.answer(who, instance, 1, "ranked", chosen, 1.0)
                saving.append(time.perf_counter() - start)
            for _ in range(5):
                start = time.perf_counter()
                queue.view(who)
                viewing.append(time.perf_counter() - start)
        found |= {"answers": len(saving), "answer_ms": 1e3 * statistics.median(saving)}
        found["view_ms"] = 1e3 * statistics.median(viewing)
        start = time.perf_counter()
        votes = from_answers(store.latest(), dict.fromkeys(ids, 4))
        found["read_s"] = time.perf_counter() - start
    start = time.perf_counter()
    agreement(votes.rankings, votes.habits)
    found["agreement_s"] = time.perf_counter() - start
    start = time.perf_counter()
    adjudicate(votes.rankings, votes.undecided)
    found["adjudicate_s"] = time.perf_counter() - start
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=33_984)
    parser.add_argument("--annotators", type=int, default=6)
    parser.add_argument("--overlap", type=int, default=3)
    parser.add_argument("--answers", type=int, default=3_000, help="of each annotator")
    args = parser.parse_args()
    found = measure(args.instances, args.annotators, args.overlap, args.answers)
    for name, value in found.items():
        print(f"{name:<14} {value:.3g}" if isinstance(value, float) else f"{name:<14} {value:,}")
    Path(__file__).with_suffix(".json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
