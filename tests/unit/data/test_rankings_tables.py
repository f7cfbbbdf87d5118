"""Rankings and scores made elsewhere, as tables of every format: nothing guessed, nothing lost in silence."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
from PIL import Image

from paco_core.benchmarks.public_files import read_scores
from paco_core.benchmarks.rankings import HeldOutRanking
from paco_core.config.params import AnnotationsParams, load
from paco_core.data import checks
from paco_core.data.annotation.imported import read_rankings
from paco_core.data.annotation.label_studio import read_export
from paco_core.data.records.records import PromptRecord
from paco_core.exchange import rank_bench
from paco_core.io.files import DataError
from paco_core.io.rejected import Rejected
from paco_core.runtime.context import StageContext
from paco_core.stages import annotations
from tests.support.annotation_world import make_world

SIZES = {"0017": 3, "17": 3, "i": 3}


def read(file: Path, text: str) -> tuple[list[Any], list[str]]:
    file.write_text(text)
    found = list(read_rankings(file, SIZES, rejected := Rejected()))
    told = [(vote.instance_id, vote.annotator, vote.ranking, vote.scores) for vote in found]
    return told, [f"{place.removeprefix(f'{file}')} {cause}" for place, cause in rejected]


@pytest.mark.parametrize("spelled", ["[2, 0, 1]", "2 0 1", "2;0;1"])
def test_rankings_are_read_from_csv(tmp_path: Path, spelled: str) -> None:
    head = "instance_id,annotator,ranking,scores\n"
    found, left_out = read(
        tmp_path / "r.csv",
        f'{head}0017,01,"{spelled}","0.5 null 1"\n17,01,"{spelled}",\n'
        "i,None,1 0,\ni,,0 1 2,\ni,b,best,\n17,01,0 1 2,\n",
    )
    assert [(name, who, order) for name, who, order, _ in found] == [
        ("0017", "01", [2, 0, 1]), ("17", "01", [2, 0, 1]),
    ]  # fmt: skip
    assert found[0][3][0] == 0.5 and found[0][3][2] == 1 and all(map(math.isnan, found[1][3]))
    assert left_out == [
        ":4 ranking: '1 0' does not order candidates 0 to 2, each once",
        ":5 record: key 'annotator' is missing",
        ":6 ranking: 'best' does not order candidates 0 to 2, each once",
        ":7 duplicate: annotator 01 ranks instance 17 a second time (first on line 3)",
    ]


def test_ids_are_texts_and_integers_their_digits(tmp_path: Path) -> None:
    rows = [
        {"instance_id": 17, "annotator": 1, "ranking": ["2", "0", "1"]},
        {"instance_id": "17", "annotator": "1", "ranking": [0, 1, 2]},
        {"instance_id": "i", "annotator": None, "ranking": [0, 1, 2]},
        {"instance_id": 17.0, "annotator": "b", "ranking": [0, 1, 2]},
    ]
    found, left_out = read(tmp_path / "r.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert [(name, who) for name, who, _, _ in found] == [("17", "1")]
    assert [line.partition(" ")[2].partition(";")[0] for line in left_out] == [
        "duplicate: annotator 1 ranks instance 17 a second time (first on line 1)",
        "record: key 'annotator' is missing",
        "record: instance_id is 17.0, expected a string",
    ]
    pd.DataFrame(rows[:1]).to_parquet(tmp_path / "r.parquet")
    assert [v.instance_id for v in read_rankings(tmp_path / "r.parquet", SIZES, Rejected())] == ["17"]


def test_what_is_no_table_is_named(tmp_path: Path) -> None:
    for name, content, message in (
        ("r.txt", "x", "unknown format '.txt'; expected .parquet, .csv, .jsonl, .tsv, .ndjson, .json"),
        ("r.csv", "instance;ranking\n", "column instance_id, annotator is missing; it has instance, ranking"),
        ("r.csv", "instance_id,annotator,ranking,ranking\n", "column ranking is there twice"),
    ):
        with pytest.raises(DataError, match=message):
            read(tmp_path / name, content)
    _, left_out = read(tmp_path / "r.jsonl", "instance_id,annotator,ranking\ni,a,0 1 2\n")
    assert all("expected JSON Lines, one object {...} a line" in line and "cut off" not in line for line in left_out)


def test_a_person_is_one_person_however_an_export_writes_the_id(tmp_path: Path) -> None:
    def annotation(who: object, order: list[object]) -> dict[str, Any]:
        return {"completed_by": who, "result": [{"value": {"ranker": {"ranking": order}}}]}

    tasks = [
        {"data": {"instance_id": 17}, "annotations": [annotation(5, ["2", "0", "1"]), annotation("5", [0, 1, 2])]},
        {"data": {"instance_id": "17"}, "annotations": [annotation({"id": "5"}, ["1", "0", "2"])]},
        {"data": {"instance_id": ["17"]}, "annotations": []},
    ]
    (tmp_path / "e.json").write_text("\ufeff" + json.dumps(tasks), encoding="utf-8")
    found = read_export(tmp_path / "e.json", SIZES, rejected := Rejected())
    assert [(v.instance_id, v.annotator, v.ranking) for v in found.rankings] == [("17", "user-5", [1, 0, 2])]
    assert found.counts["superseded_answers"] == 2
    assert [cause for _, cause in rejected] == ["instance: instance_id is ['17'], expected a string"]


def test_scores_given_elsewhere_are_read_from_csv(tmp_path: Path) -> None:
    instances = [HeldOutRanking("i", "p", "a bear", "0017", ("1", "2"), (0, 1), (1.0, 0.0))]
    file = tmp_path / "s.csv"
    file.write_text("reference;candidate;score\n0017;1;0.75\n0017;2;0,5\n0017;2;\n17;2;1\n")
    judged = read_scores("x", file, instances, rejected := Rejected())
    assert judged.scores[0][0] == 0.75 and math.isnan(judged.scores[0][1])
    assert judged.causes == {"not in the file": 1}
    assert [cause for _, cause in rejected] == [
        "record: score '0,5' is not a finite number", "record: score None is not a finite number",
    ]  # fmt: skip
    file.write_text("reference,candidate,score\n17,1,0.75\n")
    with pytest.raises(DataError, match="none of its 1 pairs is one of the rankings', e.g. 17 and 1"):
        read_scores("x", file, instances, Rejected())


def test_ids_of_records_may_be_integers(tmp_path: Path) -> None:
    given = {"prompt": "x", "height": 8, "width": 8, "layout": "1x2", "theme": "t", "category": "c", "task_name": "n"}
    assert PromptRecord.model_validate({"idx": 17, **given, "criteria": {}}).idx == "17"
    (tmp_path / "images/17").mkdir(parents=True)
    for name in "abc":
        Image.new("RGB", (8, 8)).save(tmp_path / f"images/17/{name}.png")
    ranking = {"folder": 17, "ref_image": "a.png", "comp_images": ["b.png", "c.png"], "rank_images": ["c.png", "b.png"]}
    (tmp_path / rank_bench.RANKS).write_text(json.dumps(ranking))
    (tmp_path / rank_bench.PROMPTS).write_text(json.dumps({"idx": "17", "prompt": "a cat"}))
    assert list(rank_bench.read(tmp_path).table["prompt_id"]) == ["17"]


def test_instances_without_a_ranking_are_counted_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = make_world(tmp_path)
    first = table["instance_id"].iloc[0]
    (tmp_path / "r.csv").write_text(f"instance_id,annotator,ranking\n{first},ann,2 0 1 3\n")
    whole = load(tmp_path / "params.yaml")
    params = whole.model_copy(update={"annotations": AnnotationsParams(source="import", file="r.csv")})
    annotations.run(StageContext("annotations", None, tmp_path, params, Mock(), None))
    told = capsys.readouterr().err
    assert "annotations: 47 of 48 instances (97.9%) have no ranking, and make no pairs (source 'import')" in told
    report = checks.annotations_order_all_candidates(tmp_path / "data")
    assert not report.passed and "47 of 48 instances unranked (97.9%)" in report.description
