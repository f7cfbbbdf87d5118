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


def numbers(node: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, schema) of every number in a JSON schema."""
    if isinstance(node, dict):
        if node.get("type") in ("integer", "number"):
            yield place, node
        for name, part in node.items():
            yield from numbers(part, f"{place}/{name}")
    elif isinstance(node, list):
        for part in node:
            yield from numbers(part, place)


def test_every_number_has_bounds() -> None:
    node = list(numbers(params.Params.model_json_schema()))
    assert len(node) > 100
    for bounds in ({"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}):
        assert [place for place, schema in node if not bounds & schema.keys()] == []


WRONG = [-1, "x", [], [[1]], {}, None, True, {"a": {"b": 1}}, [{"a": 1}], {"a": None}]


def keys(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in inner:
        yield from keys(value, (*at, name))


@pytest.mark.slow
def test_anything_in_the_place_of_any_value_is_read_or_refused(tree: Any) -> None:
    text, rejections = json.dumps(tree), 0
    for at, wrong in product(keys(tree), WRONG):
        changed = json.loads(text)
        above = reduce(lambda node, name: node[name], at[:-1], changed)
        above[at[-1]] = wrong
        try:
            params.parse(changed)
        except ParamsError as error:
            rejections += 1
            assert str(at[0]) in str(error), f"{at} = {wrong!r}: {error}"
    assert rejections > 2000


def endpoint(**options: Any) -> dict[str, Any]:
    return {"base_url": "http://127.0.0.1:1", "model": "one", "api_key_env": None, "options": options}


@pytest.mark.parametrize(
    ("key", "value", "place"),
    [
        ("prompts.seed", 2**64, "prompts"),
        ("grids.guidance", float("inf"), "grids.guidance"),
        ("reward.learning_rate", float("nan"), "reward.learning_rate"),
        ("grids.seeds", [0, 0], "grids.seeds"),
        ("t2is.seeds", [1, 0, 1], "t2is.seeds"),
        ("gedit.seeds", [0, 0], "gedit.seeds"),
        ("grids.seeds", list(range(1001)), "grids.seeds"),
        ("annotations.exclude", ["x"] * 1001, "annotations.exclude"),
        ("prompts.endpoint", endpoint(top_p=float("inf")), "prompts.endpoint.options"),
        ("prompts.endpoint", endpoint(a={"b": [float("nan")]}), "prompts.endpoint.options"),
        ("prompts.endpoint", endpoint(seed=-(10**30)), "prompts.endpoint.options"),
    ],
)
def test_what_is_beyond_any_use_is_refused_by_name(tree: Any, key: str, value: Any, place: str) -> None:
    section, name = key.split(".")
    tree[section][name] = value
    with pytest.raises(ParamsError, match=place):
        params.parse(tree)
