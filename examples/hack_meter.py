"""The hack meter beside the gold metrics, on a training by one judge and under the eyes of another.

    python -m examples.hack_meter --trained colour --held-out data/held_out --seeds 0 1 2

It runs in a project whose demo has run. The judge `colour` is weak on purpose: it sees the mean colour of the panels
and nothing else. `project` is the project's reward model, `base` the embedded model before any fine-tuning, and any
folder of a merged reward model can train or watch, too. Each epoch is printed as the meter saw it, beside the gold
metrics, which no judge knows. The prompts and seeds are those of params.yaml, so that another watching judge changes no
picture.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import yaml

from paco_core.config.params import PARAMS_FILE, Params, load
from paco_core.grpo.checks import read_log, shared_gain
from paco_core.grpo.hacking import AGREEMENT, alarm
from paco_core.grpo.metrics import mean_with_interval
from paco_core.grpo.recipe import train
from paco_core.grpo.trainer import RunContext
from paco_core.tasks.table import task_of

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.data.records.records import PromptRecord
    from paco_core.grpo.evaluation import Gold
    from paco_core.rewards.base import RewardBatch

POLICY = "flux_t2is"
SHOWN = ("trained_gain", "held_out_gain", "drift", "drift_low", "grid_score", "near_copies")
GOLD = ("gold_consistency", "gold_following")
JUDGES = {
    "colour": {"reward": "examples.hack_meter:mean_colour"},
    "project": {"reward": "consistency"},
    "base": {"reward": "consistency", "model": "data/zoo/qwen2_5_vl"},
}


def mean_colour(batch: RewardBatch) -> np.ndarray:
    """How alike the mean colours of the panels are: 1 = equal, less by their root mean square deviation (N,)."""
    means = [np.array([np.asarray(panel).mean((0, 1)) for panel in panels]) / 255.0 for panels in batch.panels]
    return np.array([1.0 - float(np.sqrt(((found - found.mean(0)) ** 2).mean())) for found in means])


def term(judge: str, weight: float) -> dict[str, object]:
    """A term of ``rewards`` by a name of :data:`JUDGES`, or by the folder of a reward model."""
    return {"weight": weight, **JUDGES.get(judge, {"reward": "consistency", "model": judge})}


def params_of(root: Path, out: Path, seed: int, given: argparse.Namespace) -> Params:
    """The project's parameters with a training by one of the judges alone; they are kept in ``out``."""
    params = yaml.safe_load((root / PARAMS_FILE).read_text(encoding="utf-8"))
    recipe = params["policies"]["recipes"][POLICY]
    recipe |= {"seed": seed, "epochs": given.epochs, "learning_rate": given.learning_rate}
    recipe |= {"eval_every": 1, "eval_prompts": given.prompts, "eval_sizes": [64]}
    recipe["hack_meter"] = {"trained": "judge", "held_out": "other"}
    terms = {"judge": term(given.trained, 1.0), "other": term(given.held_out, 0.0)}
    recipe["rewards"] = {"terms": terms, "aggregator": "weighted_sum", "advantage_std": "group"}
    params["policies"]["recipes"] = {POLICY: recipe}
    (out / PARAMS_FILE).write_text(yaml.safe_dump(params, sort_keys=False), encoding="utf-8")
    return load(out / PARAMS_FILE)


class KeptGold:
    """The gold metrics, which also keeps the values of each evaluation, one a prompt: a log has means alone."""

    def __init__(self, gold: Gold) -> None:
        self.gold, self.kept = gold, list[dict[str, np.ndarray]]()

    def __call__(self, panels: list[list[Image]], records: list[PromptRecord]) -> dict[str, np.ndarray]:
        self.kept.append(self.gold(panels, records))
        return self.kept[-1]

    def change(self, name: str, epoch: int) -> tuple[float, float, float]:
        """Since the start, with its 95% interval over prompts."""
        return mean_with_interval(self.kept[epoch][name] - self.kept[0][name])


def trained(root: Path, out: Path, params: Params) -> tuple[list[dict[str, float]], KeptGold]:
    """The log of a training, and what gold said at each of its evaluations."""
    recipe = params.policies.recipe(POLICY)
    task = task_of(recipe)

    def read(path: Path) -> Path:
        return root / path

    truth = task.unseen_truth(params, read)
    assert truth is not None, "only the storybook knows the truth"
    gold = KeptGold(truth)
    with TemporaryDirectory() as checkpoints:
        context = RunContext(
            root=root, out=out, final=out, checkpoints=Path(checkpoints), read=read, code="hack_meter example"
        )
        train(params, POLICY, task.split(recipe, read), lambda: gold, context)
    return read_log(out / "training_log.csv"), gold


def show(rows: Sequence[dict[str, float]], gold: KeptGold, params: Params) -> None:
    """A line an epoch, then the first alarm, what `paco promote` says, and where gold is clearly below the start."""
    recipe = params.policies.recipe(POLICY)
    assert recipe.hack_meter is not None
    print("epoch " + " ".join((*SHOWN, AGREEMENT, *GOLD)))
    alarms = {row["epoch"]: alarm(rows[: n + 1], recipe.hack_meter) for n, row in enumerate(rows)}
    for row in rows:
        figures = [*(row[f"eval/64/{name}"] for name in SHOWN), row.get(AGREEMENT, np.nan)]
        figures += [row[f"eval/64/{name}"] for name in GOLD]
        end = " ALARM" if alarms[row["epoch"]] else ""
        print(f"{row['epoch']:5.0f} " + " ".join(f"{one:.3f}" for one in figures) + end)
    first = next(((epoch, reason) for epoch, reason in alarms.items() if reason), None)
    print("no alarm" if first is None else f"alarm after epoch {first[0]:.0f}: {first[1]}")
    checked = shared_gain(rows, recipe)
    print(f"{checked.name}: {'passed' if checked.passed else 'FAILED'} ({checked.description})")
    for name in GOLD:
        fallen = [(epoch, *gold.change(name, epoch)) for epoch in range(1, len(rows))]
        below = next((one for one in fallen if one[3] < 0), None)
        said = "never" if below is None else "first after epoch {} ({:+.3f}, {:+.3f} to {:+.3f})".format(*below)
        print(f"{name} clearly below the start: {said}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trained", default="colour", help=f"{', '.join(JUDGES)}, or the folder of a reward model")
    parser.add_argument("--held-out", default="project", help="the same")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--learning-rate", type=float, default=0.002)
    parser.add_argument("--out", type=Path, default=Path("hack-meter"))
    given = parser.parse_args()
    root = Path.cwd()
    for seed in given.seeds:
        out = given.out / f"{given.trained}-{given.held_out}-{seed}".replace("/", "_")
        out.mkdir(parents=True, exist_ok=True)
        params = params_of(root, out, seed, given)
        print(f"seed {seed}")
        show(*trained(root, out, params), params)


if __name__ == "__main__":
    main()
