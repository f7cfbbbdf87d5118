"""Prompts that a policy was not trained on, painted by policies before and after their training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.painting.paint import before_and_after, paint_sizes
from paco_core.painting.painted import Painted
from paco_core.painting.separate_panels import paint_separately
from paco_core.policies.base import load_recipe
from paco_core.policies.encodings import cache_folder

if TYPE_CHECKING:
    from paco_core.config.params import PolicyRecipe
    from paco_core.data.records.records import PromptRecord
    from paco_core.grpo.scoring import Reference
    from paco_core.policies.base import Policy
    from paco_core.tasks.base import Task


@dataclass(frozen=True)
class Cases:
    """Prompts of a task, painted ``steps`` steps with each seed; of edits, what gives the reference pictures."""

    task: Task
    records: Sequence[PromptRecord]
    seeds: Sequence[int]
    steps: int
    reference: Reference | None = None
    separately: bool = False  # sets are painted one picture at a time, too

    def painted_by(
        self,
        policy: Policy,
        name: str,
        recipe: PolicyRecipe,
        *,
        when: str,
        advance: Callable[[int], object] = lambda _count: None,
    ) -> list[Painted]:
        """Every case at every evaluation size of the recipe, by the policy as it is."""
        return paint_sizes(
            policy,
            name,
            recipe,
            self.records,
            when=when,
            seeds=self.seeds,
            steps=self.steps,
            reference=self.reference,
            advance=advance,
        )

    def pictures(self, recipes: Mapping[str, PolicyRecipe]) -> int:
        """How many :meth:`painted_before_and_after` paints."""
        sizes = sum(len(recipe.eval_sizes) for recipe in recipes.values())
        single = sum(rows * columns for rows, columns in (r.grid for r in self.records)) if self.separately else 0
        return (2 * len(self.records) + single) * len(self.seeds) * sizes

    def painted_before_and_after(
        self,
        recipes: Mapping[str, PolicyRecipe],
        adapters: Mapping[str, Path],
        root: Path,
        advance: Callable[[int], object],
    ) -> list[Painted]:
        """Every case at every evaluation size, by each recipe's bare policy and with its adapter, from equal noise;
        one picture at a time by the bare policy, where that is asked.

        Raises:
            DataError: when an adapter is missing.
        """
        painted: list[Painted] = []
        for name, recipe in recipes.items():
            policy = load_recipe(recipe, root, cache=cache_folder(root))
            if self.separately:
                painted += paint_separately(
                    policy, name, recipe, self.records, seeds=self.seeds, steps=self.steps, advance=advance
                )
            painted += before_and_after(
                policy,
                name,
                recipe,
                adapters[name],
                self.records,
                seeds=self.seeds,
                steps=self.steps,
                reference=self.reference,
                advance=advance,
            )
        return painted
