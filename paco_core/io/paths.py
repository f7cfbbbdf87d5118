"""Where each stage's outs lie, relative to the project root; ``dvc.yaml`` names the same paths."""

from __future__ import annotations

from pathlib import Path

DATA = Path("data")
PROMPTS = DATA / "prompts"
DIVERSE_PROMPTS = DATA / "diverse_prompts"
GRIDS = DATA / "grids"
RANKINGS = DATA / "rankings"
PEOPLE = DATA / "people"
ANNOTATIONS = DATA / "annotations"
EDIT_PROMPTS = DATA / "edit_prompts"
EDITS = DATA / "edits"
PAIRS = DATA / "pairs"
COT_LABELS = DATA / "cot_labels"
REWARD_LORA = DATA / "reward_lora"
REWARD_MERGED = DATA / "reward_merged"
POLICIES = DATA / "policies"
CONSISTENCY_RANK = DATA / "consistency_rank"
EDIT_REWARD = DATA / "edit_reward"
T2IS = DATA / "t2is"
T2IS_BENCH = DATA / "t2is_bench"
GEDIT = DATA / "gedit"
REPORT = DATA / "report"
METRICS = DATA / "metrics"

#: Which stage to run when a path is missing.
PRODUCERS = {
    path: path.name
    for path in (
        PROMPTS, DIVERSE_PROMPTS, GRIDS, RANKINGS, ANNOTATIONS, EDIT_PROMPTS, EDITS, PAIRS, COT_LABELS,
        REWARD_LORA, REWARD_MERGED, POLICIES, CONSISTENCY_RANK, EDIT_REWARD, T2IS, T2IS_BENCH, GEDIT, REPORT,
    )
}  # fmt: skip


def producer(path: Path) -> str | None:
    """The stage that makes a path, absolute or relative to the root; None for what comes from elsewhere."""
    tails = (Path(*place.parts[-2:]) for place in (path, *path.parents))
    return next((PRODUCERS[tail] for tail in tails if tail in PRODUCERS), None)


def metrics_file(stage: str, item: str | None = None) -> Path:
    """The metrics file of a stage, or of one item of a matrix stage."""
    return METRICS / (f"{stage}-{item}.json" if item else f"{stage}.json")
