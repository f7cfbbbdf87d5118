"""Merging and serving a reward model of random weights: `python -m speed.gpu_reward --model 7b --device cuda`.

Base and adapter are written as they are published, merged by the pipeline's own code (which scores the pairs before and
after, and refuses a merge that is not faithful), given golden pairs, served, and asked about grids of four panels.
`--model tiny --engine transformers` runs the same lines anywhere.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image

from paco_core.io.numbers import whole
from paco_core.reward_model.instructions import render
from paco_core.reward_model.yes_probability import PairQuery
from speed.reward_common import ROOT, arguments, examples, in_own_process, network, note, peak_gb

PAIRS = 6  # of a grid
GOLDEN = 4


def merge(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Write base and adapter, merge them, write golden pairs; the merge's seconds, memory and faithfulness."""
    import torch

    from paco_core.config.params import LoraParams
    from paco_core.reward_model import lora
    from paco_core.reward_model.golden import write_golden
    from paco_core.reward_model.merging import merge, write_model
    from speed.reward_training import TARGETS

    net = network(args)
    write_model(net, ROOT / "data/zoo/qwen2_5_vl", folder / "base")
    wrapped = lora.attach(net.model, LoraParams(rank=args.rank, alpha=2 * args.rank, targets=TARGETS), "random", 0)
    with torch.no_grad():
        for name, weight in lora.tensors(wrapped).items():
            if "lora_B" in name:  # a fresh adapter changes nothing, and one that got lost would not be noticed
                weight.normal_(std=0.01)
    lora.save(wrapped, folder / "adapter", lora.base_digest(net.model))
    del net, wrapped
    if args.device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    queries = [example.query for example in examples(args, args.pairs)]
    begun = time.perf_counter()
    pixels = (args.side**2, args.side**2)
    report = merge(
        folder / "base",
        folder / "adapter",
        folder / "merged",
        queries,
        device=args.device,
        dtype=args.dtype,
        pixels=pixels,
    )
    seconds = time.perf_counter() - begun
    write_golden(folder / "merged", queries[:GOLDEN], report.scores[:GOLDEN], args.dtype)
    margins = {"log-odds off, mean": report.margins.mean, "worst": report.margins.worst}
    return {"part": "merge", "seconds": seconds, **margins, "peak GB": peak_gb(args.device)}


def grids(count: int, pixels: Random, side: int) -> list[PairQuery]:
    """The six pairs of each of ``count`` grids of four new panels of ``side`` px, each grid with a theme of its own."""
    queries = []
    for number in range(count):
        panels = [Image.frombytes("RGB", (8, 8), pixels.randbytes(192)).resize((side, side)) for _ in range(4)]
        text = render("theme", theme=f"a red cat at the beach {number}")
        queries += [PairQuery(first, second, text) for first, second in combinations(panels, 2)]
    return queries


def serve(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Start the engine, which includes the golden check; pairs a second all at once and one request at a time."""
    from paco_core.config import profiles
    from paco_core.serving.servers.endpoint import RewardEndpoint

    settings = {"engine": args.engine, "device": args.device.partition(":")[0], "dtype": args.dtype}
    settings |= {"score_cache": None, "linger_s": 0, "start_timeout_s": 1200, "python": args.python}
    serving = profiles.read(ROOT, "paper").serving.model_copy(update=settings)
    pixels = Random(0)
    begun = time.perf_counter()
    row: dict[str, Any] = {"part": f"serving, {args.engine}"}
    with (
        RewardEndpoint.lease(folder / "merged", serving, folder) as endpoint,
        endpoint.client(plain=True) as client,
    ):
        row["seconds to the first answer"] = time.perf_counter() - begun
        row["golden pairs off, log-odds"] = endpoint.check_golden()
        client.score(grids(args.grids, pixels, args.side))  # warms up
        begun = time.perf_counter()
        client.score(grids(args.grids, pixels, args.side))
        row["all at once, pairs/s"] = PAIRS * args.grids / (time.perf_counter() - begun)
        few = max(1, args.grids // 8)
        begun = time.perf_counter()
        for query in grids(few, pixels, args.side):
            client.score([query])
        row["one at a time, pairs/s"] = PAIRS * few / (time.perf_counter() - begun)
    return row


def measure(args: argparse.Namespace, variant: dict[str, Any]) -> dict[str, Any]:
    """One part, on what the part before it has written."""
    return {"merge": merge, "serve": serve}[variant["part"]](args, Path(variant["folder"]))


def parser() -> argparse.ArgumentParser:
    options = arguments(__doc__ or "")
    options.set_defaults(model="7b", dtype="bfloat16", side=512, pictures=16)
    options.add_argument("--rank", type=whole(1), default=32)
    options.add_argument("--pairs", type=whole(1), default=32, help="on which the merge is compared")
    options.add_argument("--engine", choices=["vllm", "transformers"], default="vllm")
    options.add_argument("--python", default=str(ROOT / ".venv-vllm/bin/python"), help="of vLLM's environment")
    options.add_argument("--grids", type=whole(1), default=64, help="of four panels, six pairs each")
    return options


def rows_of(options: list[str]) -> list[dict[str, Any]]:
    """Both parts, each in a process of its own, so that the server finds the GPU free."""
    with tempfile.TemporaryDirectory(prefix="paco-reward-") as folder:
        parts = [{"part": part, "folder": folder} for part in ("merge", "serve")]
        return [in_own_process("gpu_reward", part, options) for part in parts]


def main() -> None:
    args = parser().parse_args()
    if args.one:
        print(json.dumps(measure(args, json.loads(args.one))))
        return
    note(args, rows_of(sys.argv[1:]))


if __name__ == "__main__":
    main()
