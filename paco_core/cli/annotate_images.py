"""``paco annotate --pictures``: a study of images from any tool. The answers are next to the images."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.cli import annotate
from paco_core.data.annotation import answer_file
from paco_core.data.annotation.image_groups import ImageFiles, answer_folder, read_image_groups
from paco_core.io.answer import Answer
from paco_core.io.rejected import Rejected

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.data.annotation.queue import AnnotationQueue
    from paco_core.data.annotation.store import AnswerStore

STORE, ANSWERS = "people.sqlite", Path("answers.jsonl")


@dataclass(frozen=True)
class ImageStudy:
    """Ranking instances, their images, and the open store of the answers, which is in ``folder``."""

    instances: pd.DataFrame
    images: ImageFiles
    folder: Path
    store: AnswerStore

    def queue(self, options: annotate.AnnotateOptions) -> AnnotationQueue:
        from paco_core.data.annotation.queue import AnnotationQueue

        overlap = annotate.apply_options(self.store, options)
        count = self.store.setting("instances", options.instances)
        return AnnotationQueue(self.store, self.instances, self.images, overlap, count)

    def save(self) -> str:
        return f"{answer_file.save_answers(self.folder, self.store, ANSWERS)} answers in {self.folder / ANSWERS}"


@contextmanager
def _study(source: Path, *, create: bool = False) -> Iterator[ImageStudy]:
    rejected = Rejected()
    instances, images = read_image_groups(source, rejected)
    rejected.print(_log)
    folder = answer_folder(source)
    with answer_file.open_store(folder, folder / STORE, _log, ANSWERS, create=create) as store:
        yield ImageStudy(instances, images, folder, store)


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def serve(source: Path, port: int, options: annotate.AnnotateOptions) -> None:
    """As :func:`paco_core.cli.annotate.serve`, for the images of a folder or a table.

    Raises:
        DataError: if no group of images can be ranked, the overlap exceeds the annotators, or the port is in use.
    """
    from paco_core.data.annotation import server

    listener = server.listen(port)
    try:
        with _study(source, create=True) as study:
            queue = study.queue(options)
            study.save()
            address = f"http://{server.HOST}:{listener.getsockname()[1]}"
            print(annotate.welcome(queue, study.store.path, address), flush=True)
            server.serve_annotation(queue, listener, lambda: print(study.save(), flush=True))
    finally:
        listener.close()


def save(source: Path) -> str:
    """Write the answers next to the images, and return their number as text."""
    with _study(source) as study:
        return study.save()


def status(source: Path) -> Answer:
    """Progress and agreement of the annotators."""
    with _study(source) as study:
        unsaved = answer_file.count_unsaved(study.folder, study.store.every(), ANSWERS)
        return annotate.report(study.queue(annotate.AnnotateOptions()), unsaved, study.folder / ANSWERS)


def export(source: Path, form: str, folder: Path, address: str | None) -> str:
    """Export the rankings in a format of trainers, or the tasks to Label Studio.

    Raises:
        DataError: if the folder exists, or there is no ranking to export.
    """
    with _study(source) as study:
        return annotate.export_study(form, folder, study.instances, study.images, study.store, address)
