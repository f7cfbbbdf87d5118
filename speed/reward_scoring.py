"""Scored pairs per second, by batch size, where each picture is new and where all are known.

python -m speed.reward_scoring
python -m speed.reward_scoring --model 7b --device cuda --dtype bfloat16 --side 512 --pairs 512
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from paco_core.io.numbers import whole
from speed.reward_common import arguments, examples, in_own_process, network, note, peak_gb, synchronise

BATCHES = (1, 8, 64)


def measure(args: argparse.Namespace, variant: dict[str, Any]) -> dict[str, Any]:
    """One batch size: a first pass encodes all pictures, a second one finds them known."""
    from paco_core.reward_model.scorer import Scorer

    scorer = Scorer.from_network(network(args), variant["batch"])
    queries = [example.query for example in examples(args, args.pairs)]
    scorer.score(queries[: variant["batch"]])  # warms up
    scorer.network.features.clear()
    row = dict(variant)
    for name in ("new pictures, pairs/s", "known pictures, pairs/s"):
        synchronise(args.device)
        start = time.perf_counter()
        scores = scorer.score(queries)
        synchronise(args.device)
        row[name] = len(scores) / (time.perf_counter() - start)
    return {**row, "peak GB": peak_gb(args.device)}


def parser() -> argparse.ArgumentParser:
    options = arguments(__doc__ or "")
    options.add_argument("--pairs", type=whole(1), default=256)
    return options


def main() -> None:
    args = parser().parse_args()
    if args.one:
        print(json.dumps(measure(args, json.loads(args.one))))
        return
    note(args, [in_own_process("reward_scoring", {"batch": batch}) for batch in BATCHES])


if __name__ == "__main__":
    main()
