"""Next steps of the report: commands that fit the profile, the world and the GPUs of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from paco_core.config.params import Params
from paco_core.runtime.nvidia_smi import Gpu

#: Profiles for prompts of a person, by the memory that one GPU needs in GB.
GPU_PROFILES = {75: "one_gpu", 44: "klein_48gb", 22: "klein"}
SMOKE, STORYBOOK = "smoke", "storybook"


@dataclass(frozen=True)
class NextStep:
    """One thing to do next, and its commands."""

    title: str
    text: str
    commands: tuple[str, ...]


@dataclass(frozen=True)
class NextSteps:
    """What to do next on ``machine``, which is a description for a person."""

    machine: str
    steps: tuple[NextStep, ...]


def next_steps(params: Params, gpus: Sequence[Gpu], example: str | None) -> NextSteps:
    """What to do next after a run.

    Args:
        gpus: those of this machine.
        example: command that shows a clear gain of this run; None if there is none.
    """
    memory = max((gpu.memory_gb or 0.0 for gpu in gpus), default=0.0)
    profile = next((name for least, name in GPU_PROFILES.items() if memory >= least), None)
    steps: list[NextStep] = []
    if params.profile == SMOKE:  # a gain would be chance
        text = "The profile smoke has too little data to learn. The full demo needs no GPU and 4 to 12 minutes."
        steps.append(NextStep("Train for real", text, (f"paco profile use {STORYBOOK}", "make demo")))
    elif example:
        steps.append(NextStep("See a gain", "One set by the generator before and after training.", (example,)))
    recipe = next(iter(params.policies.recipes), None)
    if recipe is not None:
        steps += [_change(params, recipe), _promote(recipe)]
    text = "Dagster shows the graph, MLflow the curves and images of each run, and paco play a page to generate images."
    steps.append(NextStep("Look", text, ("make ui", "paco play", "paco tables")))
    if params.world == STORYBOOK:
        steps.append(_own_images(profile, memory))
    return NextSteps(_machine(gpus), tuple(steps))


def _own_images(profile: str | None, memory: float) -> NextStep:
    """A training on a person's prompts if a GPU can hold one, else what needs no GPU."""
    if profile is not None:
        text = f"A GPU of this machine has {memory:.0f} GB. See docs/tutorial/single-gpu.md for weights and prompts."
        commands = (f"paco check --profile {profile}", f"paco profile use {profile}", "dvc repro")
        return NextStep("Train on your prompts", text, commands)
    text = (
        "Scoring needs no GPU. To train a larger model, you need a GPU with 24 GB or more. The second command "
        "lists what this machine lacks."
    )
    return NextStep("Use your images", text, ("paco score A.png B.png", "paco check --profile klein"))


def _change(params: Params, recipe: str) -> NextStep:
    text = "Only the stages that depend on the change run again. Commit first: an experiment starts from a commit."
    rate = f"{params.policies.recipes[recipe].learning_rate / 2:g}"
    return NextStep(
        "Change something",
        text,
        (
            'git add . && git commit -m "First run"',
            f"dvc exp run -S policies.recipes.{recipe}.learning_rate={rate}",
            "dvc metrics diff --targets data/metrics/report.json",
        ),
    )


def _promote(recipe: str) -> NextStep:
    text = "The first version becomes champion. A later version replaces it only if a paired test shows a gain."
    return NextStep("Keep the best version", text, ("paco promote reward", f"paco promote {recipe}", "paco champions"))


def _machine(gpus: Sequence[Gpu]) -> str:
    cores = f"{len(os.sched_getaffinity(0))} CPU cores"
    if not gpus:
        return f"{cores}, no NVIDIA GPU"
    return f"{cores}, {len(gpus)} GPU{'s' if len(gpus) > 1 else ''} of {gpus[0].memory_gb or 0:.0f} GB"
