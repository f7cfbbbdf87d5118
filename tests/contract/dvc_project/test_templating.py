"""Variables, ``matrix`` and ``foreach``: names and content of the stages are those of DVC's own resolver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dvc.exceptions import DvcException
from dvc.fs import LocalFileSystem
from dvc.parsing import DataResolver
from hypothesis import given, settings
from hypothesis import strategies as st

from dvc_project.errors import DvcProjectError
from dvc_project.project import DvcProject
from dvc_project.yaml import parse_yaml

Tree = dict[str, Any]
Stages = list[tuple[str, Any]]

pytestmark = pytest.mark.slow

NAMES = st.sampled_from(["a", "b", "7", "item"])
TEXTS = st.sampled_from(["x", "a b", "it's", "$y", r"\${a}", "-"])
LEAVES = TEXTS | st.booleans() | st.integers(-9, 9) | st.sampled_from([None, 0.5, 1e-05, 1e300])
LISTS = st.lists(LEAVES, max_size=3) | st.lists(st.dictionaries(NAMES, LEAVES, max_size=2), max_size=3)
TREES = LEAVES | LISTS | st.dictionaries(NAMES, LEAVES | LISTS | st.dictionaries(NAMES, LEAVES | LISTS), max_size=3)
FLAGS = st.fixed_dictionaries(
    {"l": st.lists(LEAVES, max_size=3), "d": st.dictionaries(NAMES, LEAVES | LISTS, max_size=2)}
)
#: The variables of an item, by the kind of its stages.
ITEMS = {"foreach": ["${item}", "${key}"], "matrix": ["${key}", "${item.n}", "${item.on}"], "plain": []}
STYLES = st.fixed_dictionaries(
    {"list": st.sampled_from(["nargs", "append"]), "bool": st.sampled_from(["store_true", "boolean_optional"])}
)


def paths(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each way in which ``${...}`` may write a value below a tree, and the value."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        for way in [f".{key}"] if isinstance(tree, dict) else [f"[{key}]", f".{key}", f"[{key - len(tree)}]"]:
            yield (path + way).removeprefix("."), value
            yield from paths(value, path + way)


@st.composite
def projects(draw: st.DrawFn) -> tuple[Tree, Tree]:
    """``params.yaml``, and a ``dvc.yaml`` of one stage, plain or of several items."""
    params = draw(st.dictionaries(NAMES, TREES, min_size=2, max_size=4))
    tree = draw(FLAGS)
    typed_paths = [*paths(params), ("stage.x", tree), *paths(tree, "stage.x")]
    kind = draw(st.sampled_from(sorted(ITEMS)))
    item = draw(st.sampled_from([[], ITEMS[kind]]))
    is_invalid = draw(st.integers(0, 9)) == 0

    def places(*types: type) -> list[str]:
        return [f"${{{path}}}" for path, value in typed_paths if is_invalid or isinstance(value, types)]

    def texts(*types: type) -> st.SearchStrategy[str]:
        parts = st.sampled_from([*item, *places(*types), *(["${absent}"] if is_invalid else [r"\${a}", "x"])])
        return st.lists(parts, min_size=1, max_size=3).map("".join)

    plain = (str, int, float, type(None))
    body = {
        "cmd": [f"run {draw(texts(*plain, dict))}", f"run ${{stage.x}} {draw(texts(*plain))}"],
        "desc": draw(st.just("d") | texts(*plain)),
        "meta": {
            "deep": draw(st.lists(st.dictionaries(texts(*plain), texts(*plain) | LEAVES, max_size=2), max_size=1))
        },
        "vars": [{"stage": {"x": tree}}],
    }
    at_top = [f"${{{path}}}" for path, _ in paths(params)]
    values = LEAVES | st.sampled_from(at_top) | TREES
    axes = st.lists(values, min_size=1, max_size=3) | st.sampled_from(
        [f"${{{path}}}" for path, value in paths(params) if isinstance(value, list | dict)] or [[1]]
    )
    entries = st.dictionaries(NAMES, values, min_size=1, max_size=3)
    loops = {
        "foreach": st.builds(lambda data: {"foreach": data, "do": body}, axes | entries | st.sampled_from(at_top)),
        "matrix": st.builds(lambda n, on: {**body, "matrix": {"n": n, "on": on}}, axes, axes),
        "plain": st.just(body),
    }
    variables = {draw(NAMES): tree} if is_invalid else {"more": tree}
    return params, {"vars": [variables], "stages": {"s": draw(loops[kind])}}


def by_dvc(root: Path, style: dict[str, str]) -> Stages:
    repo: Any = SimpleNamespace(fs=LocalFileSystem(), config={"parsing": style})
    resolved = DataResolver(repo, str(root), parse_yaml((root / "dvc.yaml").read_text())).resolve()["stages"] or {}
    return [(name, (stage["cmd"], stage["desc"], stage["meta"])) for name, stage in resolved.items()]


def by_us(root: Path) -> Stages:
    return [(name, (stage.cmd, stage.desc, stage.meta)) for name, stage in DvcProject(root).stages.items()]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    (root / ".dvc").mkdir()
    return root


@settings(max_examples=200)
@given(project=projects(), style=STYLES)
def test_stages_are_those_of_dvc(root: Path, project: tuple[Tree, Tree], style: dict[str, str]) -> None:
    """What DVC refuses is refused."""
    for name, tree in zip(("params.yaml", "dvc.yaml"), project, strict=True):
        (root / name).write_text(json.dumps(tree))
    (root / ".dvc/config").write_text("[parsing]\n" + "".join(f"    {key} = {value}\n" for key, value in style.items()))
    try:
        expected = by_dvc(root, style)
    except (DvcException, TypeError, ValueError):  # the last two of what DVC does not expect
        with pytest.raises(DvcProjectError):
            by_us(root)
    else:
        assert by_us(root) == expected
