"""Prompt splits: the prompts that a policy trains on, in which epoch, and the prompts that it is evaluated on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.data.records.edit_records import EditRecord, of_part
from paco_core.data.records.prompt_content import contents_of, contents_of_all, group_by_content
from paco_core.data.records.records import PromptRecord
from paco_core.io.files import DataError, read_json, write_json

if TYPE_CHECKING:
    from paco_core.config.params import PolicyRecipe
    from paco_core.data.preferences import Preferences
    from paco_core.grpo.scoring import Reference

FILE = "prompts.json"


@dataclass(frozen=True)
class PromptSplit:
    """Prompts of a training, and prompts that it never samples from."""

    trained: Sequence[PromptRecord]
    unseen: Sequence[PromptRecord]
    reference: Reference | None = None  # for edits, returns the reference images of a record
    preferences: Preferences | None = None  # for an offline loss, a pair of images for each prompt in ``trained``

    def write(self, folder: Path) -> None:
        """Write ids, and the contents of the training prompts, to ``prompts.json``; benchmarks test other prompts."""
        ids = {"trained": [r.idx for r in self.trained], "unseen": [r.idx for r in self.unseen]}
        write_json(folder / FILE, {**ids, "trained_contents": sorted(contents_of_all(self.trained))})


def hold_out(records: Sequence[PromptRecord], unseen: int, seed: int) -> PromptSplit:
    """Hold ``unseen`` prompts back, chosen at random; both parts keep the order of ``records``.

    Prompts that share their content (:func:`contents_of`) are held back together, even if there are more of them.

    Raises:
        DataError: when nothing would be left to train on.
    """
    if unseen >= len(records):
        raise DataError(
            f"policies.defaults.eval_prompts={unseen} holds back all of the {len(records)} prompts; "
            f"choose at most {len(records) - 1}, or raise diverse_prompts.target"
        )
    groups = group_by_content({record.idx: contents_of(record) for record in records})
    names = list(dict.fromkeys(groups[record.idx] for record in records))
    members = Counter(groups.values())
    chosen = dict[str, int]()  # group to its number of prompts
    for number in random.Random(f"hold out {seed}").sample(range(len(names)), min(unseen, len(names))):
        if sum(chosen.values()) < unseen:
            chosen[names[number]] = members[names[number]]
    trained = [record for record in records if groups[record.idx] not in chosen]
    if not trained:
        raise DataError(
            f"policies.defaults.eval_prompts={unseen} holds back all of the {len(records)} prompts, because they share "
            "texts or themes; choose fewer, or make more prompts"
        )
    return PromptSplit(trained, [record for record in records if groups[record.idx] in chosen][:unseen])


def predefined_split(
    trained: Sequence[PromptRecord], test: Sequence[PromptRecord], unseen: int, seed: int
) -> PromptSplit:
    """Use a predefined split. ``unseen`` of the test prompts are selected at random for evaluations, in their order.

    Raises:
        DataError: if a prompt is in both parts, by its id, text or theme, or there are too few test prompts.
    """
    ids = {record.idx: record.idx for record in trained}
    owners = ids | {content: record.idx for record in trained for content in contents_of(record)}
    keys = [(record.idx, key) for record in test for key in (record.idx, *contents_of(record))]
    overlap = [(idx, owners[key]) for idx, key in keys if key in owners]
    if overlap:
        raise DataError(
            f"{len(dict(overlap))} prompts to test on have the id, text or theme of a prompt to train on, "
            f"e.g. {overlap[0][0]} of {overlap[0][1]}; remove them from one of the files"
        )
    if unseen > len(test):
        raise DataError(
            f"policies.defaults.eval_prompts={unseen}, but there are {len(test)} prompts to test on; lower it"
        )
    return PromptSplit(list(trained), _choose(test, unseen, seed))


def held_out_edits(records: Sequence[EditRecord], reference: Reference | None, unseen: int, seed: int) -> PromptSplit:
    """Use the split of editing prompts. ``unseen`` of the held-out prompts are selected for evaluations.

    Raises:
        DataError: if there are too few held-out prompts, or no training prompts.
    """
    trained, unseen_records = of_part(records, "train"), of_part(records, "unseen")
    if not trained:
        raise DataError("every editing prompt is held back, none is left to train on; lower edit_prompts.unseen")
    if unseen > len(unseen_records):
        raise DataError(
            f"policies.defaults.eval_prompts={unseen}, but only {len(unseen_records)} editing prompts are held back; "
            "raise edit_prompts.unseen, or lower policies.defaults.eval_prompts"
        )
    return PromptSplit(list(trained), _choose(unseen_records, unseen, seed), reference)


def _choose(records: Sequence[PromptRecord], count: int, seed: int) -> list[PromptRecord]:
    """``count`` records, selected at random, in their order."""
    chosen = set(random.Random(f"hold out {seed}").sample(range(len(records)), count))
    return [record for number, record in enumerate(records) if number in chosen]


def with_preferences(split: PromptSplit, preferences: Preferences) -> PromptSplit:
    """Restrict training to the prompts with a pair of ranked images.

    Raises:
        DataError: if no prompt has one.
    """
    trained = [record for record in split.trained if record.idx in preferences.pairs]
    if not trained:
        raise DataError(
            f"none of {len(split.trained)} training prompts has a best and a worst image: {len(preferences.pairs)} "
            "prompts have rankings with a difference; the losses dpo and sft need ranked images"
        )
    return replace(split, trained=trained, preferences=preferences)


def trained_prompts(folder: Path) -> set[str]:
    """Contents of the training prompts of the policy in ``folder``, or their ids if an earlier version wrote the file.

    Raises:
        DataError: if the file is missing.
    """
    prompts = read_json(folder / FILE)
    return set(prompts.get("trained_contents", prompts["trained"]))


def prompts_of_epoch(available: int, count: int, epoch: int, seed: int) -> list[int]:
    """Indices of ``count`` distinct prompts for epoch 0, 1, ...

    All prompts are shuffled and used once before they are shuffled again, so every prompt is used equally often.

    Raises:
        DataError: if one epoch needs more prompts than are available.
    """
    if available < count:
        raise DataError(
            f"prompts_per_epoch={count}, but there are only {available} training prompts; "
            f"choose at most {available} or make more prompts"
        )
    deals = available // count
    deck = list(range(available))
    random.Random(f"{seed}|{epoch // deals}").shuffle(deck)
    start = (epoch % deals) * count
    return deck[start : start + count]


def validate_even_batches(sizes: Sequence[Hashable], recipe: PolicyRecipe, world_size: int) -> None:
    """Validate that the processes can share the rollout batches of each epoch evenly, before a model is loaded.

    Batches are cut before they are distributed, so the content of a batch, and with it every rounding, does not depend
    on the number of processes. Images of several sizes are in separate batches, of which epochs have different numbers:
    then a process without a batch waits.

    Args:
        sizes: of the image of each training prompt; a batch holds images of one size.

    Raises:
        DataError: as :func:`prompts_of_epoch`, or naming the numbers of processes that share an epoch evenly.
    """
    prompts = prompts_of_epoch(len(sizes), recipe.prompts_per_epoch, 0, recipe.seed)
    if recipe.offline or len(set(sizes)) > 1:
        return
    batches = -(-len(prompts) * recipe.group_size // recipe.rollout_batch)
    if batches % world_size:
        valid = [n for n in range(1, batches + 1) if batches % n == 0]
        raise DataError(
            f"{batches} rollout batches per epoch cannot be divided evenly among {world_size} processes; valid numbers "
            f"of processes: {valid}, or change policies.defaults.rollout_batch"
        )


def validate_whole_groups(groupwise: Sequence[str], recipe: PolicyRecipe, world_size: int) -> None:
    """Rewards that compare the images of a group need the group in one process.

    Args:
        groupwise: names of such rewards.

    Raises:
        DataError: naming a rollout batch of whole groups.
    """
    if groupwise and world_size > 1 and recipe.rollout_batch % recipe.group_size:
        near = max(1, round(recipe.rollout_batch / recipe.group_size)) * recipe.group_size
        raise DataError(
            f"reward {groupwise[0]} looks at whole groups, and policies.defaults.rollout_batch="
            f"{recipe.rollout_batch} splits groups of {recipe.group_size} across processes; choose {near}"
        )


def noise_steps_of_epoch(candidates: Sequence[int], count: int | None, epoch: int, seed: int) -> list[int]:
    """The noise steps of epoch 0, 1, ...: all of ``candidates``, or ``count`` of them drawn for each epoch."""
    if count is None:
        return list(candidates)
    return sorted(random.Random(f"noise steps|{seed}|{epoch}").sample(list(candidates), count))
