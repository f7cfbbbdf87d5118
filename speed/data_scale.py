"""The data path at the paper's scale, without painting and training: `python speed/data_scale.py PROJECT`.

Makes 708 prompts x 4 seeds of 1024 px and three annotators' rankings of their 33,984 instances in a copy of a project
whose demo is complete, then runs each stage that reads them in a process of its own, DVC on what they wrote, and the
mirror of ``dvc.lock`` in Dagster. Prints time and peak memory of each as a table, and JSON with ``--json``.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

PROMPTS, SEEDS, SHARDS, SIZE, ANNOTATORS = 708, 4, 8, 1024, 3
CONTENTS = 24  # different pictures; the others differ from them by a comment, for DVC and md5s that is another file
STAGES = ("rankings", "annotations", "pairs", "consistency_rank", "report")
CHANGES = {
    "grid_shards": list(range(SHARDS)),
    "grids": {"seeds": list(range(SEEDS)), "height": SIZE, "width": SIZE},
    "annotations": {"source": "import", "file": "data/external/annotations.jsonl"},
    "pairs": {"validation_share": 0.02, "benchmark_share": 0.0923, "identical_share": 0.0, "confident": False},
    "consistency_rank": {"max_instances": 3136},
}
MIRROR = """
import dagster as dg
from pipelines.definitions import defs
from pipelines.defs.graph import PROJECT, TRANSLATOR
from dagster_dvc.sensor import mirror_lock
with dg.DagsterInstance.get() as instance:
    mirror_lock(PROJECT, instance, defs.get_repository_def(), TRANSLATOR)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("project", type=Path, help="a clone in which `make demo` is complete; it is copied")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write-only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write_only:
        write_grids(arguments.project, arguments.prompts)
        return
    with tempfile.TemporaryDirectory(prefix="paco-scale-") as folder:
        root = Path(folder) / "paco"
        shutil.copytree(arguments.project, root, symlinks=True, ignore=shutil.ignore_patterns(".venv", "cache"))
        change_parameters(root)
        # In a process of its own: the peak of a child begins with that of the process that started it.
        write = [sys.executable, str(Path(__file__).resolve()), str(root), "--write-only"]
        rows = [
            process(f"write {arguments.prompts * SEEDS} pictures", [*write, "--prompts", str(arguments.prompts)], root)
        ]
        rows += list(run_all(root))
    print(json.dumps(rows, indent=2) if arguments.json else table(rows))


def change_parameters(root: Path) -> None:
    from ruamel.yaml import YAML

    yaml = YAML()
    params = yaml.load(root / "params.yaml")
    for key, value in CHANGES.items():
        if isinstance(value, dict):
            params[key].update(value)
        else:
            params[key] = value
    yaml.dump(params, root / "params.yaml")


