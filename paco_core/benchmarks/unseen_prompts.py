"""Unseen prompts: the prompts of ``t2is``, which no policy was trained on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from paco_core.data.records.prompt_content import contents_of, group_by_content, untrained
from paco_core.io.files import DataError
from paco_core.tasks.sets import SETS
from paco_core.tasks.table import recipes_of

if TYPE_CHECKING:
    from paco_core.config.params import Params
    from paco_core.data.records.records import PromptRecord


def only_test_file(params: Params) -> str | None:
    """The file of prompts to test on that the recipes name; None where they train on the graph's prompts.

    Raises:
        DataError: when they name different files.
    """
    recipes = recipes_of(SETS, params.policies)
    files = {None if recipe.prompts is None else recipe.prompts.test for recipe in recipes.values()}
    if len(files) > 1:
        raise DataError(f"recipes {', '.join(recipes)} name different prompts; t2is compares them on equal ones")
    return files.pop()


def unseen_prompts(
    records: Sequence[PromptRecord], trained: Collection[str], count: int, seed: int
) -> list[PromptRecord]:
    """A random choice of ``count`` prompts that no policy was trained on, the same for equal seeds.

    A prompt is unseen if no training prompt has its text or its theme. All of them are taken when there are fewer.

    Args:
        trained: contents of the training prompts, or ids of some of ``records``.

    Raises:
        DataError: when none is left.
    """
    fresh = sorted(untrained(records, trained), key=lambda record: record.idx)
    if not fresh:
        raise _none_left(len(records))
    return random.Random(seed).sample(fresh, min(count, len(fresh)))


def validate_unseen_remain(records: Sequence[PromptRecord], trained: int) -> None:
    """Find prompts of which none can be left over, whichever ``trained`` of them are trained on.

    Prompts that share text or theme are left over together, the smallest group last.

    Raises:
        DataError: as :func:`unseen_prompts`.
    """
    groups = group_by_content({record.idx: contents_of(record) for record in records})
    if len(records) - min(Counter(groups.values()).values()) < trained:
        raise _none_left(len(records))


def _none_left(prompts: int) -> DataError:
    return DataError(
        f"all {prompts} prompts, or others on their themes, were trained on, none is left to test; "
        "raise policies.defaults.eval_prompts or prompts.count"
    )
