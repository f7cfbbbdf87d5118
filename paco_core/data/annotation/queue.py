"""Annotation queue: the next instance of each annotator, and the storage of their answers. It does not use HTTP."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

from paco_core.data.annotation import assignment
from paco_core.data.annotation.people import instance_digester, is_outdated
from paco_core.data.annotation.store import FINAL, Annotator, AnnotatorAnswer, AnswerStore, StaleAnswer, Verdict
from paco_core.data.annotation.votes import instance_rows
from paco_core.data.records.panels import PanelStore
from paco_core.io.files import DataError
from paco_core.io.shards import encode_png

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.data.annotation.image_groups import ImageFiles


class UnknownInstance(DataError):
    """The instance, or the picture of it, does not exist."""


class NotAssigned(Exception):
    """The instance is assigned to other annotators."""


@dataclass(frozen=True)
class QueuedInstance:
    """A reference panel and its candidates. Without a reference, people see the prompt of the candidates instead.

    If ``characters`` (names) is not empty, the reference shows these characters, and people also see the prompt.
    """

    instance_id: str
    reference: str
    candidates: Sequence[str]
    prompt: str = ""
    characters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Last:
    """The answer that an undo would withdraw."""

    instance: str
    revision: int


@dataclass(frozen=True)
class QueueView:
    """The content of the page: an instance (None if all are answered), the progress, and the answer to undo.

    ``ranking`` contains places on the page, best first: the ranking before an undo. ``ahead`` is the next instance,
    with ``candidates_ahead`` candidates, which lets the page load its pictures early. ``prompt`` is None if the
    instance has a reference. ``characters`` contains the names of the characters that the reference shows, and
    ``caption`` is then the prompt.
    """

    instance: str | None
    revision: int
    candidates: int
    ranking: tuple[int, ...]
    skipped_before: bool
    ahead: str | None
    candidates_ahead: int
    done: int
    skipped: int
    total: int
    last: Last | None
    prompt: str | None = None
    characters: tuple[str, ...] = ()
    caption: str = ""


class AnnotationQueue:
    """A running study: instances, annotators and assignments. Thread-safe.

    Args:
        instances: columns ``instance_id``, ``reference``, ``candidates``; ``prompt`` if references are empty; optional
            ``characters``, which the references show.
        overlap: number of annotators per instance.
        count: size of a random sample of the instances; None takes all.

    Raises:
        DataError: if there are no instances, or fewer active annotators than the overlap.
    """

    def __init__(
        self,
        store: AnswerStore,
        instances: pd.DataFrame,
        panels: PanelStore | ImageFiles,
        overlap: int,
        count: int | None = None,
    ) -> None:
        self.store, self.panels, self.overlap = store, panels, overlap
        prompts = instances.get("prompt", [""] * len(instances))
        characters = instances.get("characters", [()] * len(instances))
        self.instances = {
            row[0]: QueuedInstance(*row, str(prompt), tuple(character.name for character in visible))
            for row, prompt, visible in zip(instance_rows(instances), prompts, characters, strict=True)
        }
        if not self.instances:
            raise DataError("there are no instances to annotate; run `dvc repro rankings`")
        self.chosen = assignment.sample(self.instances, count)
        self._digests = store.panel_digests()
        self._stored = len(self._digests)
        self._present = instance_digester(instances, panels.panel, panels.versions(), self._digests)
        self._lock = threading.Lock()
        self._by_token = {annotator.token: annotator for annotator in store.annotators()}
        answers, self._newest = store.after(0)
        pictured_ids = {answer.instance_id for answer in answers if answer.pictures}
        for name in self.instances:  # in this order, each grid is decoded only once
            if name in pictured_ids:
                self.pictures(name)
        self._keep_digests()
        latest = {(answer.annotator, answer.instance_id): answer for answer in answers}
        answered: dict[str, list[str]] = {}
        for answer in latest.values():
            if answer.verdict in FINAL and not self._outdated(answer):
                answered.setdefault(answer.instance_id, []).append(answer.annotator)
        active = [annotator.name for annotator in self._by_token.values() if annotator.active]
        plan = assignment.assign(self.chosen, active, overlap, answered)
        queues = {
            annotator.name: assignment.queue(annotator.token, plan.get(annotator.name, ()))
            for annotator in self._by_token.values()
        }
        self._assigned = {name: set(queue) for name, queue in queues.items()}
        for name, instance_id in latest:
            self._assigned[name].add(instance_id)
        self._work_lock = threading.Lock()
        self._work = {name: WorkList(queue) for name, queue in queues.items()}
        self._add(answers)

    def _add(self, answers: Sequence[AnnotatorAnswer]) -> None:
        """Update the work lists. Answers to other studies in the same store are ignored."""
        for answer in answers:
            if answer.instance_id in self.instances and answer.annotator in self._work:
                self._work[answer.annotator].add(answer, outdated=self._outdated(answer))

    def _work_of(self, annotator: Annotator) -> WorkList:
        """The work list after all answers in the store, including those of other processes."""
        answers, self._newest = self.store.after(self._newest)
        self._add(answers)
        return self._work[annotator.name]

    def annotator(self, token: str) -> Annotator | None:
        """The annotator of a link; None if the token is unknown."""
        return self._by_token.get(token)

    @property
    def annotators(self) -> list[Annotator]:
        return list(self._by_token.values())

    def view(self, annotator: Annotator) -> QueueView:
        """The present state of one annotator's page.

        Withdrawn instances come first, then new ones, then skipped ones (the earliest first). If the pictures of an
        answered instance have been generated again, the instance is new.
        """
        with self._work_lock:
            work = self._work_of(annotator)
            first, ahead = [*work.upcoming(2), None, None][:2]
            last = work.last()
            withdrawal = work.withdrawal(first) if first else None
            return QueueView(
                instance=first,
                revision=work.revision(first) + 1 if first else 1,
                candidates=len(self.instances[first].candidates) if first else 0,
                ranking=self._before(annotator, withdrawal) if withdrawal else (),
                skipped_before=first is not None and work.is_skipped(first),
                ahead=ahead,
                candidates_ahead=len(self.instances[ahead].candidates) if ahead else 0,
                done=work.completed,
                skipped=work.skipped,
                total=work.total,
                last=Last(last.instance_id, last.revision) if last else None,
                prompt=self.instances[first].prompt if first and not self.instances[first].reference else None,
                characters=self.instances[first].characters if first else (),
                caption=self.instances[first].prompt if first and self.instances[first].characters else "",
            )

    def _before(self, annotator: Annotator, withdrawal: AnnotatorAnswer) -> tuple[int, ...]:
        """The ranking before a withdrawal, as places on the page, best first."""
        taken_back = self.store.revision(annotator.name, withdrawal.instance_id, withdrawal.revision - 1)
        if taken_back is None or taken_back.ranking is None:
            return ()
        return tuple(taken_back.shown.index(candidate) for candidate in taken_back.ranking)

    def answer(
        self,
        annotator: Annotator,
        instance_id: str,
        revision: int,
        verdict: Verdict,
        chosen: Sequence[int],
        seconds: float,
    ) -> None:
        """Store an annotator's answer to an instance.

        Args:
            revision: number of this answer of the annotator to the instance, from 1.
            chosen: places on the page, best first; empty unless the verdict is ``ranked``.
            seconds: the time that the page was open.

        Raises:
            DataError: if the instance is unknown, or ``chosen`` does not contain each place once.
            NotAssigned: if the instance is assigned to others, and this annotator has never answered it.
            StaleAnswer, NotStored: see :meth:`AnswerStore.record`.
        """
        if instance_id not in self.instances:
            raise DataError(f"there is no instance {instance_id}")
        self._check_assigned(annotator, instance_id)
        count = len(self.instances[instance_id].candidates)
        order = assignment.candidate_order(annotator.token, instance_id, count)
        ranking = None
        if verdict == "ranked":
            if sorted(chosen) != list(range(count)):
                raise DataError(
                    f"instance {instance_id}: the ranking is {list(chosen)}; "
                    f"expected each place from 0 to {count - 1} once"
                )
            ranking = tuple(order[place] for place in chosen)
        pictures = self.pictures(instance_id)
        self.store.record(
            AnnotatorAnswer(annotator.name, instance_id, revision, verdict, ranking, order, seconds, pictures=pictures)
        )
        self._keep_digests()

    def pictures(self, instance_id: str) -> str:
        """Digest of the present pictures of an instance; "" if it does not exist or a picture is damaged."""
        if instance_id not in self.instances:
            return ""
        with self._lock:  # the panel store is not thread-safe
            return self._present(instance_id)

    def _keep_digests(self) -> None:
        """Store the digests of panels that were read, so the next queue does not decode their grids again."""
        with self._lock:
            new = dict(islice(self._digests.items(), self._stored, None))
            self._stored = len(self._digests)
        self.store.keep_panel_digests(new)

    def _outdated(self, answer: AnnotatorAnswer) -> bool:
        return bool(answer.pictures) and is_outdated(answer, self.pictures(answer.instance_id))

    def _check_assigned(self, annotator: Annotator, instance_id: str) -> None:
        if instance_id not in self._assigned[annotator.name]:
            raise NotAssigned(
                f"instance {instance_id} is not assigned to {annotator.name}: a new assignment gave it to another "
                "annotator; reload the page"
            )

    def undo(self, annotator: Annotator, last: Last) -> None:
        """Withdraw the answer that the page showed as the last one. A repeated request withdraws it only once.

        Raises:
            StaleAnswer: if the instance has been answered again since.
            NotAssigned: if the instance is assigned to others.
        """
        if last.instance not in self.instances:
            raise StaleAnswer(f"there is no instance {last.instance}")
        self._check_assigned(annotator, last.instance)
        current = self.view(annotator).last
        if current != last and self.store.revision(annotator.name, last.instance, last.revision + 1) is None:
            raise StaleAnswer(f"instance {last.instance} has been answered again since; reload the page")
        self.answer(annotator, last.instance, last.revision + 1, "withdrawn", (), 0.0)

    def picture(self, annotator: Annotator, instance_id: str, place: int | None) -> bytes:
        """PNG bytes of a picture on the annotator's page.

        Args:
            place: place of a candidate on the page; None for the reference.

        Raises:
            UnknownInstance: if the instance or the place does not exist.
            NotAssigned: if the instance is assigned to others.
            DataError: if the picture is damaged.
        """
        instance = self.instances.get(instance_id)
        if instance is None:
            raise UnknownInstance(f"there is no instance {instance_id}")
        self._check_assigned(annotator, instance_id)
        ref = instance.reference
        if place is not None:
            order = assignment.candidate_order(annotator.token, instance_id, len(instance.candidates))
            if not 0 <= place < len(order):
                raise UnknownInstance(f"instance {instance_id} has {len(order)} candidates")
            ref = instance.candidates[order[place]]
        if not ref:
            raise UnknownInstance(f"instance {instance_id} has no reference")
        with self._lock:  # the panel store is not thread-safe
            return encode_png(self.panels.panel(ref))

    def progress(self) -> dict[str, tuple[int, int]]:
        """(answered, assigned) of each annotator."""
        views = {annotator.name: self.view(annotator) for annotator in self._by_token.values()}
        return {name: (view.done, view.total) for name, view in views.items()}


class WorkList:
    """The instances of one annotator.

    Args:
        assigned: instances of the annotator, in the order of the page. Answers can also be about other instances.
    """

    def __init__(self, assigned: Sequence[str]) -> None:
        self._places = {instance: place for place, instance in enumerate(assigned)}
        self._revisions: dict[str, int] = {}
        # OrderedDict, not dict: after removals at the start of a dict, access to its first entry takes linear time.
        self._new = OrderedDict.fromkeys(assigned)
        self._standing: OrderedDict[str, AnnotatorAnswer] = OrderedDict()  # in order of time
        self._skipped: OrderedDict[str, None] = OrderedDict()
        self._withdrawn: dict[str, AnnotatorAnswer] = {}
        self.completed = 0

    @property
    def skipped(self) -> int:
        return len(self._skipped)

    @property
    def total(self) -> int:
        return self.completed + len(self._withdrawn) + len(self._new) + len(self._skipped)

    def add(self, answer: AnnotatorAnswer, *, outdated: bool) -> None:
        """Add the next answer in order of time. After an outdated answer the instance counts as new."""
        instance = answer.instance_id
        self._revisions[instance] = answer.revision
        previous = self._standing.pop(instance, None)
        if previous is not None and previous.verdict in FINAL:
            self.completed -= 1
        for group in (self._new, self._skipped, self._withdrawn):
            group.pop(instance, None)
        is_assigned = instance in self._places
        if outdated:
            if is_assigned:
                self._new[instance] = None
        elif answer.verdict == "withdrawn":
            if is_assigned:
                self._withdrawn[instance] = answer
        else:
            self._standing[instance] = answer
            if answer.verdict == "skipped":
                self._skipped[instance] = None
            else:
                self.completed += 1

    def upcoming(self, count: int) -> list[str]:
        """The next instances: first withdrawn, then new, then skipped ones (the earliest first)."""
        withdrawn = sorted(self._withdrawn, key=self._places.__getitem__)
        return list(islice(chain(withdrawn, self._new, self._skipped), count))

    def last(self) -> AnnotatorAnswer | None:
        """The last answer that was not withdrawn."""
        return next(reversed(self._standing.values()), None)

    def revision(self, instance: str) -> int:
        """The revision of the last answer to an instance; 0 if there is none."""
        return self._revisions.get(instance, 0)

    def withdrawal(self, instance: str) -> AnnotatorAnswer | None:
        """The withdrawal of an instance, if it is the last answer to it."""
        return self._withdrawn.get(instance)

    def is_skipped(self, instance: str) -> bool:
        return instance in self._skipped
