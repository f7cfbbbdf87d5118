"""A run in which every stage is up to date takes one process; one in which a stage has to run, a process a step."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

import dvc_graphs as graphs
from dagster_dvc import DagsterDvcTranslator, DvcProject
from dagster_dvc.executor import _InProcessIfUpToDate


@pytest.mark.slow
def test_one_process_is_enough_where_no_stage_has_to_run(tmp_path: Path) -> None:
    root = graphs.make_chain(tmp_path)
    executor = _InProcessIfUpToDate(
        dg.multiprocess_executor, dg.in_process_executor, DvcProject(root), DagsterDvcTranslator()
    )
    keys = {dg.AssetKey(name) for name in "abc"}
    assert not executor._are_up_to_date(keys)
    graphs.dvc(root, "repro", "-q", "b")
    assert executor._are_up_to_date(keys - {dg.AssetKey("c")}) and not executor._are_up_to_date(keys)
    graphs.dvc(root, "repro", "-q")
    assert executor._are_up_to_date(keys) and not executor._are_up_to_date({*keys, dg.AssetKey("of another project")})