def write_grids(root: Path, count: int) -> None:
    """The prompts of the demo again and again, each with a number of its own, and pictures for their seeds."""
    from paco_core.config.params import load
    from paco_core.data.grids import grids
    from paco_core.data.records.records import read_prompts

    file = root / "data" / "diverse_prompts" / "prompts.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    numbered = [
        {**row, "idx": f"{n:012x}", "prompt": f"{row['prompt']} Sheet {n}.", "height": SIZE, "width": SIZE}
        for n, row in ((n, lines[n % len(lines)]) for n in range(count))
    ]
    file.chmod(0o644)
    file.unlink()
    file.write_text("".join(json.dumps(row) + "\n" for row in numbered))
    params = load(root / "params.yaml")
    records = read_prompts(file)
    recipe = grids.Painting.of(params.grids, root)
    contents = [picture(number) for number in range(CONTENTS)]
    shutil.rmtree(root / "data" / "grids")
    for shard in params.grid_shards:
        jobs = grids.grid_jobs(grids.shard_of(records, shard, params.grid_shards), params.grids.seeds, recipe)
        stored = Commented(contents, [job.id for job in jobs])
        grids.write_grids(root / "data" / "grids" / f"shard-{shard}", jobs, stored)  # type: ignore[arg-type]
        painted = {"pictures": len(jobs), "prompts": len(jobs) // len(params.grids.seeds)}
        (root / "data" / "metrics" / f"grids-{shard}.json").write_text(json.dumps(painted))


class Commented(Mapping[str, bytes]):
    """Pictures by id: one of the contents with the id as a PNG comment, made when it is asked for."""

    def __init__(self, contents: Sequence[bytes], ids: Sequence[str]) -> None:
        self._contents, self._ids = contents, dict.fromkeys(ids)

    def __getitem__(self, key: str) -> bytes:
        data = self._contents[int(key, 16) % len(self._contents)]
        text = b"tEXtComment\0" + key.encode()
        chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
        return data[:-12] + chunk + data[-12:]  # before IEND, which has 12 bytes

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


def picture(number: int) -> bytes:
    """A PNG of about the size of a painting's: smooth colours, some shapes, a little noise."""
    rng = np.random.default_rng(number)
    small = Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8))
    image = small.resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for _ in range(40):
        x, y, w = (int(value) for value in rng.integers(0, SIZE, 3))
        draw.ellipse((x, y, x + w // 4, y + w // 4), fill=tuple(int(value) for value in rng.integers(0, 255, 3)))
    noisy = np.asarray(image, dtype=np.int16) + rng.integers(-2, 3, (SIZE, SIZE, 3), dtype=np.int16)
    stream = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(stream, format="PNG", compress_level=1)
    return stream.getvalue()


def write_annotations(root: Path) -> None:
    import pandas as pd

    rng = random.Random(0)
    file = root / "data" / "external" / "annotations.jsonl"
    file.parent.mkdir(exist_ok=True)
    instances = pd.read_parquet(root / "data" / "rankings" / "instances.parquet")
    with file.open("w") as out:
        for instance, candidates in zip(instances["instance_id"], instances["candidates"], strict=True):
            scores = [rng.random() for _ in candidates]
            for number in range(ANNOTATORS):
                seen = [min(max(score + rng.gauss(0, 0.1), 0.0), 1.0) for score in scores]
                ranking = sorted(range(len(seen)), key=lambda place: -seen[place])
                row = {"instance_id": instance, "annotator": f"a{number}", "ranking": ranking, "scores": seen}
                out.write(json.dumps(row) + "\n")


def run_all(root: Path) -> Iterator[dict[str, Any]]:
    paco = [sys.executable, "-m", "paco_core", "run"]
    for stage in STAGES:
        if stage == "annotations":
            write_annotations(root)
        yield process(stage, [*paco, stage], root)
    yield process("dvc commit (hash and cache)", [sys.executable, "-m", "dvc", "commit", "-f"], root)
    yield process("dvc status, all unchanged", [sys.executable, "-m", "dvc", "status"], root)
    yield process("mirror in Dagster", [sys.executable, "-c", MIRROR], root)


def process(name: str, command: Sequence[str], root: Path) -> dict[str, Any]:
    """Seconds and peak memory of a command and its children."""
    home = root / ".dagster"
    home.mkdir(exist_ok=True)
    shutil.copy(root / "dagster.yaml", home)
    places = {"PYTHONPATH": str(root), "DAGSTER_HOME": str(home), "PACO_TRACKING": "off"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with (root / "output.txt").open("w+") as output:
        start = time.perf_counter()
        child = subprocess.Popen(
            command, cwd=root, env={**os.environ, **places, "PATH": path}, stdout=output, stderr=subprocess.STDOUT
        )
        _, status, used = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            output.seek(0)
            raise SystemExit(f"{name} exited with {child.returncode}:\n{output.read()[-3000:]}")
    found = {"what": name, "seconds": round(seconds, 1), "peak_gb": round(used.ru_maxrss * 1024 / 1e9, 2)}
    print(found, file=sys.stderr, flush=True)
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| what | seconds | peak GB |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {one['what']} | {one['seconds']} | {one['peak_gb']} |" for one in rows)])


if __name__ == "__main__":
    main()
