"""YAML 1.2, read with DVC's library and within bounds; values by dotted path."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent

from dvc_project.errors import DataError

COLON = "found unexpected ':'"  # the YAML parser in C on [http://host:80], which the one in Python takes
MAX_REPEATED = 10_000  # values that the aliases of a YAML text may add; nine lines of them can stand for a billion
MAX_DEPTH = 100  # nested lists and mappings, in YAML
MAX_CACHED = 1 << 18  # characters
MISSING: Any = object()


def parse_yaml(text: str) -> Any:
    """What a text in YAML 1.2 says, as DVC reads it: ``1e-05`` is a number, an unquoted ``yes`` a word.

    A short text is parsed once per process: one command reads ``params.yaml`` and ``dvc.yaml`` several times.

    Raises:
        DataError: when it is no YAML, has a key twice, or is too deep or repeats too much by aliases to be built.
    """
    return copy.deepcopy(_parse_once(text)) if len(text) <= MAX_CACHED else _parse(text)


@lru_cache(maxsize=4)
def _parse_once(text: str) -> Any:
    return _parse(text)


def _parse(text: str) -> Any:
    try:
        if not _is_simple(text):
            _validate_expansion(text)
        return YAML(typ="safe").load(text)
    except DataError as error:
        raise DataError(f"not usable YAML ({error})") from None
    except MarkedYAMLError as error:
        hint = "; a text with a colon inside brackets needs quotes" if error.problem == COLON else ""
        raise DataError(f"not valid YAML (line {error.problem_mark.line + 1}: {error.problem}{hint})") from None
    except (YAMLError, ValueError, TypeError, RecursionError) as error:  # a character or date that there is not; depth
        raise DataError(f"not valid YAML ({' '.join(str(error).split())[:300]})") from None


def _is_simple(text: str) -> bool:
    """Whether a text, by its characters alone, has no alias and cannot be too deep; most are: events take longer."""
    if "&" in text or "\t" in text:
        return False
    block = max(
        (len(line) - len(line.lstrip()) + line.count("- ") + line.count("? ") for line in text.splitlines()), default=0
    )
    return 2 * (block + 1) + text.count("[") + text.count("{") <= MAX_DEPTH  # a mapping and a list at each column


def _validate_expansion(text: str) -> None:
    """Raise DataError if a text is too deep, contains itself, or grows too large when its aliases are expanded.

    It reads the events of the parser, because building the values takes minutes or overflows the stack.
    """
    counts: dict[str, int] = {}  # anchor -> values under it
    around: list[tuple[str | None, int]] = []  # lists and mappings that have begun: anchor, values before them
    values = repeated = 0
    for event in YAML(typ="safe").parse(text):
        if isinstance(event, AliasEvent):
            if any(anchor == event.anchor for anchor, _ in around):
                raise DataError(f"line {event.start_mark.line + 1}: *{event.anchor} refers to a node that contains it")
            repeated += counts.get(event.anchor, 0)
            values += counts.get(event.anchor, 0)
        elif isinstance(event, CollectionEndEvent):
            anchor, before = around.pop()
            if anchor is not None:
                counts[anchor] = values - before
        elif isinstance(event, ScalarEvent | CollectionStartEvent):
            values += 1
            if isinstance(event, CollectionStartEvent):
                around.append((event.anchor, values - 1))
            elif event.anchor is not None:
                counts[event.anchor] = 1
        if len(around) > MAX_DEPTH or repeated > MAX_REPEATED:
            limit = f"{MAX_DEPTH} nested lists and mappings"
            limit = limit if len(around) > MAX_DEPTH else f"{MAX_REPEATED} values repeated by aliases"
            raise DataError(f"line {event.start_mark.line + 1}: more than {limit}")


def get_dotted(tree: Any, dotted: str) -> Any:
    """The value at a dotted path through mappings and lists, or :data:`MISSING`."""
    for part in dotted.split("."):
        index = int(part) if part.removeprefix("-").isdigit() else None
        if isinstance(tree, Mapping) and part in tree:
            tree = tree[part]
        elif index is not None and (index in tree if isinstance(tree, Mapping) else _has(tree, index)):
            tree = tree[index]
        else:
            return MISSING
    return tree


def select(tree: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """The values at dotted keys, as ``dvc.lock`` records them: absent ones are absent."""
    return {key: value for key in keys if (value := get_dotted(tree, key)) is not MISSING}


def _has(values: Any, index: int) -> bool:
    return isinstance(values, list) and -len(values) <= index < len(values)
