"""Rankings by people, as ``paco annotate`` saved them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from paco_core.data.annotation import answer_file
from paco_core.data.annotation.store import AnnotatorAnswer
from paco_core.data.annotation.votes import RankingTask, Votes, instance_rows, orders, unscored
from paco_core.data.records.records import parse_ref
from paco_core.io.files import DataError, digest
from paco_core.io.pictures import picture_digest

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image


def votes(task: RankingTask) -> Votes:
    """The standing answers of ``data/people/answers.jsonl``.

    Answers to instances that are no longer there, or that have other candidates or pictures now, are counted as
    ``stale_answers``; "cannot tell" and skips are counted as well.

    Raises:
        DataError: when there is no such file; naming its line that is no answer.
    """
    pictures = present(task.instances, task.panels.panel)
    return from_answers(answer_file.latest(answer_file.read(task.root)), task.sizes(), pictures)


def answered(task: RankingTask) -> int:
    """How many instances are ranked, or somebody could not tell."""
    found = votes(task) if (task.root / answer_file.FILE).is_file() else Votes([])
    return len({vote.instance_id for vote in found.rankings} | set(found.undecided))


def refuse_unanswered(task: RankingTask, number: str, label: str) -> None:
    """Let a round wait until each of its instances is answered.

    Raises:
        DataError: naming how many are answered, and what to run.
    """
    done, asked = answered(task), len(task.instances)
    if done < asked:
        raise DataError(
            f"round {number} waits for people: {done} of {asked} rankings are answered. `paco annotate --round "
            f"{number}` opens the page for the others; then `dvc repro {label}` goes on, or the asset in Dagster"
        )


def from_answers(
    answers: Iterable[AnnotatorAnswer], sizes: dict[str, int], pictures: Callable[[str], str] = lambda _instance: ""
) -> Votes:
    """Votes from the last revision of every answer.

    Args:
        sizes: number of candidates of each known instance, in the order in which their pictures are best read.
        pictures: digest of the present pictures of an instance; asked only where an answer names what was seen.
    """
    answers, known, stale = list(answers), list[AnnotatorAnswer](), 0
    about = {answer.instance_id for answer in answers if answer.pictures}
    seen = {name: pictures(name) for name in sizes if name in about}  # in the table's order, so a grid is decoded once
    for answer in answers:
        count = sizes.get(answer.instance_id, -1)
        same = sorted(answer.shown) == list(range(count))
        if same and not (answer.pictures and is_outdated(answer, seen[answer.instance_id])):
            known.append(answer)
        else:
            stale += 1
    verdicts = Counter(answer.verdict for answer in known)
    return Votes(
        rankings=[
            unscored(answer.instance_id, answer.annotator, answer.ranking)
            for answer in known
            if answer.ranking is not None and orders(list(answer.ranking), len(answer.shown))
        ],
        undecided=Counter(answer.instance_id for answer in known if answer.verdict == "cannot_tell"),
        counts={
            "cannot_tell": verdicts["cannot_tell"],
            "skipped": verdicts["skipped"],
            "stale_answers": stale,
        },
    )


def present(
    instances: pd.DataFrame,
    panel: Callable[[str], Image],
    versions: Mapping[str, str] | None = None,
    known: MutableMapping[str, str] | None = None,
) -> Callable[[str], str]:
    """A function from an instance id to the digest of the pixels that the instance shows now.

    An instance is named by ids of grids, and a grid may be painted again under its id. Each panel is read once. The
    digest is "" where a panel cannot be read.

    Args:
        instances: columns ``instance_id``, ``reference``, ``candidates``.
        panel: reads a panel by its reference, ``GRID_ID#NUMBER``.
        versions: of grids, by id (:meth:`paco_core.data.records.panels.PanelStore.versions`).
        known: ``VERSION#NUMBER`` -> digest of that panel, which is not read. Digests of panels that are read are added.
    """
    versions, known = versions or {}, {} if known is None else known

    @cache
    def panel_digest(ref: str) -> str:
        grid, number = parse_ref(ref)
        if grid not in versions:
            return picture_digest(panel(ref))
        if (key := f"{versions[grid]}#{number}") not in known:
            known[key] = picture_digest(panel(ref))
        return known[key]

    rows = {name: (reference, *candidates) for name, reference, candidates in instance_rows(instances)}
    return cache(lambda instance_id: digest_of(panel_digest, rows[instance_id]))


def digest_of(panel_digest: Callable[[str], str], refs: Sequence[str]) -> str:
    """Digest of a reference and its candidates, in their order, from digests of their pixels; "" where one fails."""
    try:
        return digest([panel_digest(ref) for ref in refs], 16)
    except DataError:
        return ""


def is_outdated(answer: AnnotatorAnswer, present: str) -> bool:
    """Whether an answer is about other pictures than the present ones, as far as both are known."""
    return bool(answer.pictures and present) and answer.pictures != present
