"""Cases for the re-evaluation of champions: a fixed set, and a fresh set of each day."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from paco_core.data.prompts.edit_prompts import storybook_edit_prompts
from paco_core.data.prompts.prompts import make_prompts
from paco_core.data.records.prompt_content import contents_of_all, untrained
from paco_core.data.records.records import read_prompts
from paco_core.grpo.prompt_split import trained_prompts
from paco_core.io import paths
from paco_core.reward_model.instructions import render_instruction
from paco_core.reward_model.yes_probability import PairQuery
from paco_core.storybook.drawing import draw
from paco_core.storybook.prompts import storybook_prompts, true_reasons
from paco_core.storybook.world import SHARED_TRAITS, VOCABULARY

if TYPE_CHECKING:
    from paco_core.benchmarks.generated import Cases
    from paco_core.config.params import Params
    from paco_core.reward_model.yes_probability import Score

DRAWN_PX = 64  # of a fresh panel that the storybook draws


def fresh(root: Path, params: Params, folder: Path, fixed: Cases, day: str) -> Cases:
    """As many cases of the day as there are fixed ones.

    The storybook makes new ones; else prompts are drawn from those that the policy in ``folder`` was not trained
    on, and of edits there are none.
    """
    if fixed.reference is not None:
        return _fresh_edits(params, fixed, day)

    seed = _seed(day)
    excluded_contents = trained_prompts(folder) | contents_of_all(fixed.records)
    if params.prompts.engine == "storybook":
        prompts_params = params.prompts.model_copy(update={"seed": seed, "count": 2 * len(fixed.records)})
        pool = make_prompts(prompts_params, (params.grids.height, params.grids.width), root).records
    else:
        pool = read_prompts(root / paths.PROMPTS / "prompts.jsonl")
    unseen = untrained(pool, excluded_contents)
    return replace(fixed, records=random.Random(seed).sample(unseen, min(len(fixed.records), len(unseen))))


def _fresh_edits(params: Params, fixed: Cases, day: str) -> Cases:
    if params.edit_prompts.source != "storybook":
        return replace(fixed, records=[])

    edits = storybook_edit_prompts(len(fixed.records), params.edit_prompts.size, _seed(day))
    return replace(fixed, records=edits.records, reference=edits.reference)


def _seed(day: str) -> int:
    """A number for a day, the same everywhere; far from the seeds that people choose."""
    return int(random.Random(f"fresh {day}").getrandbits(31))


def drawn_pairs(params: Params, day: str, count: int) -> list[tuple[str, PairQuery, str]]:
    """Fresh pairs of panels with their true label, drawn by the storybook: (prompt id, question, Yes or No)."""
    rng = random.Random(_seed(day))
    pairs = []
    for number, prompt in enumerate(storybook_prompts(count, seed=_seed(day))):
        first, second = prompt.panels[0], prompt.panels[1]
        if number % 2:
            trait = rng.choice(list(SHARED_TRAITS))
            other_words = [word for word in VOCABULARY[trait] if word != getattr(first, trait)]
            second = second.with_trait(trait, rng.choice(other_words))
        label, _ = true_reasons(first, second)
        question = render_instruction(params.reward.template, theme=prompt.theme)
        pairs.append((prompt.idx, PairQuery(draw(first, DRAWN_PX, rng), draw(second, DRAWN_PX, rng), question), label))
    return pairs


def accuracy_on(pairs: Sequence[tuple[str, PairQuery, str]], scores: Sequence[Score]) -> pd.DataFrame:
    """One row a pair: 1 when the decision at one half is right, NaN when it could not be scored."""
    rows = [
        {
            "prompt_id": idx,
            "unit": "pair",
            "accuracy": float("nan") if score.failed else float((score.value >= 0.5) == (label == "Yes")),
        }
        for (idx, _, label), score in zip(pairs, scores, strict=True)
    ]
    return pd.DataFrame(rows)
