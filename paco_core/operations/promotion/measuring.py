"""One version of a policy or of the reward measured on given cases: a row a case, so that versions can be paired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.benchmarks import rankings as bench
from paco_core.benchmarks.edit_changes import EDIT_COLUMNS
from paco_core.benchmarks.generated import measure_images, unseen_cases
from paco_core.benchmarks.public_files import read_rank_bench_rankings
from paco_core.data.records.panels import PanelStore
from paco_core.grpo.prompt_split import trained_prompts
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.operations.promotion.shared_gain import by_both_judges
from paco_core.policies.base import load_recipe_policy
from paco_core.policies.encodings import cache_folder
from paco_core.reward_model.scorer import Scorer
from paco_core.sampling.generated_image import AFTER, truncations_by_policy

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

    from paco_core.benchmarks.generated import Cases
    from paco_core.config.params import Params
    from paco_core.policies.truncation import Truncation
    from paco_core.reward_model.yes_probability import PairScorer

CASE = ["prompt_id", "unit"]  # unit: a seed, or a ranking instance


@dataclass(frozen=True)
class Measured:
    """One version on the cases.

    Attributes:
        table: columns prompt_id, unit (a policy's seed, the reward's instance) and one a measure.
        pictures: that a policy painted.
        cuts: what a policy did not read of prompts.
    """

    table: pd.DataFrame
    pictures: Sequence[Image] = ()
    cuts: Mapping[str, Truncation] = field(default_factory=dict)


def measure_policy(root: Path, params: Params, name: str, folder: Path, judge: Path, cases: Cases) -> Measured:
    """The policy in ``folder`` on the cases, at its largest evaluation size; also by the judges of its hack meter."""
    recipe = params.policies.recipes[name]
    policy = load_recipe_policy(recipe, root, cache=cache_folder(root))
    policy.load_adapter(folder / "adapter")
    largest = recipe.model_copy(update={"eval_sizes": [max(recipe.eval_sizes)]})
    images = cases.generate(policy, name, largest, when=AFTER)

    @cache  # the judge is one of the two where its term has no model
    def measured_by(model: Path) -> pd.DataFrame:
        return measure_images(images, cases, root, params, model)

    table = measured_by(judge).assign(**by_both_judges(recipe, root, judge, measured_by))
    table = table.drop(columns=["policy", "size", "when", *EDIT_COLUMNS], errors="ignore")
    return Measured(table.rename(columns={"seed": "unit"}), [p.image for p in images], truncations_by_policy(images))


def measure_reward(root: Path, params: Params, folder: Path) -> Measured:
    """The reward in ``folder``, asked in this process, on the held-out rankings."""
    return Measured(rank_held_out(root, params, Scorer.configured(folder, params.reward)))


def rank_held_out(root: Path, params: Params, scorer: PairScorer) -> pd.DataFrame:
    """A judge on the held-out rankings: prompt_id, unit (the instance) and every metric.

    Raises:
        DataError: when more than ``execution.serving.max_failed_share`` of the rankings lack a score.
    """
    chosen = params.consistency_rank
    panels: bench.Panels
    if chosen.source is not None:
        rankings, panels = read_rank_bench_rankings(root / chosen.source, chosen.max_instances, chosen.seed)
    else:
        held_out = root / paths.PAIRS / "benchmark.parquet"
        rankings = bench.read_rankings(held_out, chosen.max_instances, chosen.seed)
        panels = PanelStore.below(root / paths.GRIDS)
    template = chosen.template or params.reward.template
    scores = bench.score_rankings("reward", scorer, rankings, panels, template=template)
    bench.validate_scores(scores, params.serving.max_failed_share)
    table = bench.evaluate_rankings(rankings, {"reward": scores}, [], resamples=10).table()
    return table.drop(columns=["method", "scores", "ranking"]).rename(columns={"instance_id": "unit"})


def pair_up(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """The cases of both tables side by side, measures suffixed ``_first`` and ``_second``.

    Raises:
        DataError: when they share no case.
    """
    pairs = first.merge(second, on=CASE, suffixes=("_first", "_second"), validate="one_to_one")
    if pairs.empty:
        raise DataError("the two versions were measured on no common case; measure both again")
    return pairs


def unseen_by_all(root: Path, params: Params, name: str, folders: Sequence[Path]) -> Cases:
    """Cases of the policy's benchmark that no version in ``folders`` was trained on.

    Raises:
        DataError: when none is left.
    """
    return unseen_cases(lambda path: root / path, params, name, set().union(*map(trained_prompts, folders)))
