"""The verb ``paco annotate``: serve the page, tell how a study stands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core import paths
from paco_core.dataset.annotation.agreement import agreement
from paco_core.dataset.annotation.people import from_answers
from paco_core.dataset.annotation.store import AnswerStore
from paco_core.files import DataError, read_table
from paco_core.params import PARAMS_FILE, load

if TYPE_CHECKING:
    from paco_core.dataset.annotation.desk import Desk

ANNOTATORS, OVERLAP = 1, 1


@dataclass(frozen=True)
class Wish:
    """What a study is asked to be; None keeps what it was when it was served last."""

    annotators: int | None = None
    overlap: int | None = None
    instances: int | None = None
    retire: str | None = None


def serve(root: Path, port: int, wish: Wish) -> None:
    """Serve the page until Ctrl-C, with a link for every annotator on standard output.

    Raises:
        DataError: when rankings or grids are missing, the overlap exceeds the annotators, or the port is taken.
    """
    from paco_core.dataset.annotation import server

    path = root / load(root / PARAMS_FILE).annotations.store
    listener = server.listen(port)
    try:
        with AnswerStore(path, create=True) as store:
            desk = open_desk(root, store, wish)
            address = f"http://{server.HOST}:{listener.getsockname()[1]}"
            print(_welcome(desk, path.relative_to(root) if path.is_relative_to(root) else path, address), flush=True)
            server.serve(desk, listener)
    finally:
        listener.close()


def open_desk(root: Path, store: AnswerStore, wish: Wish) -> Desk:
    """The study as it was served last, changed as asked."""
    from paco_core.dataset.annotation.desk import Desk
    from paco_core.dataset.panels import PanelStore

    for name, value in (("annotators", wish.annotators), ("overlap", wish.overlap), ("instances", wish.instances)):
        if value is not None and value < 1:
            raise DataError(f"--{name} {value}: at least 1")
    if wish.retire is not None:
        store.retire(wish.retire)
    active = sum(one.active for one in store.annotators())
    people = wish.annotators if wish.annotators is not None else max(active, ANNOTATORS)
    overlap = store.setting("overlap", wish.overlap, min(OVERLAP, people)) or OVERLAP
    if overlap > people:
        raise DataError(f"--overlap {overlap}: each instance needs that many annotators, there are {people}")
    store.recruit(people)
    count = store.setting("instances", wish.instances)
    instances = read_table(root / paths.RANKINGS / "instances.parquet")
    return Desk(store, instances, PanelStore.below(root / paths.GRIDS), overlap, count)


def _welcome(desk: Desk, path: Path, address: str) -> str:
    active = [one for one in desk.annotators if one.active]
    progress = {name: f"{done} of {total}" for name, (done, total) in desk.progress().items()}
    lines = [
        f"{len(desk.chosen)} of {len(desk.instances)} instances, each for {desk.overlap} of {len(active)} annotators; "
        f"answers in {path}",
        *(f"  {one.name:<14} {address}/a/{one.token}   {progress[one.name]}" for one in active),
        "Ctrl-C ends; the same command goes on where everybody was.",
    ]
    return "\n".join(lines)


def export(root: Path, folder: Path, address: str | None) -> str:
    """Write the study for Label Studio, with the rankings that are there already.

    Raises:
        DataError: when the folder exists, or there are no rankings to annotate.
    """
    from paco_core.dataset.annotation import assignment, label_studio
    from paco_core.dataset.panels import PanelStore

    table, votes = read_table(root / paths.RANKINGS / "instances.parquet"), []
    path = root / load(root / PARAMS_FILE).annotations.store
    if path.is_file():
        with AnswerStore(path) as store:
            sizes = dict(zip(table["instance_id"], map(len, table["candidates"]), strict=True))
            votes = from_answers(store.latest(), sizes).rankings
            table = table[table["instance_id"].isin(assignment.sample(sizes, store.setting("instances", None)))]
    where = address if address is not None else f"{label_studio.LOCAL_FILES}{folder.name}/"
    count = label_studio.export(folder, table, PanelStore.below(root / paths.GRIDS), votes, where)
    return (
        f"{folder}: {count} tasks (tasks.json), config.xml, images/; {len(votes)} rankings as predictions\n"
        f"pictures are expected at {where}images/"
    )


def status(root: Path) -> str:
    """How far everybody is, how well they agree, and who is doubtful.

    Raises:
        DataError: when there is no store.
    """
    path = root / load(root / PARAMS_FILE).annotations.store
    with AnswerStore(path) as store:
        desk = open_desk(root, store, Wish())
        sizes = {name: len(instance.candidates) for name, instance in desk.instances.items()}
        found = from_answers(store.latest(), sizes)
        progress = desk.progress()
    lines = [
        f"{len({vote.instance_id for vote in found.rankings})} of {len(desk.chosen)} instances ranked, "
        f"{len(found.rankings)} rankings, {found.counts['cannot_tell']:.0f} x cannot tell, "
        f"{found.counts['skipped']:.0f} skipped, {found.counts['stale_answers']:.0f} for instances that are gone",
        "done: " + ", ".join(f"{name} {done} of {total}" for name, (done, total) in progress.items()),
        agreement(found.rankings, found.habits).text(),
    ]
    return "\n".join(lines)
