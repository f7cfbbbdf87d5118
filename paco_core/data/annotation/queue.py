"""Annotation queue: what each annotator sees next, and what becomes of their answers. It does not use HTTP."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

from paco_core.data.annotation import assignment
from paco_core.data.annotation.people import is_outdated, present
from paco_core.data.annotation.store import FINAL, Annotator, AnnotatorAnswer, AnswerStore, StaleAnswer, Verdict
from paco_core.data.annotation.votes import instance_rows
from paco_core.data.records.panels import PanelStore
from paco_core.io.files import DataError
from paco_core.io.shards import encode_png

if TYPE_CHECKING:
    import pandas as pd


class UnknownInstance(DataError):
    """There is no such instance, or no such picture of it."""


class NotAssigned(Exception):
    """The instance is somebody else's to rank."""


@dataclass(frozen=True)
class QueuedInstance:
    """A reference panel and its candidates."""

    instance_id: str
    reference: str
    candidates: Sequence[str]


@dataclass(frozen=True)
class Last:
    """The answer that an undo would take back."""

    instance: str
    revision: int


@dataclass(frozen=True)
class QueueView:
    """What the page shows: an instance (None when all is done), how far one is, and what can be undone.

    ``ranking`` holds places on the page, best first: what was chosen before an undo. ``ahead`` is the
    instance that will follow, for its pictures to be loaded early.
    """

    instance: str | None
    revision: int
    candidates: int
    ranking: tuple[int, ...]
    skipped_before: bool
    ahead: str | None
    done: int
    skipped: int
    total: int
    last: Last | None


