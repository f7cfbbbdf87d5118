"""Every number of ``params.yaml`` has bounds, and what lies beyond them is refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import reduce
from itertools import product
from typing import Any

import pytest

from paco_core.config import params
from paco_core.config.params import ParamsError


def numbers(found: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, schema) of every number in a JSON schema."""
    if isinstance(found, dict):
        if found.get("type") in ("integer", "number"):
            yield place, found
        for name, part in found.items():
            yield from numbers(part, f"{place}/{name}")
    elif isinstance(found, list):
        for part in found:
            yield from numbers(part, place)


def test_every_number_has_bounds() -> None:
    found = list(numbers(params.Params.model_json_schema()))
    assert len(found) > 100
    for bounds in ({"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}):
        assert [place for place, schema in found if not bounds & schema.keys()] == []


WRONG = [-1, "x", [], [[1]], {}, None, True, {"a": {"b": 1}}, [{"a": 1}], {"a": None}]


def keys(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in inner:
        yield from keys(value, (*at, name))


@pytest.mark.slow
def test_anything_in_the_place_of_any_value_is_read_or_refused(tree: Any) -> None:
    text, refused = json.dumps(tree), 0
    for at, wrong in product(keys(tree), WRONG):
        changed = json.loads(text)
        above = reduce(lambda node, name: node[name], at[:-1], changed)
        above[at[-1]] = wrong
        try:
            params.parse(changed)
        except ParamsError as error:
            refused += 1
            assert str(at[0]) in str(error), f"{at} = {wrong!r}: {error}"
    assert refused > 2000


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("grids.steps", 2**64, "less than or equal to 1000000"),
        ("prompts.seed", 2**64, "less than 4294967296"),
        ("prompts.count", 10**7, "less than or equal to 1000000"),
        ("grids.guidance", float("inf"), "finite number"),
        ("reward.learning_rate", float("nan"), "finite number"),
        ("grids.height", 10**6, "less than or equal to 16384"),
        ("edit_prompts.count", 10**6, "at most 100000"),
    ],
)
def test_a_number_beyond_any_use_is_refused_by_name(tree: Any, key: str, value: Any, expected: str) -> None:
    section, name = key.split(".")
    tree[section][name] = value
    with pytest.raises(ParamsError, match=expected) as raised:
        params.parse(tree)
    assert section in str(raised.value)


def endpoint(**options: Any) -> dict[str, Any]:
    return {"base_url": "http://127.0.0.1:1", "model": "one", "api_key_env": None, "options": options}


@pytest.mark.parametrize(
    ("key", "value", "place", "expected"),
    [
        ("grids.seeds", [0, 0], "grids.seeds", "duplicate"),
        ("t2is.seeds", [1, 0, 1], "t2is.seeds", "duplicate"),
        ("gedit.seeds", [0, 0], "gedit.seeds", "duplicate"),
        ("grids.seeds", list(range(1001)), "grids.seeds", "1001 entries, expected at most 1000"),
        ("annotations.exclude", ["x"] * 1001, "annotations.exclude", "1001 entries"),
        ("prompts.endpoint", endpoint(top_p=float("inf")), "prompts.endpoint.options", "inf is no finite number"),
        ("prompts.endpoint", endpoint(a={"b": [float("nan")]}), "prompts.endpoint.options", "nan is no finite number"),
        ("prompts.endpoint", endpoint(seed=-(10**30)), "prompts.endpoint.options", "no finite number below 2"),
    ],
)
def test_what_no_type_bounds_is_bounded(tree: Any, key: str, value: Any, place: str, expected: str) -> None:
    section, name = key.split(".")
    tree[section][name] = value
    with pytest.raises(ParamsError, match=expected) as raised:
        params.parse(tree)
    assert place in str(raised.value)
