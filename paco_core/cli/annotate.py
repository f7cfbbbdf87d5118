"""``paco annotate``: serve the annotation page, save its answers, and print the progress."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.config.params import PARAMS_FILE, load
from paco_core.data.annotation import answer_file
from paco_core.data.annotation.agreement import measure_agreement
from paco_core.data.annotation.people import from_answers, instance_digester
from paco_core.data.annotation.rankings import COLUMNS
from paco_core.data.annotation.rounds import annotation_source, task_of_round
from paco_core.data.annotation.store import AnswerStore
from paco_core.data.records.records import read_prompts
from paco_core.io import paths
from paco_core.io.answer import Answer
from paco_core.io.files import DataError, read_table
from paco_core.io.targets import checked
from paco_core.io.text_table import text_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd

    from paco_core.data.annotation.image_groups import ImageFiles
    from paco_core.data.annotation.queue import AnnotationQueue
    from paco_core.data.annotation.votes import Annotation
    from paco_core.data.records.panels import PanelStore

ANNOTATORS, OVERLAP = 1, 1
LABEL_STUDIO = "label-studio"  # the export that contains open tasks, too


@dataclass(frozen=True)
class AnnotateOptions:
    """Options of a study. None keeps the value of the last time."""

    annotators: int | None = None
    overlap: int | None = None
    instances: int | None = None
    retire: str | None = None
    round: str | None = None


def serve(root: Path, port: int, options: AnnotateOptions) -> None:
    """Serve the page until Ctrl-C, print a link for each annotator, and save the answers at the end.

    Answers that a killed server did not save are saved at the start.

    Raises:
        DataError: if rankings or grids are missing, the overlap exceeds the annotators, or the port is in use.
    """
    from paco_core.data.annotation import server

    listener = server.listen(port)
    try:
        with _store(root, create=True) as store:
            queue = open_queue(root, store, options)
            answer_file.save_answers(root, store)
            address = f"http://{server.HOST}:{listener.getsockname()[1]}"
            print(welcome(queue, _relative(root, store.path), address), flush=True)
            server.serve_annotation(queue, listener, lambda: print(_saved(root, store, options.round), flush=True))
    finally:
        listener.close()


def _store(root: Path, *, create: bool = False) -> AnswerStore:
    path = root / load(root / PARAMS_FILE).annotations.store
    return answer_file.open_store(root, path, lambda line: print(line, file=sys.stderr, flush=True), create=create)


def _relative(root: Path, path: Path) -> Path:
    return path.relative_to(root) if path.is_relative_to(root) else path


def _saved(root: Path, store: AnswerStore, number: str | None) -> str:
    """Save the answers, and return the result as text. The answers stay in the store if this fails.

    Args:
        number: the round; None for the graph itself.
    """
    try:
        source = annotation_source(load(root / PARAMS_FILE), number)
        key = "annotations.source" if number is None else f"rounds.items.{number}.annotations"
        read = "" if source == "people" else f"; {key} is {source!r}, the graph reads them when it is 'people'"
        return f"{answer_file.save_answers(root, store)} answers in {answer_file.FILE}{read}"
    except (DataError, OSError) as error:
        return f"not saved in {answer_file.FILE} ({error}); the answers are in {_relative(root, store.path)}: " + (
            "run `paco annotate save` when that is fixed"
        )


def save(root: Path) -> str:
    """Write the answers to the file that the stage ``annotations`` reads, and return their number as text.

    Raises:
        DataError: if there is no store, or the file contains answers that the store does not have.
    """
    with _store(root) as store:
        return f"{answer_file.save_answers(root, store)} answers in {answer_file.FILE}"


def apply_options(store: AnswerStore, options: AnnotateOptions) -> int:
    """Store the settings of a study, add and retire annotators; the number of annotators per instance.

    Raises:
        DataError: if a number is below 1, the overlap exceeds the annotators, or an annotator is unknown.
    """
    for name, value in (
        ("annotators", options.annotators),
        ("overlap", options.overlap),
        ("instances", options.instances),
    ):
        if value is not None and value < 1:
            raise DataError(f"--{name} {value}: at least 1")
    if options.retire is not None:
        store.retire(options.retire)
    active = sum(annotator.active for annotator in store.annotators())
    people = options.annotators if options.annotators is not None else max(active, ANNOTATORS)
    overlap = store.setting("overlap", options.overlap, min(OVERLAP, people)) or OVERLAP
    if overlap > people:
        raise DataError(f"--overlap {overlap}: each instance needs that many annotators, there are {people}")
    store.recruit(people)
    return overlap


def open_queue(root: Path, store: AnswerStore, options: AnnotateOptions) -> AnnotationQueue:
    """The study with the settings of the last time, changed by the options."""
    from paco_core.data.annotation.queue import AnnotationQueue
    from paco_core.data.records.panels import PanelStore

    overlap = apply_options(store, options)
    if options.round is not None:
        task = task_of_round(root, load(root / PARAMS_FILE), options.round)
        return AnnotationQueue(store, task.instances, task.panels, overlap)
    count = store.setting("instances", options.instances)
    instances = read_table(root / paths.RANKINGS / "instances.parquet", require=COLUMNS)
    return AnnotationQueue(store, instances, PanelStore.below(root / paths.GRIDS), overlap, count)


def welcome(queue: AnnotationQueue, path: Path, address: str) -> str:
    """The size of a study, and the link and the progress of each annotator."""
    active = [annotator for annotator in queue.annotators if annotator.active]
    progress = {name: f"{count} of {total}" for name, (count, total) in queue.progress().items()}
    lines = [
        f"{len(queue.chosen)} of {len(queue.instances)} instances, each for {queue.overlap} of {len(active)} "
        f"annotators; answers in {path}",
        *text_table(
            [(annotator.name, f"{address}/a/{annotator.token}", progress[annotator.name]) for annotator in active],
            indent="  ",
        ),
        "Ctrl-C stops; the same command resumes where everybody was.",
    ]
    return "\n".join(lines)


def export(root: Path, form: str, folder: Path, address: str | None) -> str:
    """Export the rankings in a format of trainers, or the tasks to Label Studio.

    Raises:
        DataError: if the folder exists, or there is no ranking to export.
    """
    from paco_core.data.records.panels import PanelStore

    checked(folder, "new folder")
    table = read_table(root / paths.RANKINGS / "instances.parquet", require=COLUMNS)
    table, panels = table.assign(prompt=_themes(root, table["prompt_id"])), PanelStore.below(root / paths.GRIDS)
    if not answer_file.exists(root, root / load(root / PARAMS_FILE).annotations.store):
        return export_study(form, folder, table, panels, None, address)
    with _store(root) as store:
        return export_study(form, folder, table, panels, store, address)


def _themes(root: Path, prompt_ids: Iterable[str]) -> list[str]:
    """The theme of each prompt, which is the text that all panels of its grids share; else its id."""
    themes = {
        record.idx: record.theme
        for folder in (paths.PROMPTS, paths.DIVERSE_PROMPTS)
        if (root / folder / "prompts.jsonl").is_file()
        for record in read_prompts(root / folder / "prompts.jsonl")
    }
    return [themes.get(prompt_id, prompt_id) for prompt_id in prompt_ids]


def export_study(
    form: str,
    folder: Path,
    instances: pd.DataFrame,
    images: PanelStore | ImageFiles,
    store: AnswerStore | None,
    address: str | None,
) -> str:
    """Write the latest rankings of a study into a new folder.

    Args:
        instances: columns ``instance_id``, ``prompt``, ``reference``, ``candidates``.
        store: None if nobody has answered yet.
        address: of the folder in Label Studio.
    """
    from paco_core.data.annotation import assignment, character_rankings, label_studio, preference_files

    checked(folder, "new folder")
    votes: list[Annotation] = []
    if store is not None:
        sizes = dict(zip(instances["instance_id"], map(len, instances["candidates"]), strict=True))
        votes = from_answers(
            store.latest(), sizes, instance_digester(instances, images.panel, images.versions())
        ).rankings
        chosen = assignment.sample(sizes, store.setting("instances", None))
        if form == LABEL_STUDIO:
            instances = instances[instances["instance_id"].isin(chosen)]
    if form == character_rankings.CHARACTERS:
        if "characters" not in instances:
            raise DataError("the format characters is for images with characters; add --pictures PATH")
        count = character_rankings.export_stories(folder, instances, votes, images)
        return f"{folder / character_rankings.STORIES}: {count} groups of {len(votes)} rankings"
    if form != LABEL_STUDIO:
        pairs = list(preference_files.preference_pairs(instances, votes))
        preference_files.export_pairs(form, folder, pairs, images)
        return f"{folder}: {len(pairs)} pairs of {len(votes)} rankings"
    url = address if address is not None else f"{label_studio.LOCAL_FILES}{folder.name}/"
    count = label_studio.export_tasks(folder, instances, images, votes, url)
    return (
        f"{folder}: {count} tasks (tasks.json), config.xml, images/; {len(votes)} rankings as predictions\n"
        f"images are expected at {url}images/"
    )


def status(root: Path, number: str | None = None) -> Answer:
    """Progress and agreement of the annotators.

    Raises:
        DataError: if there is no store.
    """
    with _store(root) as store:
        unsaved = answer_file.count_unsaved(root, store.every())
        queue = open_queue(root, store, AnnotateOptions(round=number))
        return report(queue, unsaved, answer_file.FILE)


def report(queue: AnnotationQueue, unsaved: int, file: Path) -> Answer:
    """Progress and agreement of a study.

    Args:
        unsaved: number of answers that are not in ``file``.
    """
    sizes = {name: len(instance.candidates) for name, instance in queue.instances.items()}
    imported, progress = from_answers(queue.store.latest(), sizes, queue.pictures), queue.progress()
    ranked, agreed = len({vote.instance_id for vote in imported.rankings}), measure_agreement(imported.rankings)
    lines = [
        f"{ranked} of {len(queue.chosen)} instances ranked, "
        f"{len(imported.rankings)} rankings, {imported.counts['cannot_tell']:.0f} x cannot tell, "
        f"{imported.counts['skipped']:.0f} skipped, "
        f"{imported.counts['stale_answers']:.0f} for instances that no longer exist or have new images",
        "done: " + ", ".join(f"{name} {count} of {total}" for name, (count, total) in progress.items()),
        agreed.text(),
    ]
    if unsaved:
        lines.append(f"{unsaved} answers are not in {file} yet; `paco annotate save` writes them")
    figures = {
        "instances": len(queue.chosen),
        "ranked": ranked,
        "rankings": len(imported.rankings),
        "counts": imported.counts,
        "progress": {name: {"done": count, "total": total} for name, (count, total) in progress.items()},
        "agreement": agreed,
        "unsaved": unsaved,
    }
    return Answer("\n".join(lines), figures)
