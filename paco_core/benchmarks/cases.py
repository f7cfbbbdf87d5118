"""Unseen prompts of either kind, sets or edits: chosen, painted by a policy, and measured as its benchmark does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.benchmarks.painting import Painted, paint_sizes, unseen_prompts
from paco_core.io import paths
from paco_core.io.files import DataError

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.config.params import Params, PolicyRecipe
    from paco_core.data.records.records import PromptRecord
    from paco_core.grpo.scoring import Reference
    from paco_core.policies.base import Policy


@dataclass(frozen=True)
class Cases:
    """Prompts that a policy was not trained on, painted ``steps`` steps with each seed; of edits, the pictures too."""

    records: Sequence[PromptRecord]
    seeds: Sequence[int]
    steps: int
    reference: Reference | None = None

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


def unseen_cases(root: Path, params: Params, name: str, trained: Collection[str]) -> Cases:
    """Cases of a recipe's benchmark, none of a prompt whose id is in ``trained``; equal for equal parameters.

    Raises:
        DataError: when none is left, or the graph has not made the prompts yet.
    """
    from paco_core.benchmarks import gedit
    from paco_core.data.records.edit_records import read_edit_prompts
    from paco_core.data.records.records import read_prompts
    from paco_core.policies.base import policy_class

    if policy_class(params.policies.recipes[name].family).edits:
        edits, reference = read_edit_prompts(root / paths.EDIT_PROMPTS)
        left = [record for record in edits if record.idx not in trained]
        chosen = gedit.unseen(left, params.gedit.prompts, params.gedit.seed)
        if not chosen:
            raise DataError(f"{name} was trained on every editing prompt; raise edit_prompts.unseen")
        return Cases(chosen, params.gedit.seeds, params.gedit.steps, reference)
    records = read_prompts(root / paths.PROMPTS / "prompts.jsonl")
    unseen = unseen_prompts(records, trained, params.t2is.prompts, params.t2is.seed)
    return Cases(unseen, params.t2is.seeds, params.t2is.steps)


def measuring(root: Path, params: Params, judge: Path, cases: Cases) -> Callable[[Sequence[Painted]], pd.DataFrame]:
    """What measures pictures of the cases: a row a picture, as :func:`t2is.measure` or :func:`gedit.measure` make it.

    Args:
        judge: folder of a merged reward model; it is asked in this process.
    """
    from paco_core.benchmarks import edit_measures, gedit, measures, t2is

    recogniser, reference = root / str(params.annotations.model), cases.reference
    if reference is None:
        functions, set_gold = measures.set_measures(root, params, judge), measures.gold(params, recogniser)
        return lambda painted: t2is.measure(painted, functions, set_gold)
    answers, edit_gold = edit_measures.answers(params, judge), edit_measures.gold(params, recogniser)
    return lambda painted: gedit.measure(painted, reference, answers, edit_gold)
