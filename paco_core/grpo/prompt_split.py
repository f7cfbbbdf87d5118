"""Which prompts a policy trains on and which it is watched on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.data.records.edit_records import EditRecord, of_part
from paco_core.data.records.prompt_content import contents_of, contents_of_all, group_by_content
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.scoring import Reference
from paco_core.io.files import DataError, read_json, write_json

if TYPE_CHECKING:
    from paco_core.data.preferences import Preferences

FILE = "prompts.json"


@dataclass(frozen=True)
class PromptSplit:
    """Prompts of a training, and prompts that it never samples from."""

    trained: Sequence[PromptRecord]
    unseen: Sequence[PromptRecord]
    reference: Reference | None = None  # of edits, what gives the pictures that a record is about
    preferences: Preferences | None = None  # of an offline loss, a pair of each prompt in ``trained``

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


def given_split(trained: Sequence[PromptRecord], test: Sequence[PromptRecord], unseen: int, seed: int) -> PromptSplit:
    """Prompts that come split; ``unseen`` of those to test on are watched, chosen at random, in their order.

    Raises:
        DataError: when a prompt is in both parts, by its id, text or theme, or the tests are too few.
    """
    ids = {record.idx: record.idx for record in trained}
    owners = ids | {content: record.idx for record in trained for content in contents_of(record)}
    both = [(record.idx, owners[key]) for record in test for key in (record.idx, *contents_of(record)) if key in owners]
    if both:
        raise DataError(
            f"{len({idx for idx, _ in both})} prompts to test on have the id, text or theme of a prompt to train on, "
            f"e.g. {both[0][0]} of {both[0][1]}; remove them from one of the files"
        )
    if unseen > len(test):
        raise DataError(
            f"policies.defaults.eval_prompts={unseen}, but there are {len(test)} prompts to test on; lower it"
        )
    chosen = set(random.Random(f"hold out {seed}").sample(range(len(test)), unseen))
    return PromptSplit(list(trained), [record for n, record in enumerate(test) if n in chosen])


def held_out_edits(records: Sequence[EditRecord], reference: Reference | None, unseen: int, seed: int) -> PromptSplit:
    """Editing prompts come split by picture; ``unseen`` of those that were held back are watched.

    Raises:
        DataError: when fewer were held back, or nothing is left to train on.
    """
    trained, held = of_part(records, "train"), of_part(records, "unseen")
    if not trained:
        raise DataError("every editing prompt is held back, none is left to train on; lower edit_prompts.unseen")
    if unseen > len(held):
        raise DataError(
            f"policies.defaults.eval_prompts={unseen}, but only {len(held)} editing prompts are held back; "
            "raise edit_prompts.unseen, or lower policies.defaults.eval_prompts"
        )
    chosen = set(random.Random(f"hold out {seed}").sample(range(len(held)), unseen))
    return PromptSplit(list(trained), [record for n, record in enumerate(held) if n in chosen], reference)


def preferred(split: PromptSplit, preferences: Preferences) -> PromptSplit:
    """The same, trained on the prompts alone that have a pair.

    Raises:
        DataError: when none has.
    """
    trained = [record for record in split.trained if record.idx in preferences.pairs]
    if not trained:
        raise DataError(
            f"none of {len(split.trained)} training prompts has a best and a worst picture: {len(preferences.pairs)} "
            "prompts are ranked with a difference; the losses dpo and sft learn from ranked pictures alone"
        )
    return replace(split, trained=trained, preferences=preferences)


def trained_prompts(folder: Path) -> set[str]:
    """Contents of the prompts that the policy in ``folder`` was trained on; their ids, if an earlier version wrote it.

    Raises:
        DataError: when the folder names none.
    """
    prompts = read_json(folder / FILE)
    return set(prompts.get("trained_contents", prompts["trained"]))
