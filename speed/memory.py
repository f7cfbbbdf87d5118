"""Measure the memory of the recipes of all profiles on fake tensors, and write what the package ships.

    python -m speed.memory

Run it when a profile, a model of `data/zoo`, torch, diffusers or peft changes. What is stored for the same recipe and
versions, in the package or in `.paco/memory.json`, is not measured again. Prints the GB of each phase.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from paco_core.config import profiles
from paco_core.config.params import PolicyRecipe
from paco_core.planning import memory
from paco_core.planning.models import model_config
from paco_core.planning.passes import Pass, PassMemory
from paco_core.planning.planned_prompts import plan_prompts_or_empty
from paco_core.tasks.table import task_of


def passes_of_profiles(root: Path) -> Iterator[tuple[str, PolicyRecipe, list[Pass]]]:
    """Name, recipe and passes of each recipe of each profile."""
    for profile in profiles.available(root):
        params = profiles.read(root, profile)
        planned = plan_prompts_or_empty(params, root)
        for name, recipe in params.policies.recipes.items():
            phases = memory.training_passes(recipe, planned, root).values()
            benchmark = memory.benchmark_passes(recipe, task_of(recipe), params, planned, root)
            yield f"{profile} {name}", recipe, [*(single for passes in phases for single in passes), *benchmark]


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m speed.memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    root, rows = Path.cwd(), dict[str, PassMemory]()
    for name, recipe, passes in passes_of_profiles(root):
        config = model_config(root, recipe.model)
        assert config is not None
        measured, key = memory.measured_memory(root, recipe, config, passes), memory.memory_key(recipe, config)
        peaks = {str(single): measured.passes[str(single)] for single in passes}
        rows[key] = replace(measured, passes={**(rows[key].passes if key in rows else {}), **peaks})
        text = ", ".join(f"{single} {gb:.2f} GB" for single, gb in peaks.items())
        print(f"{name:<28} weights {measured.weights_gb:.2f} GB, {text}", flush=True)
    memory.write_measured(memory.SHIPPED, rows)


if __name__ == "__main__":
    main()
