"""Pictures from outside are opened at one place: no other file calls Pillow's `open`, or makes RGB of a picture."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

DOOR = "paco_core/io/decoding.py"
#: Run by other environments' Pythons, on pictures that the process which started them wrote.
OWN_PICTURES = {"paco_core/benchmarks/t2is_bench/workers/aesthetics.py": "open"}
CODE = ("paco_core", "pipelines", "packages", "tools", "speed", "zoo")


def doors(source: str) -> list[str]:
    """What a file does that only the one door may: "open", "convert"."""
    tree = ast.parse(source)
    modules, names = set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "PIL":
            modules |= {alias.asname or alias.name for alias in node.names if alias.name == "Image"}
        if isinstance(node, ast.ImportFrom) and node.module == "PIL.Image":
            names |= {alias.asname or alias.name for alias in node.names if alias.name == "open"}
    calls = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        match call.func:
            case ast.Attribute(value=ast.Name(id=of), attr="open") if of in modules:
                calls.append("open")
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="PIL"), attr="Image"), attr="open"):
                calls.append("open")
            case ast.Name(id=name) if name in names:
                calls.append("open")
            case ast.Attribute(attr="convert") if any(
                isinstance(a, ast.Constant) and a.value == "RGB" for a in call.args
            ):
                calls.append("convert")
    return calls


@pytest.mark.slow
def test_pictures_are_opened_at_one_place(repository: Path) -> None:
    files = [path for folder in CODE for path in sorted((repository / folder).rglob("*.py"))]
    calls_by_file = {path.relative_to(repository).as_posix(): doors(path.read_text(encoding="utf-8")) for path in files}
    elsewhere = {
        name: calls for name, calls in calls_by_file.items() if calls and name != DOOR and name not in OWN_PICTURES
    }
    assert "open" in calls_by_file[DOOR] and len(files) > 300
    assert not elsewhere, "read pictures by paco_core.io.pictures: read_image, decode_image, or rgb for what is opened"
    assert {name: " ".join(calls_by_file[name]) for name in OWN_PICTURES} == OWN_PICTURES
