"""The examination that every trained policy sits: the same unseen prompts, noise, sizes and measures."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core import paths
from paco_core.benchmarks import painting
from paco_core.benchmarks.cells import needed
from paco_core.dataset.records import read_prompts
from paco_core.files import DataError, atomic, folder_digest
from paco_core.params import Params
from paco_core.policies.base import load_recipe, policy_class

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.benchmarks.set_measures import Gold
    from paco_core.rewards.base import RewardFunction

TABLE, PICTURES = "table.parquet", "pictures"
SHOWN = 4  # prompts whose pictures are kept for the page


class Exam:
    """Pictures of prompts that no seed can have trained on, measured as the stage ``t2is`` measures.

    Raises:
        DataError: when the reward, the prompts or a model is missing, naming the stage to run; when no prompt
            is left over; when the recipe's family does not paint from prompts alone.
    """

    def __init__(self, root: Path, params: Params, recipe: str) -> None:
        self.root, self.params, self.recipe = root, params, recipe
        rule = params.policies.recipes[recipe]
        if policy_class(rule.family).edits:
            raise DataError(
                f"recipe {recipe}: family {rule.family} edits pictures; text-to-image alone is examined here"
            )
        self.judge = needed(root, paths.REWARD_MERGED)
        might_be_trained = read_prompts(needed(root, paths.DIVERSE_PROMPTS) / "prompts.jsonl")
        records = read_prompts(needed(root, paths.PROMPTS) / "prompts.jsonl")
        ids = {record.idx for record in might_be_trained}
        self.records = painting.unseen_prompts(records, ids, params.t2is.prompts, params.t2is.seed)

    def identity(self) -> dict[str, Any]:
        """What the figures depend on beside the trained weights."""
        rule, t2is, reward = self.params.policies.recipes[self.recipe], self.params.t2is, self.params.reward
        clips = [term.model for term in rule.rewards.terms.values() if term.model]
        folders = [rule.model, str(self.params.annotations.model), *clips]
        return {
            "prompts": [record.model_dump() for record in self.records],
            "painting": [t2is.seeds, t2is.steps, rule.eval_sizes, rule.guidance, rule.max_sequence_length],
            "measuring": [self.params.world, reward.device, reward.dtype, reward.min_pixels, reward.max_pixels],
            "judge": folder_digest(self.judge),
            "models": {f: folder_digest(self.root / f) if (self.root / f).is_dir() else f for f in folders},
        }

    @property
    def pictures(self) -> int:
        """Pictures of one sitting."""
        return (
            len(self.records) * len(self.params.t2is.seeds) * len(self.params.policies.recipes[self.recipe].eval_sizes)
        )

    @cached_property
    def _measures(self) -> tuple[list[RewardFunction], Gold | None]:
        from paco_core.benchmarks import measures

        recogniser = self.root / str(self.params.annotations.model)
        return measures.set_measures(self.root, self.params, self.judge), measures.gold(self.params, recogniser)

    def sit(self, adapter: Path | None, folder: Path, advance: Callable[[int], object] = lambda _count: None) -> None:
        """Paint with the bare model (None) or an adapter; write ``table.parquet`` and some pictures to ``folder``."""
        from paco_core.benchmarks import t2is

        painted = painting.paint_sizes(
            self._policy(adapter),
            self.recipe,
            self.params.policies.recipes[self.recipe],
            self.records,
            when=painting.BEFORE if adapter is None else painting.AFTER,
            seeds=self.params.t2is.seeds,
            steps=self.params.t2is.steps,
            advance=advance,
        )
        table = t2is.measure(painted, *self._measures)
        shown, seed = {record.idx for record in self.records[:SHOWN]}, self.params.t2is.seeds[0]
        with atomic(folder / PICTURES) as part:
            for p in painted:
                if p.record.idx in shown and p.seed == seed:
                    (part / str(p.size)).mkdir(parents=True, exist_ok=True)
                    p.image.save(part / str(p.size) / f"{p.record.idx}.png")
        with atomic(folder / TABLE) as part:
            table.drop(columns=["policy", "when"]).to_parquet(part, index=False)

    def _policy(self, adapter: Path | None) -> Any:
        policies = self.params.policies
        policy = load_recipe(policies.recipes[self.recipe], policies, self.root)
        if adapter is not None:
            policy.load_adapter(adapter)
        return policy


def read_table(folder: Path) -> pd.DataFrame:
    """Columns size, prompt_id, seed (of the painting's noise) and one a measure.

    Raises:
        DataError: when it is missing.
    """
    import pandas as pd

    path = folder / TABLE
    if not path.is_file():
        raise DataError(f"{path}: missing; remove {folder / 'result.json'} and run `paco reproduce` again")
    return pd.read_parquet(path)
