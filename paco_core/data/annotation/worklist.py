"""Work lists: what each annotator has done and what comes next.

Each answer updates them, so that a page does not count all answers again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import chain, islice

from paco_core.data.annotation.store import FINAL, AnnotatorAnswer


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
