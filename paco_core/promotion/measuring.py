"""One version of a policy or of the reward measured on given cases: a row a case, so that versions can be paired."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core import paths
from paco_core.files import DataError

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.benchmarks.consistency_rank import PairScorer
    from paco_core.benchmarks.painting import Painted
    from paco_core.dataset.records import PromptRecord
    from paco_core.params import Params

CASE = ["prompt_id", "unit"]  # unit: a seed, or a ranking instance


def paint_policy(
    root: Path, params: Params, name: str, folder: Path, records: Sequence[PromptRecord], seeds: Sequence[int]
) -> list[Painted]:
    """Pictures of every prompt and seed by the policy in ``folder``, at its largest evaluation size."""
    from paco_core.benchmarks import painting
    from paco_core.policies.base import load

    recipe, policies = params.policies.recipes[name], params.policies
    model = root / recipe.model if (root / recipe.model).is_dir() else recipe.model
    policy = load(recipe.family, str(model), policies.device, policies.dtype)
    policy.load_adapter(folder / "adapter")
    return list(
        painting.paint(
            policy,
            records,
            seeds,
            max(recipe.eval_sizes),
            name=name,
            when=painting.AFTER,
            steps=params.t2is.steps,
            guidance=recipe.guidance,
            max_sequence_length=recipe.max_sequence_length,
        )
    )


def measure_pictures(root: Path, params: Params, painted: Sequence[Painted], judge: Path) -> pd.DataFrame:
    """Columns prompt_id, unit (the seed) and one a measure."""
    from paco_core.benchmarks import measures, t2is

    gold = measures.gold(params, root / str(params.annotations.model))
    table = t2is.measure(painted, measures.set_measures(root, params, judge), gold)
    return table.drop(columns=["policy", "size", "when"]).rename(columns={"seed": "unit"})


def measure_reward(root: Path, params: Params, folder: Path) -> pd.DataFrame:
    """The reward in ``folder``, asked in this process, on the held-out rankings."""
    from paco_core.reward_model.scorer import Scorer

    return rank_held_out(root, params, Scorer.configured(folder, params.reward))


def rank_held_out(root: Path, params: Params, scorer: PairScorer) -> pd.DataFrame:
    """A judge on the held-out rankings: prompt_id, unit (the instance) and every metric."""
    from paco_core.benchmarks import consistency_rank as bench
    from paco_core.benchmarks.public_rankings import read_public
    from paco_core.dataset.panels import PanelStore

    chosen = params.consistency_rank
    panels: bench.Panels
    if chosen.source is not None:
        instances, panels = read_public(root / chosen.source, chosen.max_instances, chosen.seed)
    else:
        held_out = root / paths.PAIRS / "benchmark.parquet"
        instances = bench.read_instances(held_out, chosen.max_instances, chosen.seed)
        panels = PanelStore.below(root / paths.GRIDS)
    template = chosen.template or params.reward.template
    judged = bench.judge_pairs("reward", scorer, instances, panels, template=template)
    table = bench.evaluate(instances, {"reward": judged}, [], resamples=10).table()
    return table.drop(columns=["method", "scores", "ranking"]).rename(columns={"instance_id": "unit"})


def pair_up(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """The cases of both tables side by side, measures suffixed ``_first`` and ``_second``.

    Raises:
        DataError: when they share no case.
    """
    both = first.merge(second, on=CASE, suffixes=("_first", "_second"), validate="one_to_one")
    if both.empty:
        raise DataError("the two versions were measured on no common case; measure both again")
    return both


def unseen_by_all(root: Path, params: Params, folders: Sequence[Path]) -> list[PromptRecord]:
    """Prompts that no version was trained on, ``t2is.prompts`` of them.

    Raises:
        DataError: when none is left.
    """
    from paco_core.benchmarks.painting import unseen_prompts
    from paco_core.dataset.records import read_prompts
    from paco_core.grpo.prompt_split import trained_ids

    records = read_prompts(root / paths.PROMPTS / "prompts.jsonl")
    trained = {idx for folder in folders for idx in trained_ids(folder)}
    return unseen_prompts(records, trained, params.t2is.prompts, params.t2is.seed)
