"""Four ways to spend the same epochs and rankings: the arms of "Do rounds beat one reward model?" in docs/results.

    python -m examples.rounds --seeds 0 1 2

It runs in a project, with `dvc repro`: each arm is a change of params.yaml, which is put back after it, and what arms
share comes from its run cache. What is measured of each is kept in `--out`, so that a repetition goes on, and prints
the table at once where all is there.

    one_judge   one judge, trained on all answers about pictures of the bare model, for all epochs
    fresh       a fresh judge each round, on all answers so far, drawn at random
    uncertain   the same, but the judge chooses what is asked
    dpo         no judge: Diffusion-DPO on the rankings of `one_judge`
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from paco_core import Judge
from paco_core.benchmarks.statistics import crossed_estimate
from paco_core.benchmarks.t2is_bench.sets import PICTURES, RECORDS
from paco_core.benchmarks.tables import signed
from paco_core.config.params import PARAMS_FILE
from paco_core.data.records.records import read_prompts
from paco_core.io import paths
from paco_core.io.shards import ShardReader
from paco_core.painting.painted import AFTER, BEFORE

POLICY = "flux_t2is"
GRIDS = 3  # pictures of a prompt
SMALL: Mapping[str, Any] = {
    "prompts": {"count": 240},
    "edit_prompts": {"count": 16, "unseen": 8},
    "pairs": {"editing": {"count": 24}, "benchmark_share": 0.1},
    "reward": {"epochs": 1},
    "t2is": {"prompts": 48, "seeds": [0], "bootstrap": 100},
}
DPO = {"loss": "dpo", "dpo": {"beta": 200}, "dynamics": "ode", "noise_steps": []}
ARMS = ("one_judge", "fresh", "uncertain", "dpo")
CHOOSE = {"fresh": "random", "uncertain": "uncertain"}  # arms in rounds, by what chooses their rankings
HELD_OUT = "held_out"
MEASURES = ("gold_consistency", "gold_following", "judge", HELD_OUT, "drift")


def rankings(prompts: int, grids: int) -> int:
    """Of the four panels of each of so many grids, each panel as the reference of every other grid of its prompt."""
    return prompts * 4 * grids * (grids - 1)


@dataclass(frozen=True)
class Size:
    """How much an arm gets.

    Attributes:
        rounds: after the graph's own training.
        epochs: of each round, and of the graph's own training.
        prompts: of which pictures are ranked.
    """

    rounds: int
    epochs: int
    prompts: int

    def changes(self, arm: str, seed: int) -> dict[str, Any]:
        """What an arm changes of params.yaml: all arms have as many epochs and as many rankings in the end."""
        in_rounds = arm in CHOOSE
        epochs = self.epochs if in_rounds else self.epochs * (self.rounds + 1)
        shared = {"epochs": epochs, "seed": seed, "eval_every": epochs, "eval_prompts": 2}
        own = {
            "diverse_prompts": {"target": self.prompts},
            "grids": {"seeds": list(range(GRIDS if in_rounds else GRIDS + 1))},
            "reward": {"seed": seed},
            "policies": {"defaults": shared, "recipes": {POLICY: DPO if arm == "dpo" else {}}},
        }
        if in_rounds:
            more = rankings(self.prompts, GRIDS + 1) - rankings(self.prompts, GRIDS)
            items = {str(n): {"after": f"data/rounds/{n - 1}" if n > 1 else "data"} for n in range(1, self.rounds + 1)}
            own["rounds"] = {"ask": {"count": more // self.rounds, "choose": CHOOSE[arm]}, "items": items}
        return laid_over(SMALL, own)


def laid_over(tree: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of parameters with the keys of another one changed."""
    both = {key: laid_over(tree.get(key) or {}, value) for key, value in changed.items() if isinstance(value, dict)}
    return {**tree, **changed, **both}


