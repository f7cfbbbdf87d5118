"""Recorded parameters: what DVC and data/code/STAGE.json say of a stage differs where a value that it uses does."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from dvc_project.project import stages_of
from paco_core.config.execution import put
from paco_core.config.params import PARAMS_FILE, Params, ParamsError, parse, read_text, tree_of
from paco_core.config.resolved import MISSING, lookup
from paco_core.io.paths import in_round
from paco_core.runtime.code.stage_code import StageCodes
from paco_core.runtime.rounds import params_of
from tests.support.small_profiles import lay_out_rounds

TEXTS = ["cuda", "cpu", "bfloat16", "file", "import", "real", "instance", "rank", "nft", "hf-hub:o/n", "own:function"]


class Graph:
    """The graph with two rounds, and no data; what is recorded of its stages as its parameters are."""

    def __init__(self, root: Path) -> None:
        self.codes, self.tree = StageCodes.present(root), tree_of(read_text(root / PARAMS_FILE), root / PARAMS_FILE)
        self.stages = {label: stage for label, stage in stages_of(root).items() if stage.group != "code"}
        self.used_before = self.used(self.codes.params)
        self.recorded_before = {label: self.recorded(self.codes.params, self.tree, label) for label in self.stages}

    def used(self, params: Params) -> dict[str, dict[str, Any]]:
        """The values of the keys that each stage declares, defaults and what a round changes included."""
        trees, values = dict[str | None, Any](), {}
        for label, stage in self.stages.items():
            number = stage.item if in_round(stage.group) else None
            if number not in trees:
                trees[number] = params_of(params, stage.group, number).model_dump(mode="json")
            values[label] = {key: lookup(trees[number], key) for key in stage.params.get(PARAMS_FILE, ())}
        return values

    def recorded(self, params: Params, tree: Any, label: str) -> tuple[dict[str, Any], str]:
        """What DVC and the code file of a stage record, of a tree that the code resolves to ``params``."""
        stage, codes = self.stages[label], copy.copy(self.codes)
        codes.params, codes.raw = params, tree
        codes.__dict__.pop("_named", None)  # what the parameters name
        spelled = {key: lookup(tree, key) for key in stage.params.get(PARAMS_FILE, ())}
        return spelled, codes.of(stage.group, stage.item).text


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return Graph(lay_out_rounds(tmp_path_factory.mktemp("recorded")))


def leaves(tree: Any, prefix: str = "") -> Iterator[str]:
    for name, part in tree.items():
        yield from leaves(part, f"{prefix}{name}.") if isinstance(part, dict) and part else [f"{prefix}{name}"]


def other_values(value: Any) -> st.SearchStrategy[Any]:
    """Values of the same type, and none at all."""
    if isinstance(value, bool):
        return st.sampled_from([MISSING, not value])
    if isinstance(value, int | float):
        return st.sampled_from([MISSING, value + 1, 2 * value, value / 2, value // 2])
    texts = st.sampled_from(TEXTS)
    return st.just(MISSING) | (st.sampled_from([value[:1], 2 * value, [1]]) if isinstance(value, list) else texts)


def edited(tree: Any, key: str, value: Any) -> tuple[Any, Params]:
    """A tree with another value of a key, or without it; the example does not count where that is not allowed."""
    copy_of_tree, (above, _, last) = copy.deepcopy(tree), key.rpartition(".")
    if value is MISSING:
        del (lookup(copy_of_tree, above) if above else copy_of_tree)[last]
    else:
        put(copy_of_tree, key, value)
    try:
        return copy_of_tree, parse(copy_of_tree)
    except ParamsError:
        reject()


@pytest.mark.slow
@settings(max_examples=80, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(data=st.data())
def test_what_a_stage_uses_is_recorded_and_nothing_else(graph: Graph, data: st.DataObject) -> None:
    """Whether a person edits the file, or the code makes another value of the same file."""
    key = data.draw(st.sampled_from(sorted(leaves(graph.tree))))
    value = data.draw(other_values(lookup(graph.tree, key)))
    tree, params = edited(graph.tree, key, value)
    if value is not MISSING and data.draw(st.booleans()):
        tree = graph.tree
    differing = {label for label, used in graph.used(params).items() if used != graph.used_before[label]}
    for label in sorted({*differing, data.draw(st.sampled_from(sorted(graph.stages)))}):
        spelled, code = graph.recorded(params, tree, label)
        is_declared = any(f"{key}.".startswith(f"{name}.") for name in spelled)
        is_recorded = (spelled, code) != graph.recorded_before[label]
        assert is_recorded or label not in differing
        assert not is_recorded or label in differing or is_declared
