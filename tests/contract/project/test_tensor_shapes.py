"""Whoever calls a function with tensors reads their shapes in its docstring."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from tests.support import REPOSITORY

ROOMS = ("paco_core", "pipelines", "packages", "zoo", "examples")
TENSOR = re.compile(r"\b(Tensor|ndarray|NDArray)\b")
#: "(N, tokens, channels)", "(rows,)", "[..., vocabulary]", "scalar"; and words for the shape of something else.
SHAPE = re.compile(r"[(\[](?:[\w.*/+ -]+,)+[\w.*/+ -]*[)\]]|\b[Ss]calars?\b|\bshaped (?:like|as)\b|\bany shape\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def public_functions(body: list[ast.stmt], within: str = "") -> Iterator[tuple[str, Function]]:
    for node in body:
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            name = within + node.name
            if isinstance(node, ast.ClassDef):
                yield from public_functions(node.body, f"{name}.")
            else:
                yield name, node


def takes_or_returns_tensors(function: Function) -> bool:
    arguments = function.args
    annotated = [argument.annotation for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return any(
        TENSOR.search(ast.unparse(annotation))
        for annotation in [*annotated, function.returns]
        if annotation is not None
    )


def test_public_functions_of_tensors_name_shapes() -> None:
    without: list[str] = []
    implemented: dict[str, list[str]] = defaultdict(list)
    methods_with_shapes: set[str] = set()
    for path in sorted(path for room in ROOMS for path in (REPOSITORY / room).rglob("*.py")):
        for name, function in public_functions(ast.parse(path.read_text()).body):
            if not takes_or_returns_tensors(function):
                continue
            place, docstring = f"{path.relative_to(REPOSITORY)}: {name}", ast.get_docstring(function)
            if docstring is None and "." in name:
                implemented[function.name].append(place)  # what it implements has the docstring
            elif docstring is None or not SHAPE.search(docstring):
                without.append(place)
            else:
                methods_with_shapes.add(function.name)
    without += [place for name, places in implemented.items() if name not in methods_with_shapes for place in places]
    assert methods_with_shapes
    assert without == []
