"""Rankings by people, as ``paco annotate`` saved them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from paco_core.data.annotation import answer_file
from paco_core.data.annotation.store import AnnotatorAnswer
from paco_core.data.annotation.votes import RankingTask, Votes, instance_rows, is_permutation, unscored
from paco_core.data.records.records import parse_ref
from paco_core.io.files import DataError, digest
from paco_core.io.pictures import picture_digest

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image


def votes(task: RankingTask) -> Votes:
    """The latest answers in ``data/people/answers.jsonl``.

    An answer is counted in ``stale_answers`` if its instance no longer exists or has other candidates or pictures now.
    Other counts are ``cannot_tell`` and ``skipped``.

    Raises:
        DataError: if the file is missing or contains an invalid line.
    """
    pictures = instance_digester(task.instances, task.panels.panel)
    return from_answers(answer_file.latest_answers(answer_file.read_answers(task.root)), task.sizes(), pictures)


def count_answered(task: RankingTask) -> int:
    """The number of instances that are ranked or marked "cannot tell"."""
    standing_votes = votes(task) if (task.root / answer_file.FILE).is_file() else Votes([])
    return len({vote.instance_id for vote in standing_votes.rankings} | set(standing_votes.undecided))


def validate_answered(task: RankingTask, number: str, label: str) -> None:
    """Stop a round until each of its instances is answered.

    Args:
        number: of the round.
        label: of the DVC stage to run after the answers are complete.

    Raises:
        DataError: if an instance has no answer; with the progress and the command to run.
    """
    num_answered, num_instances = count_answered(task), len(task.instances)
    if num_answered < num_instances:
        raise DataError(
            f"round {number} waits for people: {num_answered} of {num_instances} rankings are answered. To answer the "
            f"remaining ones, run `paco annotate --round {number}`. Then run `dvc repro {label}`, or materialize the "
            "asset in Dagster"
        )


def from_answers(
    answers: Iterable[AnnotatorAnswer], sizes: dict[str, int], pictures: Callable[[str], str] = lambda _instance: ""
) -> Votes:
    """Votes from the last revision of every answer.

    Args:
        sizes: number of candidates of each known instance. The pictures are read in this order.
        pictures: returns the digest of the present pictures of an instance. It is called only for instances whose
            answers contain such a digest.
    """
    answers, current_answers, stale = list(answers), list[AnnotatorAnswer](), 0
    about = {answer.instance_id for answer in answers if answer.pictures}
    present_pictures = {
        name: pictures(name) for name in sizes if name in about
    }  # in this order, each grid is decoded once
    for answer in answers:
        count = sizes.get(answer.instance_id, -1)
        complete = sorted(answer.shown) == list(range(count))
        if complete and not (answer.pictures and is_outdated(answer, present_pictures[answer.instance_id])):
            current_answers.append(answer)
        else:
            stale += 1
    verdicts = Counter(answer.verdict for answer in current_answers)
    return Votes(
        rankings=[
            unscored(answer.instance_id, answer.annotator, answer.ranking)
            for answer in current_answers
            if answer.ranking is not None and is_permutation(list(answer.ranking), len(answer.shown))
        ],
        undecided=Counter(answer.instance_id for answer in current_answers if answer.verdict == "cannot_tell"),
        counts={
            "cannot_tell": verdicts["cannot_tell"],
            "skipped": verdicts["skipped"],
            "stale_answers": stale,
        },
    )


def instance_digester(
    instances: pd.DataFrame,
    panel: Callable[[str], Image],
    versions: Mapping[str, str] | None = None,
    panel_digests: MutableMapping[str, str] | None = None,
) -> Callable[[str], str]:
    """Build a function from an instance id to the digest of the present pixels of the instance.

    An instance refers to grids by id, and a grid can be generated again with the same id. Each panel is read once. The
    digest is "" if a panel cannot be read.

    Args:
        instances: columns ``instance_id``, ``reference`` (may be empty), ``candidates``.
        panel: reads a panel by its reference, ``GRID_ID#NUMBER``.
        versions: version of each grid, by id (:meth:`paco_core.data.records.panels.PanelStore.versions`).
        panel_digests: ``VERSION#NUMBER`` -> digest of a panel. These panels are not read; new digests are added.
    """
    versions, panel_digests = versions or {}, {} if panel_digests is None else panel_digests

    @cache
    def panel_digest(ref: str) -> str:
        grid, number = parse_ref(ref)
        if grid not in versions:
            return picture_digest(panel(ref))
        if (key := f"{versions[grid]}#{number}") not in panel_digests:
            panel_digests[key] = picture_digest(panel(ref))
        return panel_digests[key]

    rows = {
        name: [ref for ref in (reference, *candidates) if ref]
        for name, reference, candidates in instance_rows(instances)
    }
    return cache(lambda instance_id: digest_panels(panel_digest, rows[instance_id]))


def digest_panels(panel_digest: Callable[[str], str], refs: Sequence[str]) -> str:
    """Digest of a reference and its candidates, from digests of their pixels; "" if one cannot be read."""
    try:
        return digest([panel_digest(ref) for ref in refs], 16)
    except DataError:
        return ""


def is_outdated(answer: AnnotatorAnswer, present: str) -> bool:
    """Whether an answer is about other pictures than the present ones; False if either digest is unknown."""
    return bool(answer.pictures and present) and answer.pictures != present