class Project:
    """A project whose params.yaml is changed for a run of its graph, and put back after it."""

    def __init__(self, root: Path, out: Path, size: Size) -> None:
        self.root, self.out, self.size = root, out, size
        self.params = (root / PARAMS_FILE).read_text(encoding="utf-8")

    def repro(self, changed: Mapping[str, Any], target: str) -> float:
        """Run the graph up to a stage with changed parameters; returns seconds."""
        tree = laid_over(yaml.safe_load(self.params), changed)
        (self.root / PARAMS_FILE).write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
        began = time.monotonic()
        try:
            subprocess.run([sys.executable, "-m", "dvc", "repro", target], cwd=self.root, check=True)
        finally:
            (self.root / PARAMS_FILE).write_text(self.params, encoding="utf-8")
        return time.monotonic() - began

    def held_out_judge(self) -> Path:
        """A judge of other prompts and another seed, which trains no policy."""
        folder, seed = self.out / HELD_OUT, 1000
        if not folder.is_dir():
            self.repro(
                laid_over(self.size.changes("one_judge", seed), {"prompts": {"seed": seed}}), paths.REWARD_MERGED.name
            )
            shutil.copytree(self.root / paths.REWARD_MERGED, folder)
        return folder


def measured(project: Project, arm: str, seed: int) -> pd.DataFrame:
    """One row a picture, before and after all epochs: gold metrics, and the scores of both judges."""
    kept = project.out / f"{arm}-{seed}.parquet"
    if not kept.is_file():
        judge, in_rounds = project.held_out_judge(), arm in CHOOSE
        last, exam = str(project.size.rounds), paths.T2IS
        target = f"{paths.ROUND}{exam.name}@{last}" if in_rounds else exam.name
        seconds = project.repro(project.size.changes(arm, seed), target)
        folder = project.root / (paths.ROUNDS / last / exam.name if in_rounds else exam)
        table = pd.read_parquet(folder / "per_prompt.parquet").rename(columns={"consistency": "judge"})
        records = {record.idx: record for record in read_prompts(folder / RECORDS)}
        reader = ShardReader.below(folder / PICTURES)
        names = [f"{POLICY}-{r.size}-{r.when}-{r.prompt_id}-{r.seed}" for r in table.itertuples()]
        of = [records[idx] for idx in table["prompt_id"]]
        with Judge(judge, project=project.root) as asked:
            scores = asked.grid_scores(
                [reader.read(name) for name in names], [r.layout for r in of], themes=[r.theme for r in of]
            )
        table[HELD_OUT], table["seconds"] = [score.value for score in scores], seconds
        table["drift"] = table["judge"] - table[HELD_OUT]
        table.to_parquet(kept, index=False)
    return pd.read_parquet(kept)


def values(tables: Mapping[int, pd.DataFrame], size: int, measure: str, when: str) -> np.ndarray:
    """(training seeds, prompts)."""
    rows = [t[(t["size"] == size) & (t["when"] == when)].groupby("prompt_id")[measure].mean() for t in tables.values()]
    return np.stack([row.sort_index().to_numpy() for row in rows])


def table(arms: Mapping[str, Mapping[int, pd.DataFrame]]) -> str:
    """The arms below each other, in Markdown: changes since the bare model, and gold less that of `one_judge`."""
    lines = []
    for size in sorted(next(iter(arms["one_judge"].values()))["size"].unique()):
        lines += [f"| at {size} px | seeds | {' | '.join(MEASURES)} | gold less one_judge | seconds |"]
        lines += ["|---" * (len(MEASURES) + 4) + "|"]
        for arm, tables in arms.items():
            both = {m: [values(tables, size, m, when) for when in (AFTER, BEFORE)] for m in MEASURES}
            cells = [signed(crossed_estimate(*both[measure])) for measure in MEASURES]
            gold, plain = (
                values({seed: of[seed] for seed in tables}, size, "gold_consistency", AFTER)
                for of in (tables, arms["one_judge"])
            )
            less = "" if arm == "one_judge" else signed(crossed_estimate(gold, plain))
            seconds = sum(one["seconds"].iloc[0] for one in tables.values()) / len(tables)
            lines.append(f"| {arm} | {len(tables)} | {' | '.join(cells)} | {less} | {seconds:.0f} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=6, help="of each round, and before the first one")
    parser.add_argument("--prompts", type=int, default=32, help="of which pictures are ranked")
    parser.add_argument("--out", type=Path, default=Path("tmp/arms"))
    given = parser.parse_args()
    project = Project(Path.cwd(), given.out.resolve(), Size(given.rounds, given.epochs, given.prompts))
    project.out.mkdir(parents=True, exist_ok=True)
    arms: dict[str, dict[int, pd.DataFrame]] = {}
    for seed in given.seeds:
        for arm in ARMS:
            arms.setdefault(arm, {})[seed] = measured(project, arm, seed)
        print(table(arms), flush=True)


if __name__ == "__main__":
    main()
