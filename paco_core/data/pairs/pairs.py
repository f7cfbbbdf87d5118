"""Pairs: rankings as Yes/No pairs, split into training, validation and a held-out benchmark.

The paper gives no rule for the labels. In paco, the top candidate is consistent with the reference (Yes), and the
bottom candidate is not (No). A ranking is relative: its top candidate can still differ from the reference, and its
bottom candidate can equal it. With ``confident``, such labels are dropped if the annotator gave scores.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from paco_core.data.annotation.votes import Annotation
from paco_core.data.pairs.answers import NO, YES
from paco_core.data.pairs.limits import candidates_per_end, held_out_units, validate_candidate_count
from paco_core.data.records.records import PromptRecord
from paco_core.data.seeds import random_key
from paco_core.io.files import DataError, digest

if TYPE_CHECKING:
    from paco_core.config.params import PairsParams

COLUMNS = ("pair_id", "prompt_id", "theme", "first", "second", "label", "instruction", "answer")
#: Further columns, which tables made elsewhere may lack: the instruction template, and of character pairs
#: (:mod:`.characters`) the name, the kind of the panel, and the number of images of the character.
QUESTION, CHARACTER, KIND, REFERENCES = "question", "character", "kind", "references"
MORE_COLUMNS = (QUESTION, CHARACTER, KIND, REFERENCES)
BENCHMARK_COLUMNS = (
    "instance_id", "prompt_id", "theme", "reference", "candidates", "ranking", "scores", "tied",
)  # fmt: skip
IMBALANCE = 0.03  # share by which the larger class may exceed the smaller one


class Instance(NamedTuple):
    """A ranking instance with its adjudicated ranking."""

    instance_id: str
    prompt_id: str
    reference: str
    candidates: list[str]
    annotation: Annotation


class Pair(NamedTuple):
    """Two panels of one prompt, or a picture and its edited version, with the label of their consistency.

    Only editing pairs have an ``instruction``, and only character pairs have a ``character``. ``answer`` is None if the
    reasons are not yet written. ``theme`` is None if it is the theme of the prompt. ``question`` is None if it is the
    default question of this kind of pair.
    """

    pair_id: str
    prompt_id: str
    first: str
    second: str
    label: str
    instruction: str | None = None
    answer: str | None = None
    theme: str | None = None
    question: str | None = None  # name of an instruction template
    character: str | None = None  # name of the character of the first picture
    kind: str | None = None  # of a character pair: "positive", or what is wrong with the panel
    references: int | None = None  # number of pictures of the character


@dataclass
class Split:
    """The three tables, and the number of dropped pairs and instances by cause."""

    train: list[Pair]
    validation: list[Pair]
    benchmark: list[Instance]
    dropped: Counter[str] = field(default_factory=Counter)
    leaked_pairs: int = 0  # training or validation pairs with a panel of the benchmark

    def metrics(self) -> dict[str, float]:
        """Counts for the stage's report."""
        return {
            "train": len(self.train),
            "train_yes": sum(pair.label == YES for pair in self.train),
            "train_given": sum(pair.answer is not None for pair in self.train),
            "train_editing": sum(pair.instruction is not None for pair in self.train),
            **self._character_counts(),
            "validation": len(self.validation),
            "validation_yes": sum(pair.label == YES for pair in self.validation),
            "benchmark": len(self.benchmark),
            "benchmark_prompts": len({instance.prompt_id for instance in self.benchmark}),
            "leaked_pairs": self.leaked_pairs,
            **dict.fromkeys(("dropped.contradiction", "dropped.duplicate"), 0),  # reported also where there are none
            **{f"dropped.{cause}": count for cause, count in sorted(self.dropped.items())},
        }

    def _character_counts(self) -> dict[str, float]:
        """Counts of character pairs by kind; empty without such pairs."""
        counts = Counter(pair.kind for pair in self.train if pair.kind is not None)
        return {f"train_characters.{kind}": count for kind, count in sorted(counts.items())}


def join(instances: pd.DataFrame, annotations: Mapping[str, Annotation]) -> tuple[list[Instance], int]:
    """Join instances with their annotations by id; also returns the number of instances without an annotation.

    Raises:
        DataError: if the instance of an annotation is unknown.
    """
    rows = {str(row["instance_id"]): row for row in instances.to_dict("records")}
    if unknown := annotations.keys() - rows.keys():
        raise DataError(
            f"the instances of {len(unknown)} annotations are unknown, for example {min(unknown)}; "
            "run `dvc repro annotations`"
        )
    joined = [
        Instance(key, str(row["prompt_id"]), row["reference"], list(row["candidates"]), annotations[key])
        for key, row in sorted(rows.items())
        if key in annotations
    ]
    return joined, len(rows) - len(joined)


