"""Pairs a second of the embedded engine, the client's cost of a request, and how many requests a batch makes.

    OMP_NUM_THREADS=2 python speed/serving.py [--grids 40] [--repeats 5] [--out speed/serving.json]

Each way of asking is timed in turn, repeat by repeat, so that a busy machine slows all of them alike; medians are
told. Seconds of processor time stand beside seconds on the clock: those hardly depend on the neighbours.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from random import Random

from PIL import Image

from paco_core.config.params import load
from paco_core.reward_model.instructions import render
from paco_core.reward_model.yes_probability import PairQuery
from paco_core.serving.client import RewardClient
from paco_core.serving.servers.endpoint import RewardEndpoint

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "data/zoo/qwen2_5_vl"
CRITERIA = (9, 10)  # of a T2IS prompt, over style, identity and logic


@dataclass(frozen=True)
class Timing:
    """Of one way of asking, for one pair: seconds on the clock, and of the processors in server and client."""

    clock_s: float
    server_s: float
    client_s: float


def processor_s(pid: int) -> float:
    """Processor time of a process so far, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def picture(pixels: Random, side: int = 56) -> Image.Image:
    return Image.frombytes("RGB", (8, 8), pixels.randbytes(192)).resize((side, side))


def grids(count: int, pixels: Random, side: int = 56) -> list[PairQuery]:
    """The six pairs of each of ``count`` grids of four new panels of ``side`` px, each grid with a theme of its own."""
    queries = []
    for number in range(count):
        panels = [picture(pixels, side) for _ in range(4)]
        text = render("theme", theme=f"a red cat at the beach {number}")
        queries += [PairQuery(first, second, text) for first, second in combinations(panels, 2)]
    return queries


def speeds(count: int, repeats: int, threads: int) -> dict[str, list[Timing]]:
    """Timings of each way of asking about ``count`` new grids, ``repeats`` times in turn."""
    settings = {"threads": threads, "score_cache": None, "start_timeout_s": 550}
    serving = load(ROOT / "params.yaml").serving.model_copy(update=settings)
    pixels, found = Random(0), {}
    with tempfile.TemporaryDirectory() as folder, RewardEndpoint.lease(MODEL, serving, Path(folder)) as endpoint:
        server = int(Path(f"/proc/{endpoint.pid}/task/{endpoint.pid}/children").read_text().split()[0])

        def alone(client: RewardClient) -> None:
            for query in grids(count, pixels):
                client.score([query])

        def apart(client: RewardClient) -> None:
            for query in grids(count, pixels):  # nothing to share: each pair has panels of its own
                client.score([PairQuery(picture(pixels), picture(pixels), query.instruction)])

        def together(client: RewardClient) -> None:
            client.score(grids(count, pixels))

        ways: dict[str, Callable[[RewardClient], None]] = {
            "one request at a time, panels not shared": apart,
            "one request at a time, panels kept": alone,
            "all at once, panels shared": together,
        }
        with endpoint.client(plain=True) as client:
            for way in ways.values():
                way(client)  # warms up
            for _ in range(repeats):
                for name, way in ways.items():
                    clock, there, here = time.perf_counter(), processor_s(server), time.process_time()
                    way(client)
                    pairs = 6 * count
                    timing = Timing(
                        (time.perf_counter() - clock) / pairs,
                        (processor_s(server) - there) / pairs,
                        (time.process_time() - here) / pairs,
                    )
                    found.setdefault(name, []).append(timing)
    return found


def requests_of_a_batch(prompts: int = 100) -> dict[str, int]:
    """Questions and requests for grids whose prompts have criteria, asked a criterion at a time as peers do."""
    import sys

    sys.path[:0] = [str(ROOT / "tests/support")]
    from serving_fakes import NAME, FakeModel, served

    pixels, queries = Random(0), []
    for number in range(prompts):
        panels = [picture(pixels) for _ in range(4)]
        text = render("theme", theme=f"theme {number}")  # the template holds no criterion
        for _ in range(CRITERIA[number % len(CRITERIA)]):
            queries += [PairQuery(first, second, text) for first, second in combinations(panels, 2)]
    model = FakeModel()
    with served(model) as (url, _), RewardClient(url, NAME) as client:
        client.score(queries)
        assert len(model.asks) == client.counts.requests
        return {"questions": len(queries), "requests": client.counts.requests}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grids", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    threads = int(os.environ.get("OMP_NUM_THREADS", "2"))
    timings = speeds(args.grids, args.repeats, threads)
    medians = {
        name: Timing(*(statistics.median(values) for values in zip(*(asdict(t).values() for t in found), strict=True)))
        for name, found in timings.items()
    }
    print(f"{'':44}{'pairs/s':>9}{'ms/pair':>9}{'server CPU ms':>15}{'client CPU ms':>15}")
    for name, timing in medians.items():
        told = [1 / timing.clock_s, *(1e3 * value for value in asdict(timing).values())]
        print(f"{name:44}{told[0]:9.1f}{told[1]:9.2f}{told[2]:15.2f}{told[3]:15.2f}")
    together = medians["all at once, panels shared"]
    ratios = {name: timing.clock_s / together.clock_s for name, timing in medians.items()}
    for name, ratio in ratios.items():
        print(f"{name:44}{ratio:8.1f} x the time of all at once")
    requests = requests_of_a_batch()
    print(f"100 prompts with criteria: {requests['questions']} questions, {requests['requests']} requests")
    machine = {
        "date": date.today().isoformat(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "processor": platform.processor() or platform.machine(),
        "threads": threads,
        "versions": {name: version(name) for name in ("torch", "transformers", "starlette", "uvicorn")},
    }
    result = {
        "machine": machine,
        "grids": args.grids,
        "repeats": args.repeats,
        "medians": {name: asdict(timing) for name, timing in medians.items()},
        "times_slower_than_all_at_once": ratios,
        "criteria": requests,
    }
    args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