class AnnotationQueue:
    """A study at work: instances, annotators, who does what. Thread-safe.

    Args:
        store: where the answers go.
        instances: columns ``instance_id``, ``reference``, ``candidates``.
        panels: the pictures.
        overlap: how many annotators see each instance.
        count: take a random part of this many instances; all when None.

    Raises:
        DataError: when there are fewer active annotators than the overlap, or no instances.
    """

    def __init__(
        self,
        store: AnswerStore,
        instances: pd.DataFrame,
        panels: PanelStore,
        overlap: int,
        count: int | None = None,
    ) -> None:
        self.store, self.panels, self.overlap = store, panels, overlap
        self.instances = {row[0]: QueuedInstance(*row) for row in instance_rows(instances)}
        if not self.instances:
            raise DataError("there is no instance to annotate; run `dvc repro rankings`")
        self.chosen = assignment.sample(self.instances, count)
        self._digests = store.panel_digests()
        self._stored = len(self._digests)
        self._present = present(instances, panels.panel, panels.versions(), self._digests)
        self._lock = threading.Lock()
        self._by_token = {one.token: one for one in store.annotators()}
        answers, self._newest = store.after(0)
        seen = {answer.instance_id for answer in answers if answer.pictures}
        for name in self.instances:  # in their order, so that each grid is decoded once
            if name in seen:
                self.pictures(name)
        self._keep_digests()
        latest = {(answer.annotator, answer.instance_id): answer for answer in answers}
        answered: dict[str, list[str]] = {}
        for answer in latest.values():
            if answer.verdict in FINAL and not self._outdated(answer):
                answered.setdefault(answer.instance_id, []).append(answer.annotator)
        active = [one.name for one in self._by_token.values() if one.active]
        plan = assignment.assign(self.chosen, active, overlap, answered)
        queues = {one.name: assignment.queue(one.token, plan.get(one.name, ())) for one in self._by_token.values()}
        self._own = {name: set(queue) for name, queue in queues.items()}
        for name, instance_id in latest:
            self._own[name].add(instance_id)
        self._work_lock = threading.Lock()
        self._work = {name: WorkList(queue) for name, queue in queues.items()}
        self._add(answers)

    def _add(self, answers: Sequence[AnnotatorAnswer]) -> None:
        """Update the work lists; answers to other studies of the store do not count."""
        for answer in answers:
            if answer.instance_id in self.instances and answer.annotator in self._work:
                self._work[answer.annotator].add(answer, outdated=self._outdated(answer))

    def _work_of(self, who: Annotator) -> WorkList:
        """The work list after all answers that the store has now, those of other processes included."""
        answers, self._newest = self.store.after(self._newest)
        self._add(answers)
        return self._work[who.name]

    def annotator(self, token: str) -> Annotator | None:
        """Who a link belongs to; None for an unknown one."""
        return self._by_token.get(token)

    @property
    def annotators(self) -> list[Annotator]:
        return list(self._by_token.values())

    def view(self, who: Annotator) -> QueueView:
        """The present state of one annotator's page.

        What was just taken back comes first, then what is new, then what was skipped, longest ago first. An instance
        that was painted anew since it was answered is new.
        """
        with self._work_lock:
            work = self._work_of(who)
            first, ahead = [*work.upcoming(2), None, None][:2]
            last = work.last()
            withdrawal = work.withdrawal(first) if first else None
            return QueueView(
                instance=first,
                revision=work.revision(first) + 1 if first else 1,
                candidates=len(self.instances[first].candidates) if first else 0,
                ranking=self._before(who, withdrawal) if withdrawal else (),
                skipped_before=first is not None and work.is_skipped(first),
                ahead=ahead,
                done=work.done,
                skipped=work.skipped,
                total=work.total,
                last=Last(last.instance_id, last.revision) if last else None,
            )

    def _before(self, who: Annotator, withdrawal: AnnotatorAnswer) -> tuple[int, ...]:
        """Places on the page that were chosen before a withdrawal, best first."""
        taken_back = self.store.revision(who.name, withdrawal.instance_id, withdrawal.revision - 1)
        if taken_back is None or taken_back.ranking is None:
            return ()
        return tuple(taken_back.shown.index(candidate) for candidate in taken_back.ranking)

    def answer(
        self, who: Annotator, instance_id: str, revision: int, verdict: Verdict, chosen: Sequence[int], seconds: float
    ) -> None:
        """Store what an annotator says of an instance.

        Args:
            chosen: places on the page, best first; empty unless the verdict is ``ranked``.

        Raises:
            DataError: when the instance is unknown or ``chosen`` does not name each place once.
            NotAssigned: when the instance was given to others, and this annotator never answered it.
            StaleAnswer, NotStored: see :meth:`AnswerStore.record`.
        """
        if instance_id not in self.instances:
            raise DataError(f"there is no instance {instance_id}")
        self._check_own(who, instance_id)
        count = len(self.instances[instance_id].candidates)
        shown = assignment.places(who.token, instance_id, count)
        ranking = None
        if verdict == "ranked":
            if sorted(chosen) != list(range(count)):
                raise DataError(f"instance {instance_id}: {list(chosen)} does not name each of {count} places once")
            ranking = tuple(shown[place] for place in chosen)
        seen = self.pictures(instance_id)
        self.store.record(
            AnnotatorAnswer(who.name, instance_id, revision, verdict, ranking, shown, seconds, pictures=seen)
        )
        self._keep_digests()

    def pictures(self, instance_id: str) -> str:
        """Digest of what an instance shows now; "" where it is gone or damaged."""
        if instance_id not in self.instances:
            return ""
        with self._lock:  # the panel store is not thread-safe
            return self._present(instance_id)

    def _keep_digests(self) -> None:
        """Store the digests of panels that were read: their grids are not decoded when the queue opens again."""
        with self._lock:
            new = dict(islice(self._digests.items(), self._stored, None))
            self._stored = len(self._digests)
        self.store.keep_panel_digests(new)

    def _outdated(self, answer: AnnotatorAnswer) -> bool:
        return bool(answer.pictures) and is_outdated(answer, self.pictures(answer.instance_id))

    def _check_own(self, who: Annotator, instance_id: str) -> None:
        if instance_id not in self._own[who.name]:
            raise NotAssigned(
                f"instance {instance_id} is not assigned to {who.name}; it went to somebody else "
                "when the work was shared out anew"
            )

    def undo(self, who: Annotator, last: Last) -> None:
        """Take back the answer that the page showed as the last one; asking twice takes back one.

        Raises:
            StaleAnswer: when it has been answered again since.
            NotAssigned: when the instance was given to others.
        """
        if last.instance not in self.instances:
            raise StaleAnswer(f"there is no instance {last.instance}")
        self._check_own(who, last.instance)
        current = self.view(who).last
        if current != last and self.store.revision(who.name, last.instance, last.revision + 1) is None:
            raise StaleAnswer(f"{last.instance}: it has been answered again since")
        self.answer(who, last.instance, last.revision + 1, "withdrawn", (), 0.0)

    def picture(self, who: Annotator, instance_id: str, place: int | None) -> bytes:
        """PNG bytes of the candidate in a place of the annotator's page, or of the reference (None).

        Raises:
            Unknown: when there is no such instance or place.
            NotAssigned: when the instance was given to others.
            DataError: when the picture is damaged.
        """
        instance = self.instances.get(instance_id)
        if instance is None:
            raise UnknownInstance(f"there is no instance {instance_id}")
        self._check_own(who, instance_id)
        ref = instance.reference
        if place is not None:
            shown = assignment.places(who.token, instance_id, len(instance.candidates))
            if not 0 <= place < len(shown):
                raise UnknownInstance(f"instance {instance_id} has {len(shown)} candidates")
            ref = instance.candidates[shown[place]]
        with self._lock:  # the panel store is not thread-safe
            return encode_png(self.panels.panel(ref))

    def progress(self) -> dict[str, tuple[int, int]]:
        """(done, assigned) of everybody."""
        views = {one.name: self.view(one) for one in self._by_token.values()}
        return {name: (view.done, view.total) for name, view in views.items()}


