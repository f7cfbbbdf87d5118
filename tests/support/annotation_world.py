"""A small study: drawn panels, ranking instances, an answer store, and a server in a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
from PIL import Image

from paco_core.data.annotation.queue import AnnotationQueue
from paco_core.data.annotation.rankings import build_instances
from paco_core.data.annotation.store import AnswerStore
from paco_core.data.records.panels import PanelStore
from paco_core.io.shards import encode_png, write_shard
from tests.support import REPOSITORY

DEADLINE_S = 60.0
STORE = "answers/people.sqlite"  # as params.yaml names it


def make_world(root: Path, prompts: int = 2, seeds: int = 3) -> pd.DataFrame:
    """Grids of four differently coloured panels and their instances below ``root``, which becomes a project.

    There are ``prompts * 4 * seeds * (seeds - 1)`` instances.
    """
    rows, pictures = [], {}
    for prompt in range(prompts):
        for seed in range(seeds):
            grid = Image.new("RGB", (64, 64))
            for panel in range(4):
                colour = (40 + 60 * panel, 60 * prompt + 20 * seed, 128)
                grid.paste(Image.new("RGB", (32, 32), colour), (panel % 2 * 32, panel // 2 * 32))
            name = f"g{prompt}-{seed}"
            rows.append({"id": name, "prompt_id": f"p{prompt}", "seed": seed, "layout": "2x2"})
            pictures[name] = encode_png(grid)
    write_shard(root / "data/grids/shard-0", rows, pictures)
    table = build_instances(pd.DataFrame(rows))
    (root / "data/rankings").mkdir(parents=True)
    table.to_parquet(root / "data/rankings/instances.parquet", index=False)
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(REPOSITORY / name, root / name)
    return table


def open_study(root: Path, annotators: int = 1, overlap: int = 1, count: int | None = None) -> AnnotationQueue:
    """A queue over the world below ``root``; close its store."""
    store = AnswerStore(root / STORE, create=True)
    store.recruit(annotators)
    table = pd.read_parquet(root / "data/rankings/instances.parquet")
    return AnnotationQueue(store, table, PanelStore.below(root / "data/grids"), overlap, count)


@dataclass
class Server:
    """``paco annotate`` as people start it, that can be killed and started again on the same port."""

    root: Path
    arguments: tuple[str, ...] = ()
    links: list[str] = field(default_factory=list)
    port: str = "0"
    process: subprocess.Popen[str] | None = None

    def start(self) -> Server:
        command = [sys.executable, "-m", "paco_core", "annotate", "--port", self.port, *self.arguments]
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        self.process = subprocess.Popen(
            command, cwd=self.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        output = ""
        for line in self.process.stdout:
            output += line
            if line.startswith("Ctrl-C"):
                break
        self.links = re.findall(r"http://\S+", output)
        assert self.links, output
        self.port = self.links[0].split(":")[2].split("/")[0]
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                assert httpx.get(self.links[0]).status_code == 200
                return self
            except httpx.TransportError:
                assert time.monotonic() < end, "the server does not answer"
                time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is flushed."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_exc: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(DEADLINE_S)


def body_for(view: dict[str, Any], ranking: list[int]) -> dict[str, Any]:
    """The answer that the page sends for a view."""
    return {
        "instance": view["instance"], "revision": view["revision"], "verdict": "ranked", "ranking": ranking,
        "seconds": 1.5,
    }  # fmt: skip
