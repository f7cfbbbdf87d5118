"""The hack meter beside the gold metric, on a small training by one judge and under the eyes of another.

    python -m examples.hack_meter --trained colour --held-out project --seeds 0 1 2

It runs in a project whose demo has run. The judge `colour` is weak on purpose: it sees the mean colour of the panels
and nothing else. `project` is the project's reward model, `base` the embedded model before any fine-tuning. Each
evaluation is printed as the meter saw it, beside the gold metric, which no judge knows.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import yaml

from paco_core.config.params import PARAMS_FILE, Params, load
from paco_core.grpo.checks import read_log, shared_gain
from paco_core.grpo.outcome import Reports
from paco_core.grpo.recipe import Place
from paco_core.tasks.training import train_recipe

if TYPE_CHECKING:
    from paco_core.rewards.base import RewardBatch

POLICY = "flux_t2is"
SHOWN = ("trained_gain", "held_out_gain", "drift", "drift_low", "grid_score", "near_copies", "gold_consistency")
JUDGES = {
    "colour": {"reward": "examples.hack_meter:mean_colour"},
    "project": {"reward": "consistency"},
    "base": {"reward": "consistency", "model": "data/zoo/qwen2_5_vl"},
}


def mean_colour(batch: RewardBatch) -> np.ndarray:
    """How alike the mean colours of the panels are: 1 = equal, less by their root mean square deviation (N,)."""
    means = [np.array([np.asarray(panel).mean((0, 1)) for panel in panels]) / 255.0 for panels in batch.panels]
    return np.array([1.0 - float(np.sqrt(((found - found.mean(0)) ** 2).mean())) for found in means])


def params_of(root: Path, out: Path, seed: int, given: argparse.Namespace) -> Params:
    """The project's parameters with a small training by one of the judges; they are kept in ``out``."""
    params = yaml.safe_load((root / PARAMS_FILE).read_text(encoding="utf-8"))
    recipe = params["policies"]["recipes"][POLICY]
    recipe |= {"seed": seed, "epochs": given.epochs, "eval_every": 2, "eval_prompts": given.prompts, "eval_sizes": [64]}
    recipe |= {"group_size": 8, "prompts_per_epoch": 4, "updates_per_epoch": 2, "learning_rate": given.learning_rate}
    recipe["hack_meter"] = {"trained": "judge", "held_out": "other"}
    terms = {"judge": {"weight": 1.0, **JUDGES[given.trained]}, "other": {"weight": 0.0, **JUDGES[given.held_out]}}
    recipe["rewards"] = {"terms": terms, "aggregator": "weighted_sum", "advantage_std": "group"}
    params["policies"]["recipes"] = {POLICY: recipe}
    (out / PARAMS_FILE).write_text(yaml.safe_dump(params, sort_keys=False), encoding="utf-8")
    return load(out / PARAMS_FILE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trained", choices=tuple(JUDGES), default="colour")
    parser.add_argument("--held-out", choices=tuple(JUDGES), default="project")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--learning-rate", type=float, default=0.004)
    parser.add_argument("--out", type=Path, default=Path("hack-meter"))
    given = parser.parse_args()
    root = Path.cwd()
    for seed in given.seeds:
        out = given.out / f"{given.trained}-{given.held_out}-{seed}"
        out.mkdir(parents=True, exist_ok=True)
        params = params_of(root, out, seed, given)
        place = Place(root, out, out, given.out / "checkpoints", lambda path: root / path)
        train_recipe(params, POLICY, place, "hack_meter example", Reports())
        rows = read_log(out / "training_log.csv")
        print(f"seed {seed}\nepoch " + " ".join(SHOWN))
        for number, row in enumerate(rows):
            if "eval/64/drift" in row:
                shared = shared_gain(rows[: number + 1], params.policies.recipe(POLICY)).passed
                figures = " ".join(f"{row[f'eval/64/{name}']:.4f}" for name in SHOWN)
                print(f"{row['epoch']:5.0f} {figures}{'' if shared else ' ALARM'}", flush=True)


if __name__ == "__main__":
    main()
