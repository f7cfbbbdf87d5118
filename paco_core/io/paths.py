"""Paths of the outputs of each stage, relative to the project root. ``dvc.yaml`` declares the same paths."""

from __future__ import annotations

from pathlib import Path

DATA = Path("data")
STAGES = Path(__file__).parents[1] / "stages"
PROMPTS = Path("data/prompts")
DIVERSE_PROMPTS = Path("data/diverse_prompts")
GRIDS = Path("data/grids")
RANKINGS = Path("data/rankings")
PEOPLE = Path("data/people")
ANNOTATIONS = Path("data/annotations")
EDIT_PROMPTS = Path("data/edit_prompts")
EDITS = Path("data/edits")
PAIRS = Path("data/pairs")
COT_LABELS = Path("data/cot_labels")
REWARD_LORA = Path("data/reward_lora")
REWARD_MERGED = Path("data/reward_merged")
POLICIES = Path("data/policies")
CONSISTENCY_RANK = Path("data/consistency_rank")
EDIT_REWARD = Path("data/edit_reward")
T2IS = Path("data/t2is")
T2IS_BENCH = Path("data/t2is_bench")
VISTORY = Path("data/vistory")
GEDIT = Path("data/gedit")
REPORT = Path("data/report")
METRICS = Path("data/metrics")
ROUNDS = Path("data/rounds")
ROUND = "round_"  # before the name of a stage in dvc.yaml: the same stage in a round


def in_round(stage: str) -> str | None:
    """The stage that an entry of ``dvc.yaml`` repeats in rounds; None for entries that are not part of rounds."""
    return stage.removeprefix(ROUND) if stage.startswith(ROUND) else None


def producer(path: Path) -> str | None:
    """The stage that writes a path (absolute or relative to the root); None for other paths.

    Stage NAME has the file ``paco_core/stages/NAME.py`` and writes below ``data/NAME``. In round N, it has the name
    ``round_NAME@N`` and writes below ``data/rounds/N/NAME``.
    """
    for place in (path, *path.parents):
        if place.parent.parent.name == ROUNDS.name and (STAGES / f"{place.name}.py").is_file():
            return f"{ROUND}{place.name}@{place.parent.name}"
    names = (place.name for place in (path, *path.parents) if place.parent.name == DATA.name)
    return next((name for name in names if (STAGES / f"{name}.py").is_file() and name != "__init__"), None)


def metrics_file(stage: str, item: str | None = None) -> Path:
    """The metrics file of a stage, or of one item of a matrix stage."""
    return METRICS / (f"{stage}-{item}.json" if item else f"{stage}.json")