class WorkList:
    """The instances of one annotator.

    Args:
        assigned: instances of the annotator, in the order of the page. Answers may be about further ones.
    """

    def __init__(self, assigned: Sequence[str]) -> None:
        self._places = {instance: place for place, instance in enumerate(assigned)}
        self._revisions: dict[str, int] = {}
        # OrderedDict, not dict: the first of a dict whose first entries were removed is found in linear time.
        self._new = OrderedDict.fromkeys(assigned)
        self._standing: OrderedDict[str, AnnotatorAnswer] = OrderedDict()  # in order of time
        self._skipped: OrderedDict[str, None] = OrderedDict()
        self._withdrawn: dict[str, AnnotatorAnswer] = {}
        self.done = 0

    @property
    def skipped(self) -> int:
        return len(self._skipped)

    @property
    def total(self) -> int:
        return self.done + len(self._withdrawn) + len(self._new) + len(self._skipped)

    def add(self, answer: AnnotatorAnswer, *, outdated: bool) -> None:
        """Take the next answer in order of time. After an outdated one the instance counts as new."""
        instance = answer.instance_id
        self._revisions[instance] = answer.revision
        previous = self._standing.pop(instance, None)
        if previous is not None and previous.verdict in FINAL:
            self.done -= 1
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
                self.done += 1

    def upcoming(self, count: int) -> list[str]:
        """The next instances: what was withdrawn, then what is new, then what was skipped, longest ago first."""
        withdrawn = sorted(self._withdrawn, key=self._places.__getitem__)
        return list(islice(chain(withdrawn, self._new, self._skipped), count))

    def last(self) -> AnnotatorAnswer | None:
        """The latest answer that was not withdrawn."""
        return next(reversed(self._standing.values()), None)

    def revision(self, instance: str) -> int:
        """The revision of the last answer to an instance; 0 without one."""
        return self._revisions.get(instance, 0)

    def withdrawal(self, instance: str) -> AnnotatorAnswer | None:
        """The answer that took back the one before it, if it is the last one."""
        return self._withdrawn.get(instance)

    def is_skipped(self, instance: str) -> bool:
        return instance in self._skipped
