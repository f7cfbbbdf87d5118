"""Who ranks: the sources of votes, by the name that ``annotations.source`` gives."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from paco_core.dataset.annotation.votes import Task, Votes

#: Name -> module with a function ``votes(task) -> Votes``; a further source is a module and a line here.
SOURCES = {
    "recogniser": "paco_core.dataset.annotation.recogniser",
    "import": "paco_core.dataset.annotation.imported",
}


def annotate(task: Task) -> Votes:
    """The votes of the source that the parameters name.

    Raises:
        DataError: when the source lacks a model, file or server, or what it gave is invalid.
    """
    source: Callable[[Task], Votes] = import_module(SOURCES[task.params.source]).votes
    return source(task)
