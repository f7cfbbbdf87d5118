"""Label Studio: what is written for it, and what is read of its exports."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from paco_core.config.params import AnnotationsParams
from paco_core.data.annotation import label_studio
from paco_core.data.annotation.sources import collect_votes
from paco_core.data.annotation.votes import RankingTask, unscored
from paco_core.data.records.panels import PanelStore
from paco_core.io.files import DataError
from paco_core.io.rejected import Rejected
from tests.support.annotation_world import make_world


@pytest.fixture
def exported(tmp_path: Path) -> tuple[Path, pd.DataFrame, list[dict[str, Any]]]:
    table = make_world(tmp_path, prompts=1, seeds=2)
    votes = [unscored(table["instance_id"][0], "ann", [2, 0, 3, 1])]
    folder = tmp_path / "for-label-studio"
    assert label_studio.export_tasks(folder, table, PanelStore.below(tmp_path / "data/grids"), votes) == 8
    return folder, table, json.loads((folder / "tasks.json").read_text())


def annotated(
    task: dict[str, Any], completed_by: object, ranking: list[int] | None, **fields: object
) -> dict[str, Any]:
    """An annotation as Label Studio 1.x exports it (labelstud.io/guide/export, labelstud.io/tags/ranker)."""
    results = [
        {"id": "PpwBv_NMxd", "from_name": "verdict", "to_name": "reference", "type": "choices", "origin": "manual",
         "value": {"choices": ["Cannot tell"]}}
        if ranking is None else
        {"id": "x6Tz0_abcd", "from_name": "ranking", "to_name": "candidates", "type": "ranker", "origin": "manual",
         "value": {"ranker": {"ranking": [str(n) for n in ranking]}}}
    ]  # fmt: skip
    return {
        "id": 7, "completed_by": completed_by, "result": results, "was_cancelled": False, "ground_truth": False,
        "created_at": "2026-11-21T20:00:00Z", "updated_at": "2026-11-21T20:00:00Z", "lead_time": 4.2, "task": 1,
        **fields,
    }  # fmt: skip


def test_tasks_fit_the_configuration_and_hide_where_pictures_come_from(
    exported: tuple[Path, pd.DataFrame, list[dict[str, Any]]], tmp_path: Path
) -> None:
    folder, table, tasks = exported
    config = ElementTree.parse(folder / "config.xml").getroot()
    (ranker,) = config.iter("Ranker")
    (list_tag,) = config.iter("List")
    assert ranker.get("toName") == list_tag.get("name") and list_tag.get("value") == "$candidates"
    panels = PanelStore.below(tmp_path / "data/grids")
    orders = set()
    for task, row in zip(tasks, table.to_dict("records"), strict=True):
        data = task["data"]
        assert {"$" + key for key in data} >= {
            tag.get("value") for tag in config.iter() if tag.tag in ("List", "Image")
        }
        assert not any(grid in json.dumps(data) for grid in ("g0-0", "g0-1"))
        orders.add(tuple(item["id"] for item in data["candidates"]))
        pictures = [(data["reference"], row["reference"])]
        pictures += [(item["html"].split('"')[1], row["candidates"][int(item["id"])]) for item in data["candidates"]]
        for url, ref in pictures:
            file = folder / url.removeprefix("/data/local-files/?d=paco/")
            assert Image.open(file).tobytes() == panels.panel(ref).tobytes()
    assert len(orders) > 1, "candidates stand in random places"
    (prediction,) = [prediction for task in tasks for prediction in task["predictions"]]
    assert prediction["model_version"] == "ann"
    assert prediction["result"][0]["value"]["ranker"] == {"ranking": ["2", "0", "3", "1"]}
    with pytest.raises(DataError):
        label_studio.export_tasks(folder, table, panels)


def test_rankings_make_the_round_trip(
    exported: tuple[Path, pd.DataFrame, list[dict[str, Any]]], tmp_path: Path
) -> None:
    _, table, tasks = exported
    rankings = {row: [(row + n) % 4 for n in range(4)] for row in range(8)}
    for row, task in enumerate(tasks):
        task["annotations"] = [
            annotated(task, {"id": 3, "email": "ann@example.org"}, rankings[row]),
            annotated(task, 4, rankings[row][::-1] if row else None),
        ]
    tasks[1]["annotations"].append(annotated(tasks[1], 5, [0, 1, 2, 3], was_cancelled=True))
    tasks[2]["annotations"].append(annotated(tasks[2], 4, [3, 2, 1, 0], updated_at="2026-11-21T19:00:00Z"))
    tasks[3]["annotations"].append(annotated(tasks[3], 5, [], result=[]))
    file = tmp_path / "project-1-at-2026-11-21.json"
    file.write_text(json.dumps(tasks))
    task = RankingTask(
        table, PanelStore.below(tmp_path / "data/grids"), AnnotationsParams(source="import", file=file.name), tmp_path
    )
    result = collect_votes(task)
    ann = {vote.instance_id: vote.ranking for vote in result.rankings if vote.annotator == "ann@example.org"}
    other = {vote.instance_id: vote.ranking for vote in result.rankings if vote.annotator == "user-4"}
    assert ann == {table["instance_id"][row]: rankings[row] for row in range(8)}
    assert other == {table["instance_id"][row]: rankings[row][::-1] for row in range(1, 8)}
    assert result.undecided == {table["instance_id"][0]: 1}
    assert result.counts == {"skipped": 1, "superseded_answers": 1, "empty_answers": 1, "cannot_tell": 1}


def test_bad_exports_are_named(exported: tuple[Path, pd.DataFrame, list[dict[str, Any]]], tmp_path: Path) -> None:
    _, table, tasks = exported
    sizes = dict.fromkeys(table["instance_id"], 4)
    file = tmp_path / "export.json"
    good = annotated(tasks[1], 4, [0, 1, 2, 3])
    other_name = {"value": {"ranker": {"rank": ["0", "1", "2", "3"]}}}

    def second(annotation: object) -> list[dict[str, Any]]:
        return [{**tasks[0], "annotations": []}, {**tasks[1], "annotations": [good, annotation]}]

    for content, place, cause in (
        (tasks, "task 1", "task: "),
        ([{"data": {"instance_id": "x"}, "annotations": []}], "task 1", "instance: .* x"),
        ([{"annotations": []}], "task 1", "instance: .*instance_id"),
        (second(annotated(tasks[1], 5, [0, 0, 1, 2])), "task 2, annotation 2", r"ranking: \['0', '0'"),
        (second(annotated(tasks[1], 5, [0, 1, 2, 9])), "task 2, annotation 2", "ranking: "),
        (second(annotated(tasks[1], None, [0, 1, 2, 3])), "task 2, annotation 2", ".*completed_by is None"),
        (second(annotated(tasks[1], 5, [], result=[other_name])), "task 2, annotation 2", ".*'ranking'"),
        (second(7), "task 2, annotation 2", "annotation: "),
    ):
        file.write_text(json.dumps(content))
        label_studio.read_export(file, sizes, rejected := Rejected())
        assert rejected.rows[0][0].endswith(place) and re.match(cause, rejected.rows[0][1]), rejected.rows[0]
    for text in ("{", json.dumps({"tasks": []})):
        file.write_text(text)
        with pytest.raises(DataError, match="export.json"):
            label_studio.read_export(file, sizes, Rejected())
    file.write_text(json.dumps([{"data": {"instance_id": "x"}, "annotations": []}]))
    params = AnnotationsParams(source="import", file=file.name)
    with pytest.raises(DataError, match="none of its rankings can be used"):
        collect_votes(RankingTask(table, PanelStore.below(tmp_path / "data/grids"), params, tmp_path))
