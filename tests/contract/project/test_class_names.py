"""One name, one public class, so that `Row` or `Result` in a text says which is meant."""

from __future__ import annotations

import ast

import pytest

from tests.support import REPOSITORY


@pytest.mark.parametrize("rooms", [("paco_core", "pipelines", "zoo"), ("packages/dvc-project", "packages/dagster-dvc")])
def test_no_two_public_classes_share_a_name(rooms: tuple[str, ...]) -> None:
    places: dict[str, list[str]] = {}
    for path in sorted(path for room in rooms for path in (REPOSITORY / room).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(REPOSITORY)))
    assert places
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}