def build_pairs(
    instances: Sequence[Instance], rule: str, *, confident: bool = False
) -> tuple[list[Pair], Counter[str]]:
    """Build distinct pairs by a rule; also returns the number of dropped pairs by cause.

    The order of the two panels does not matter. If a pair occurs again with the same label, it is a duplicate. If it
    occurs with both labels, it is a contradiction, and all its occurrences are dropped.

    Args:
        rule: ``top1_bottom1``, ``top2_bottom2`` or ``adjacent`` (Yes for the best, No for the second best candidate,
            which is the hardest contrast).
        confident: drop labels that contradict the annotator's scores.

    Raises:
        DataError: if a rule needs more candidates than an instance has.
    """
    labels: dict[tuple[str, str], list[tuple[Instance, str, str]]] = {}
    dropped: Counter[str] = Counter()
    for instance in instances:
        for position, label in _chosen(instance, rule):
            score = instance.annotation.scores[position]
            if confident and not math.isnan(score) and (score >= 1.0) != (label == YES):
                dropped["top_differs" if label == YES else "bottom_agrees"] += 1
                continue
            other = instance.candidates[position]
            first, second = sorted((instance.reference, other))
            labels.setdefault((first, second), []).append((instance, other, label))
    pairs = []
    for key, votes in sorted(labels.items()):
        if len({label for _, _, label in votes}) > 1:
            dropped["contradiction"] += len(votes)
            continue
        dropped["duplicate"] += len(votes) - 1
        instance, other, label = votes[0]
        pairs.append(Pair(digest(key, 16), instance.prompt_id, instance.reference, other, label))
    return sorted(pairs), +dropped  # without zeros


def _chosen(instance: Instance, rule: str) -> Iterator[tuple[int, str]]:
    """(candidate position, label) of one ranking."""
    ranking = instance.annotation.ranking
    count = candidates_per_end(rule)
    validate_candidate_count(rule, len(ranking), f"instance {instance.instance_id}")
    below = ranking[1:2] if rule == "adjacent" else ranking[-count:]
    yield from ((position, YES) for position in ranking[:count])
    yield from ((position, NO) for position in below)


def split_pairs(
    instances: Sequence[Instance],
    params: PairsParams,
    *other_pairs: Sequence[Pair],
    held_out: Sequence[Pair] = (),
    groups: Mapping[str, str] = MappingProxyType({}),
) -> Split:
    """Hold out a benchmark, build pairs of the other rankings, add further pairs, split off validation, and balance.

    A split by prompt puts each prompt, and each group of prompts, into only one of the three sets. A split by instance,
    as in the paper, leaks panels of the benchmark into training; the leaked pairs are counted. The held-out prompts
    depend on the seed and on each prompt's id, so additional prompts change the split of few existing prompts.

    Args:
        other_pairs: pairs of other kinds; the imported ones come last. A validation set is held out of each kind,
            except of imported pairs if their publisher holds some out.
        held_out: imported pairs that their publisher holds out. They are all used for validation.
        groups: prompt id to the group of prompts that share content, as :func:`group_by_content` returns it.

    Raises:
        DataError: if a set would be empty although its share is not 0.
    """

    def unit(instance: Instance) -> str:
        by_prompt = groups.get(instance.prompt_id, instance.prompt_id)
        return by_prompt if params.split == "prompt" else instance.instance_id

    units = {unit(i) for i in instances}
    benchmark_units, other_units = split_units(units, params.benchmark_share, f"{params.seed}|benchmark", "benchmark")
    benchmark = [i for i in instances if unit(i) in benchmark_units]
    dropped: Counter[str] = Counter()
    if params.benchmark_untied:
        ordered = [i for i in benchmark if not i.annotation.all_tied]
        dropped["benchmark_all_tied"] = len(benchmark) - len(ordered)
        benchmark = ordered
    remaining = [i for i in instances if unit(i) in other_units]
    pairs, causes = build_pairs(remaining, params.rule, confident=params.confident)
    dropped += causes
    pairs += identical_pairs(pairs, params.identical_share, params.seed)
    *kinds, imported = (pairs, *other_pairs) if held_out else (pairs, *other_pairs, [])
    divided = [_validation(group, params, groups) for group in kinds if group]
    divided.append((list(imported), list(held_out)))
    parts = [[pair for group in divided for pair in group[n]] for n in (0, 1)]
    if params.balance:
        balanced = [balance_classes(part, params.seed) for part in parts]
        dropped["balance"] = sum(map(len, parts)) - sum(map(len, balanced))
        parts = balanced
    panels = {ref for i in benchmark for ref in (i.reference, *i.candidates)}
    leaked = sum(pair.first in panels or pair.second in panels for part in parts for pair in part)
    return Split(parts[0], parts[1], benchmark, +dropped, leaked)


def identical_pairs(pairs: Sequence[Pair], share: float, seed: int) -> list[Pair]:
    """Pairs of a panel with itself, labelled Yes: ``share`` per existing pair, selected by seed and id."""
    prompts = {ref: pair.prompt_id for pair in pairs for ref in (pair.first, pair.second)}
    chosen = sorted(prompts, key=lambda ref: random_key(f"{seed}|identical", ref))[: round(share * len(pairs))]
    return [Pair(digest((ref, ref), 16), prompts[ref], ref, ref, YES) for ref in chosen]


def _validation(pairs: Sequence[Pair], params: PairsParams, groups: Mapping[str, str]) -> tuple[list[Pair], list[Pair]]:
    """(training, validation) of pairs of one kind: from rankings, edits, imported."""

    def unit(pair: Pair) -> str:
        return groups.get(pair.prompt_id, pair.prompt_id) if params.split == "prompt" else pair.pair_id

    unseen, _ = split_units(
        {unit(p) for p in pairs}, params.validation_share, f"{params.seed}|validation", "validation"
    )
    return [p for p in pairs if unit(p) not in unseen], [p for p in pairs if unit(p) in unseen]


def balance_classes(pairs: Sequence[Pair], seed: int) -> list[Pair]:
    """Drop pairs of the larger class until it exceeds the smaller class by at most 3%.

    The dropped pairs are selected by seed and id. Editing and character pairs are dropped last, because there are few
    of them.
    """
    classes = {label: [pair for pair in pairs if pair.label == label] for label in (YES, NO)}
    smaller = min(map(len, classes.values()))
    limit = int(smaller * (1 + IMBALANCE))
    chosen: list[Pair] = []
    for members in classes.values():
        chosen += sorted(members, key=lambda p: (_from_ranking(p), random_key(seed, "balance", p.pair_id)))[:limit]
    return sorted(chosen)


def _from_ranking(pair: Pair) -> bool:
    return pair.instruction is None and pair.character is None


def split_units(units: set[str], share: float, salt: str, name: str) -> tuple[set[str], set[str]]:
    """Divide units by a share that is held out, selected by ``salt`` and unit.

    Args:
        name: name of the share in ``pairs``, for the error.

    Returns:
        (held-out units, other units); both are empty without units, for example in a project without rankings.

    Raises:
        DataError: if the share would hold out all units although it is below 1.
    """
    if not units:
        return set(), set()
    ordered = sorted(units, key=lambda unit: random_key(salt, unit))
    count = held_out_units(len(ordered), share, name)
    return set(ordered[:count]), set(ordered[count:])


def pair_table(pairs: Sequence[Pair], records: Mapping[str, PromptRecord]) -> pd.DataFrame:
    """Pairs with themes (columns :data:`COLUMNS`, :data:`MORE_COLUMNS`). Editing pairs have no theme."""

    def theme(pair: Pair) -> str:
        if pair.theme is not None or pair.instruction is not None:
            return pair.theme or ""
        return _theme(records, pair.prompt_id)

    rows = [
        (
            p.pair_id, p.prompt_id, theme(p), p.first, p.second, p.label, p.instruction, p.answer, p.question,
            p.character, p.kind, p.references,
        )
        for p in pairs
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=[*COLUMNS, *MORE_COLUMNS])


def benchmark_table(instances: Sequence[Instance], records: Mapping[str, PromptRecord]) -> pd.DataFrame:
    """Held-out rankings with their themes (columns :data:`BENCHMARK_COLUMNS`)."""
    rows: list[tuple[object, ...]] = []
    for i in instances:
        vote, theme = i.annotation, _theme(records, i.prompt_id)
        cells = (i.instance_id, i.prompt_id, theme, i.reference, i.candidates, vote.ranking, vote.scores, vote.tied)
        rows.append(cells)
    return pd.DataFrame(rows, columns=list(BENCHMARK_COLUMNS))


def _theme(records: Mapping[str, PromptRecord], prompt_id: str) -> str:
    if prompt_id not in records:
        raise DataError(f"prompt {prompt_id} is not in the diverse prompts; run `dvc repro grids` again")
    return records[prompt_id].theme
